"""What looks like a secret: names that promise one, formats of known issuers, and text that seems random.

A false alarm costs a word in run.json; a miss may publish a key. So where in doubt, a word is left out.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from foretrace.capture.program_names import NAME_FIELDS, named_in_program

LEFT_OUT = "<left out>"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A name promises a secret if one of these is among its words,
_SECRET_WORDS = _words(
    "accesskey apikey authtoken credential credentials creds passphrase passwd password passwords"
    " pgpassword privatekey secret secretkey secrets"
)
# or if it ends in one of these.
_SECRET_ENDINGS = _words(
    "auth authorization bearer cookie cookies key pass pat pin pwd sas sig signature token tokens"
)
_KEY_OWNERS = _words("access api auth encryption license private secret service sign signing ssh")
# `--pad-token`, `--max-tokens`: tokens of text.
_TEXT_TOKENS = _words(
    "avg batch begin bos cls context end eos image input mask max mean min n new num number of out output pad per"
    " prompt sep special stop sum target total unk vocab"
)
_TOKEN_QUALITIES = _words("dev file prod production secret staging test value")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

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
_USER_OF_URL = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
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
_MASKED_CHARACTERS = 8
# The pairs of letters that the words of this project's sources and Python's library are mostly made of
# (nine of ten pairs; a random pair is among them one time in four).
_PAIRS = _words(
    "ab ac ad ag ai al am an ap ar as at au ay ba be bl bu ca ce ch ck cl co ct cu da de di do ds du ea "
    "ec ed ee ef el em en ep er es et ev ex fa ff fi fo fr fu ge ha he hi ho ia ib ic id ie if ig il im "
    "in io ip ir is it iv ke la ld le li ll lo ls lt lu ly ma me mi mo mp na nc nd ne ng ni no ns nt nu "
    "oc od ol om on oo op or os ot ou ov ow pa pe pi pl po pp pr pt qu ra rd re rg ri rm rn ro rr rs rt "
    "ru ry sa sc se sh si so sp ss st su ta te th ti to tr ts tt tu ty ue ul um un up ur us ut va ve vi "
    "wa wh wi ze"
)
_PAIRS_SHARE = 0.5


def secret_name(name: str) -> bool:
    """Whether a variable, an option or a field of this name would hold a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    if _SECRET_WORDS & set(words) or "".join(words) in _SECRET_WORDS:
        return True
    if any(word == "key" and before in _KEY_OWNERS for before, word in pairwise(words)):
        return True
    if words[-1:] and words[-1] in _TOKEN_QUALITIES:
        words.pop()
    if not words or words[-1] not in _SECRET_ENDINGS:
        return False
    return not (words[-1] in ("token", "tokens") and _TEXT_TOKENS & set(words[:-1]))


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
    changes = len(re.findall(r"(?=[a-z][A-Z0-9]|[A-Z]\d|\d[A-Za-z]|[A-Z]{2}[a-z])", text))
    wordlike = sum(map(len, re.findall(r"[A-Z]?[a-z]{3,}|[A-Z]{3,}|\d{3,}", text)))
    return changes >= 0.2 * size or wordlike < 0.45 * size or _unpronounceable(text)


def _unpronounceable(text: str) -> bool:
    """Whether the pairs of letters in it are not those of words."""
    runs = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)
    pairs = [run[at : at + 2].lower() for run in runs for at in range(len(run) - 1)]
    common = sum(pair in _PAIRS for pair in pairs)
    return len(pairs) >= 8 and common < _PAIRS_SHARE * len(pairs)


def without_issued_in(text: str) -> str:
    """The text without what has a known issuer's format: enough for the name of a file or a module."""
    return _FORMATS.sub(LEFT_OUT, text)


def without_secrets_in(text: str) -> str:
    """The text with every word left out that looks like a secret."""
    if len(text) < 4:
        return text
    text = _FORMATS.sub(LEFT_OUT, text)
    text = _USER_OF_URL.sub(LEFT_OUT, text)
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
    looking_so = shaped | {value for value in given if not _ordinary(value)}
    found = named | (looking_so - named_in_program(looking_so))
    return sorted(
        (value for value in found if len(value) >= _MASKED_CHARACTERS), key=lambda each: (-len(each), each)
    )


def _given(argument: str, cleaned: str) -> str:
    """The value of an argument that was left out, or whose end was."""
    if cleaned != LEFT_OUT:
        return argument.rpartition("=")[2]
    name, sign, value = argument.partition("=")
    return value if sign and name.startswith("-") else argument


def mask_in_file(path: Path, secrets: Sequence[str]) -> int:
    """Overwrites these texts with asterisks wherever a file holds them; how often that was."""
    if not secrets or path.stat().st_size == 0:
        return 0
    # As they are, and as JSON writes them.
    texts = {secret.encode(errors="surrogateescape") for secret in secrets}
    texts |= {json.dumps(secret)[1:-1].encode() for secret in secrets}
    count = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        for text in sorted(texts, key=len, reverse=True):
            at = content.find(text)
            while at >= 0:
                content[at : at + len(text)] = b"*" * len(text)
                count += 1
                at = content.find(text, at + len(text))
    return count


def _ordinary(value: str) -> bool:
    """Whether it may stand in a recording by chance: a word, a short number, a path."""
    return len(value) < _MASKED_CHARACTERS or bool(
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
