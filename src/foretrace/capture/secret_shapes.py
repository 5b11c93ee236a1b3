"""What looks like a secret: names that promise one, formats of known issuers, and text that seems random.

A false alarm costs a word in run.json; a miss may publish a key. So where in doubt, a word is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from foretrace.capture.program_names import NAME_FIELDS, named_in_program
from foretrace.secret_formats import LEFT_OUT, USER_OF_URL, secret_places
from foretrace.secret_names import secret_name
from foretrace.word_shapes import changes, unpronounceable, wordlike_characters

# Formats of known issuers, each anchored by a prefix that nothing else has.
_FORMATS = re.compile(
    r"""-----BEGIN[ A-Z0-9]*-----.*?(?:-----END[ A-Z0-9]*-----|\Z)   # PEM, OpenSSH and PGP keys
      | \beyJ[\w-]{8,}(?:\.[\w-]*){1,4}                  # JSON web tokens
      | \b(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA|ANPA)[A-Z0-9]{12,}  # AWS
      | \bgh[a-z]_\w{10,} | \bgithub_pat_\w{10,}         # GitHub
      | \bgl[a-z]{2,6}-[\w.-]{10,}                       # GitLab
      | \b(?:hf|api_org)_[A-Za-z0-9]{10,}                # Hugging Face
      | \b(?:sk|pk|rk)[-_][\w-]{10,}                     # OpenAI, Anthropic, Stripe
      | \bxox[a-z]-[\w-]{8,} | \bxapp-[\w-]{8,}          # Slack
      | \bAIza[\w-]{20,} | \bya29\.[\w.-]+ | \bGOCSPX-[\w-]+   # Google
      | \b(?:npm|pypi|dckr_pat|dop_v1|shpat|lin_api|r8|glc|nvapi|wandb_v1|tvly|gsk|xai|pplx|dapi|figd|sntrys)[-_][\w.-]{10,}
      | \bSG\.[\w-]{10,}\.[\w-]{10,}                     # SendGrid
      | \bhvs\.[\w-]{10,}                                # Vault
      | \bAGE-SECRET-KEY-\w+
      | \b\d{8,10}:[\w-]{30,}                            # Telegram
    """,
    re.VERBOSE | re.DOTALL,
)
_SCHEME = re.compile(r"\b(Bearer|Basic|Digest|Token|Negotiate)(\s+)(?=\S*[\d=_-])[^\s'\"]{6,}", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"""(?P<name>[\w.+-]{2,80})(?P<sign>["']?\s*[=:](?!//)\s*["']?)(?P<value><left\ out>|[^\s"'&?,;}{)(]+)""",
    re.VERBOSE,
)
_CHUNK = re.compile(r"[A-Za-z0-9+/_=.~-]{16,}")
_DEVICE_ID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# Twenty and more without a break: digits alone, or letters with digits not only behind them.
_UNBROKEN = re.compile(r"\d{20,}|(?<![A-Za-z0-9])(?=[A-Za-z]*\d+[A-Za-z])[A-Za-z0-9]{20,}")
_RANDOM_CHARACTERS = 18
MASKED_CHARACTERS = 8  # shorter texts occur in recordings by chance


def looks_random(text: str) -> bool:
    """Whether a word is long and unlike any that people or programs make up as names."""
    if _UUID.search(text) and not _DEVICE_ID.search(text):
        return True
    size = sum(character.isalnum() for character in text)
    if size < _RANDOM_CHARACTERS:
        return False
    if _UNBROKEN.search(text):
        return True
    if not re.search(r"[A-Za-z]", text):
        return False
    return changes(text) >= 0.2 * size or wordlike_characters(text) < 0.45 * size or unpronounceable(text)


def without_issued_in(text: str) -> str:
    """The text without what has a known issuer's format: enough for the name of a file or a module."""
    return _FORMATS.sub(LEFT_OUT, text)


