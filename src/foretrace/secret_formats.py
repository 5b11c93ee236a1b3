"""Secrets that can be told by their form alone: formats of known issuers, and values where a secret always stands.

Used on every distinct text of a recording, where names of classes, functions and kernels must stay as they are: so each
format is as narrow as its issuer's, and text that merely seems random is none. `capture/secret_shapes.py` is broader.
"""

from __future__ import annotations

import re
from typing import Any

from foretrace.secret_names import secret_name
from foretrace.word_shapes import changes, unpronounceable, wordlike_characters

LEFT_OUT = "<left out>"

# What a text must hold, in any case, to be looked at closer: this is asked of every text.
NEEDLES = (
    "://", "-----begin", "eyj", "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "gldt-",
    "glrt-", "glcbt-", "glptt-", "glft-", "glsoat-", "hf_", "api_org_", "sk-", "sk_live_", "sk_test_", "rk_live_", "rk_test_",
    "xox", "xapp-", "aiza", "ya29.", "gocspx-", "npm_", "pypi-", "dckr_pat_", "dop_v1_", "nvapi-", "wandb_v1_", "gsk_",
    "sg.", "hvs.", ":aa", "age-secret-key-", "authorization", "bearer", "passw", "passphrase", "pwd", "secret", "api_key",
    "api-key", "apikey", "access_key", "access-key", "accesskey", "accountkey", "private_key", "private-key", "auth_token",
    "auth-token", "authtoken", "access_token", "access-token", "accesstoken", "sharedaccess",
)  # fmt: skip

