"""The secrets that this process knows of: values of its variables and arguments, in every spelling that a file may hold.

A value stays known after the program has removed it from its environment, as many do once they have read it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from foretrace.capture.secret_shapes import MASKED_CHARACTERS, secrets_among
from foretrace.secret_formats import LEFT_OUT, without_known_secrets_in

_LINE_CHARACTERS = 16

_known: set[str] = set()
_last_look: tuple[object, ...] = ()


def values() -> frozenset[str]:
    """All that were known at any look so far, and those that the environment and the command line hold now."""
    global _last_look
    arguments = [*getattr(sys, "orig_argv", ()), *sys.argv]
    look = (frozenset(os.environ.items()), tuple(arguments))
    if look != _last_look:
        if not _last_look:
            _known.update(secrets_among(_environ_at_start()))
        _known.update(secrets_among(os.environ, arguments))
        _last_look = look
    return frozenset(_known)


def forget() -> None:
    """Starts anew, as a new process would; for tests."""
    global _last_look
    _known.clear()
    _last_look = ()


def without_values(value: Any) -> Any:
    """A value of JSON's kinds in whose texts and names no known secret is left."""
    if isinstance(value, str):
        pattern = _text_pattern(values())
        return pattern.sub(LEFT_OUT, value) if pattern is not None else value
    if isinstance(value, dict):
        return {without_values(key): without_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_values(item) for item in value]
    return value


def masked(value: Any) -> Any:
    """The same without secrets that their form gives away, too; names of the program stay, however they look."""
    return without_known_secrets_in(without_values(value))


@lru_cache(maxsize=8)
def bytes_pattern(secrets: frozenset[str]) -> re.Pattern[bytes] | None:
    """What finds any of these secrets in a file; `None` for none."""
    texts = {_encoded(text) for text in _all_spellings(secrets)}
    return re.compile(b"|".join(map(re.escape, sorted(texts, key=_longest_first)))) if texts else None


@lru_cache(maxsize=8)
def _text_pattern(secrets: frozenset[str]) -> re.Pattern[str] | None:
    texts = _all_spellings(secrets)
    return re.compile("|".join(map(re.escape, sorted(texts, key=_longest_first)))) if texts else None


def _all_spellings(secrets: frozenset[str]) -> set[str]:
    return {text for secret in secrets for text in spellings(secret)}


def spellings(secret: str) -> set[str]:
    """How a recording, a traceback, JSON, an address or a header writes a secret."""
    raw = _encoded(secret)
    escaped = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    escaped |= {text.replace("/", "\\/") for text in (secret, *escaped)}
    in_address = {quote(raw), quote(raw, safe=""), quote_plus(raw)}
    in_address |= {re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text) for text in in_address}
    # Kineto's way with what would need an escape in JSON.
    by_kineto = secret.replace("\\", "/").replace('"', "'").replace("\n", "")
    texts = {secret, by_kineto, *escaped, *in_address, *_in_base64(raw)}
    lines = {line for line in secret.split("\n") if len(line) >= _LINE_CHARACTERS}  # of a key, in a log
    return {text for text in texts | lines if len(text) >= MASKED_CHARACTERS}


def _in_base64(raw: bytes) -> set[str]:
    """The characters that a secret has in base64 whatever stands before and behind it, as in `user:password`."""
    cores = set()
    for shift, first in enumerate((0, 2, 3)):
        encoded = base64.b64encode(b"\0" * shift + raw).decode()
        cores.add(encoded[first : (shift + len(raw)) * 8 // 6])
    return cores | {core.replace("+", "-").replace("/", "_") for core in cores}


def _environ_at_start() -> dict[str, str]:
    """The variables that the process was started with, where Linux keeps them."""
    try:
        pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    named = (os.fsdecode(pair).partition("=") for pair in pairs if pair)
    return {name: value for name, _, value in named}


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _longest_first(text: str | bytes) -> tuple[int, str | bytes]:
    return -len(text), text