def without_secrets_in(text: str) -> str:
    """The text with every word left out that looks like a secret."""
    if len(text) < 4:
        return text
    text = _FORMATS.sub(LEFT_OUT, text)
    text = USER_OF_URL.sub(LEFT_OUT, text)
    text = _SCHEME.sub(rf"\1\2{LEFT_OUT}", text)
    text = _ASSIGNED.sub(_assigned, text)
    return _CHUNK.sub(_chunk, text)


def without_secrets(value: Any, *, name: str = "") -> Any:
    """A value of JSON's kinds with every text checked, and those under a name that promises a secret left out."""
    if isinstance(value, str):
        if name in NAME_FIELDS or (name == "commit" and _COMMIT.fullmatch(value)):
            return value
        return LEFT_OUT if value and secret_name(name) else without_secrets_in(value)
    if isinstance(value, Mapping):
        return {without_secrets_in(key): without_secrets(item, name=key) for key, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(each, name=name) for each in value]
    return value


def without_secret_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line whose secrets are left out, be they after `=`, in the next argument or inside another."""
    cleaned: list[str] = []
    promised = False
    for argument in arguments:
        option = argument.startswith("-") and not argument.lstrip("-")[:1].isdigit()
        if promised and not option:
            cleaned.append(LEFT_OUT)
            promised = False
            continue
        name, sign, _ = argument.partition("=")
        if sign and "://" not in name and not re.search(r"\s", name) and secret_name(name):
            cleaned.append(f"{without_secrets_in(name)}={LEFT_OUT}")
            promised = False
            continue
        promised = option and not sign and secret_name(argument)
        cleaned.append(without_secrets_in(argument))
    return cleaned


def secrets_among(environ: Mapping[str, str], arguments: Sequence[str] = ()) -> list[str]:
    """The values of variables and arguments that no recording may hold, longest first."""
    named = {value for name, value in environ.items() if secret_name(name) and not _ordinary(value)}
    shaped = {value for value in environ.values() if without_secrets_in(value) == LEFT_OUT}
    cleaned = zip(arguments, without_secret_arguments(arguments), strict=True)
    given = {_given(argument, after) for argument, after in cleaned if after.endswith(LEFT_OUT)}
    looking_so = (
        shaped | _inside([*environ.values(), *arguments]) | {value for value in given if not _ordinary(value)}
    )
    found = named | (looking_so - named_in_program(looking_so))
    return sorted(
        (value for value in found if len(value) >= MASKED_CHARACTERS), key=lambda each: (-len(each), each)
    )


def _inside(values: Iterable[str]) -> set[str]:
    """Secrets within values, as in postgres://user:password@host: with who they are of, and alone."""
    found = {value[start:end] for value in values for start, end in secret_places(value)}
    passwords = {text.partition(":")[2] for text in found}
    return found | {each for each in passwords if not _ordinary(each)}


def _given(argument: str, cleaned: str) -> str:
    """The value of an argument that was left out, or whose end was."""
    if cleaned != LEFT_OUT:
        return argument.rpartition("=")[2]
    name, sign, value = argument.partition("=")
    return value if sign and name.startswith("-") else argument


def _ordinary(value: str) -> bool:
    """Whether it may stand in a recording by chance: a word, a short number, a path."""
    return len(value) < MASKED_CHARACTERS or bool(
        re.fullmatch(r"[A-Za-z_.]{,19}|\d{,11}|[~.]?/.*", value, re.DOTALL)
    )


def _assigned(match: re.Match[str]) -> str:
    return f"{match['name']}{match['sign']}{LEFT_OUT}" if secret_name(match["name"]) else match[0]


def _chunk(match: re.Match[str]) -> str:
    chunk = match[0]
    if _DEVICE_ID.fullmatch(chunk):
        return chunk
    if not chunk.startswith(("/", "./", "../", "~")) and any(map(looks_random, _pieces(chunk))):
        return LEFT_OUT
    return "/".join(LEFT_OUT if any(map(looks_random, _pieces(part))) else part for part in chunk.split("/"))


def _pieces(chunk: str) -> list[str]:
    return [chunk, *chunk.split(".")] if not re.search(r"\d\.\d", chunk) else chunk.split(".")