_ISSUED = re.compile(
    r"""-----BEGIN\ [A-Z0-9 ]*PRIVATE\ KEY[A-Z ]*-----.*?(?:-----END[ A-Z0-9]*-----|\Z)
      | (?<![A-Za-z0-9])(?:
            eyJ[\w-]{8,}\.(?:eyJ)?[\w-]{8,}(?:\.[\w-]*)*      # JSON web tokens
          | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])  # AWS
          | gh[pousr]_[A-Za-z0-9]{30,} | github_pat_\w{22,}
          | gl(?:pat|dt|rt|cbt|ptt|ft|soat)-[\w-]{20,}
          | sk-(?:proj|ant|svcacct|admin|or)-[\w-]{16,}       # OpenAI, Anthropic, OpenRouter
          | xox[abeoprs]-[\w-]{10,} | xapp-\d-[\w-]{10,}      # Slack
          | AIza[\w-]{35} | ya29\.[\w-]{20,} | GOCSPX-[\w-]{20,}   # Google
          | npm_[A-Za-z0-9]{36} | pypi-AgE[\w-]{20,}
          | dckr_pat_[\w-]{20,} | dop_v1_[0-9a-f]{32,} | nvapi-[\w-]{30,} | wandb_v1_\w{30,}
          | \d{8,10}:AA[\w-]{32,33}(?!\w)                       # Telegram
          | SG\.[\w-]{16,}\.[\w-]{16,} | hvs\.[\w-]{20,} | AGE-SECRET-KEY-1\w{20,}
        )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
# Formats whose beginning a program's own names may have: what follows must be no words.
_ISSUED_IF_RANDOM = re.compile(
    r"""(?<![A-Za-z0-9])(?:(?:hf|api_org)_(?P<hf>[A-Za-z0-9]{30,40})(?!\w)
      | sk-(?P<sk>[A-Za-z0-9]{20,}) | (?:sk|rk)_(?:live|test)_(?P<stripe>[A-Za-z0-9]{16,}) | gsk_(?P<gsk>[A-Za-z0-9]{40,}))
    """,
    re.VERBOSE | re.ASCII,
)
# Who, in an address: up to its last @. A number behind the first colon is a port.
USER_OF_URL = re.compile(
    r"""(?<=://)(?:[^\s/:@"'<>]{0,100}:(?!\d{1,5}(?:[/?\#\s"']|\Z))[^\s"'<>]{1,300}|[^\s/@"'<>]{1,300})(?=@[\w\[.-])""",
    re.ASCII,
)
_HEADER = re.compile(
    r"""\bauthorization\\?["']?\s*[:=]\s*\\?["']?(?:(?:bearer|basic|digest|token|negotiate)\s+)?(?P<value>[^\s"',;\\]+)
      | \bbearer\s+(?P<bearer>(?=[^\s"'\\]*\d)[\w.~+/=-]{16,})""",
    re.IGNORECASE | re.VERBOSE | re.ASCII,
)
_KEPT_UNDER = (
    r"[\w.+-]{0,40}?(?<![A-Za-z])(?:[a-z]{2,12}[_-])?"
    r"(?:password|passwd|passphrase|pwd|secret(?:[_-]?(?:access[_-]?)?key)?|api[_-]?key|access[_-]?key|account[_-]?key"
    r"|shared[_-]?access[_-]?(?:key|signature)|private[_-]?key|auth[_-]?token|access[_-]?token|client[_-]?secret)"
)
# `password=x`, `"password": "x"`, `password: x`, but not `Secret::forward` and not `package:Secret`.
_ASSIGNED = re.compile(
    rf"""(?<![\w.+-]){_KEPT_UNDER}(?:\\?["']?\s*=\s*|\\?["']?:\s+|\\?["']\s*:\s*)\\?["']?(?P<value>[^\s"'&,;\\)(}}{{]+)""",
    re.IGNORECASE | re.ASCII,
)
# `--api-key x`: the value is the next word.
_OPTION = re.compile(
    rf"""(?<![\w-])--?{_KEPT_UNDER}["']?,?\s+["']?(?P<value>(?!-)[^\s"',;]+)""", re.IGNORECASE | re.ASCII
)
_CONTEXTS = (_HEADER, _ASSIGNED, _OPTION)
_LONGEST = 100_000  # characters of one text that are looked through


def may_hold_secrets(text: str) -> bool:
    """Whether a text is worth a closer look; it may be many texts together."""
    lowered = text.lower()
    return any(needle in lowered for needle in NEEDLES)


def secret_places(text: str) -> list[tuple[int, int]]:
    """Where secrets stand in a text, in order, none of them inside another."""
    text = text[:_LONGEST]
    if not may_hold_secrets(text):
        return []
    found = [match.span() for pattern in (_ISSUED, USER_OF_URL) for match in pattern.finditer(text)]
    found += [
        match.span() for match in _ISSUED_IF_RANDOM.finditer(text) if _no_words(match[match.lastgroup or 0])
    ]
    for pattern in _CONTEXTS:
        found += [match.span(match.lastgroup or 0) for match in pattern.finditer(text)]
    places: list[tuple[int, int]] = []
    for start, end in sorted(place for place in found if text[slice(*place)] not in LEFT_OUT.split()):
        if places and start < places[-1][1]:
            places[-1] = places[-1][0], max(end, places[-1][1])
        else:
            places.append((start, end))
    return places


def without_known_secrets(text: str) -> str:
    """The text without secrets that their form gives away."""
    for start, end in reversed(secret_places(text)):
        text = f"{text[:start]}{LEFT_OUT}{text[end:]}"
    return text


def without_known_secrets_in(value: Any, *, name: str = "") -> Any:
    """A value of JSON's kinds with every text checked, and those under a name that promises a secret left out."""
    if isinstance(value, str):
        return LEFT_OUT if value and secret_name(name) else without_known_secrets(value)
    if isinstance(value, dict):
        return {key: without_known_secrets_in(item, name=str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [without_known_secrets_in(item, name=name) for item in value]
    return value


def _no_words(text: str) -> bool:
    """Whether it is made of no words, as a class of the program would be, however many digits that has."""
    return unpronounceable(text) or (
        changes(text) >= 0.2 * len(text) and wordlike_characters(text) < 0.75 * len(text)
    )
