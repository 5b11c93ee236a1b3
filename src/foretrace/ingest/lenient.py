"""A JSON reader that keeps what is sound: what torch and its users' scripts write is often not quite JSON.

Numbers with a fraction or an exponent stay text (`Number`), so no nanosecond is lost to a double.
Accepted, and noted by code: raw control characters, bad escapes, quotes inside strings, bare words
(NaN, inf, N/A). `_native/scanner.hpp` reads by the same rules; tests compare the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 64
MAX_STRING = 1 << 20
_MOST_DIGITS = 640  # the least that sys.set_int_max_str_digits can be set to

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?[0-9]+(?P<rest>(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)")
_WORD = re.compile(r"[A-Za-z0-9_+./-]+")
_STOP = re.compile(r'["\\\x00-\x1f]')
_ESCAPE = re.compile(r'["\\/bfnrt]|u[0-9a-fA-F]{4}')
_ANY_ESCAPE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\.", re.DOTALL)
_SIMPLE = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")

Note = Callable[[str], None]


class Number(str):
    """The text of a JSON number that is not an integer."""

    __slots__ = ()


class BareWord(str):
    """A word where a value should be: its text says that there is none."""

    __slots__ = ()


class DamagedError(ValueError):
    """The text at `position` is not JSON, however kindly read."""

    def __init__(self, position: int) -> None:
        super().__init__(f"damaged at {position}")
        self.position = position


class TruncatedError(DamagedError):
    """The text ends inside a value."""


def _ignore(_: str) -> None:
    """Notes nothing."""


def _bare_word(text: str) -> BareWord:
    raise json.JSONDecodeError("bare word", text, 0)


# The strict reader: anything that it refuses goes to `value`, which notes why.
strict = json.JSONDecoder(parse_float=Number, parse_constant=_bare_word)


def decode(text: str, position: int, note: Note = _ignore) -> tuple[Any, int]:
    """The object or list that starts at `position`, and where it ends; the same as `value`, only faster."""
    try:
        item, end = strict.raw_decode(text, position)
    except (ValueError, RecursionError):
        return value(text, position, note)
    # The strict reader has no limits: what might exceed one is read again.
    long = end - position > MAX_STRING
    if long or (text.count("[", position, end) + text.count("{", position, end) > MAX_DEPTH and _deep(item)):
        return value(text, position, note)
    return item, end


def _deep(item: Any, depth: int = 0) -> bool:
    """Whether containers nest deeper than `value` reads."""
    if not isinstance(item, (dict, list)):
        return False
    parts = item.values() if isinstance(item, dict) else item
    return depth >= MAX_DEPTH or any(_deep(part, depth + 1) for part in parts)


def space(text: str, position: int) -> int:
    """The position of the next character that is not white space."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def value(text: str, position: int, note: Note = _ignore, depth: int = 0) -> tuple[Any, int]:
    """The value that starts at `position`, and where it ends."""
    if position >= len(text):
        raise TruncatedError(position)
    first = text[position]
    if first == '"':
        return string(text, position, note)
    if first in "{[":
        if depth >= MAX_DEPTH:
            raise DamagedError(position)
        return (_object if first == "{" else _array)(text, position, note, depth + 1)
    match = _NUMBER.match(text, position)
    if match and not _WORD.match(text, match.end()):
        if match.end() == len(text):
            raise TruncatedError(match.end())
        return (Number(match[0]) if match["rest"] else int_of(match[0])), match.end()
    word = _WORD.match(text, position)
    if not word:
        raise DamagedError(position)
    if word.end() == len(text):
        raise TruncatedError(word.end())
    if word[0] in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[word[0]], word.end()
    note("bare-word")
    return BareWord(word[0]), word.end()


def int_of(text: str) -> int:
    """The integer; past what Python converts, where nothing here has a use for it, just a large one."""
    return int(text) if len(text) <= _MOST_DIGITS else 10 ** (_MOST_DIGITS - 1)


def string(text: str, position: int, note: Note = _ignore) -> tuple[str, int]:
    """The string that starts at the quote at `position`, unescaped, and where it ends."""
    at = position + 1
    escaped = False
    while True:
        match = _STOP.search(text, at)
        if not match:
            raise TruncatedError(len(text))
        at = match.end()
        if at - position > MAX_STRING:
            raise DamagedError(at)
        if match[0] == "\\":
            escaped = True
            if at >= len(text):
                raise TruncatedError(at)
            if not _ESCAPE.match(text, at):
                note("bad-escape")
            at += 1
        elif match[0] == '"':
            after = space(text, at)
            if after == len(text):
                raise TruncatedError(after)
            if text[after] in ",:}]":
                break
            note("raw-quote")
        else:
            note("control-character")
    body = text[position + 1 : at - 1]
    return (unescape(body) if escaped else body), at


def unescape(body: str) -> str:
    """The text that a JSON string stands for; a backslash that escapes nothing stays."""
    return _ANY_ESCAPE.sub(_unescape_match, body)


def _unescape_match(match: re.Match[str]) -> str:
    text = match[0]
    if text[1] == "u" and len(text) > 2:
        units = [int(text[i + 2 : i + 6], 16) for i in range(0, len(text), 6)]
        pairs = b"".join(unit.to_bytes(2, "little") for unit in units)
        return pairs.decode("utf-16-le", "surrogatepass")
    return _SIMPLE.get(text[1], text)


def _object(text: str, position: int, note: Note, depth: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    at = space(text, position + 1)
    while True:
        if at >= len(text):
            raise TruncatedError(at)
        if text[at] == "}":
            return members, at + 1
        if text[at] != '"':
            raise DamagedError(at)
        key, at = string(text, at, note)
        at = space(text, at)
        if text[at] != ":":
            raise DamagedError(at)
        members[key], at = value(text, space(text, at + 1), note, depth)
        at = _next_item(text, at, "}")


def _array(text: str, position: int, note: Note, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    at = space(text, position + 1)
    while True:
        if at >= len(text):
            raise TruncatedError(at)
        if text[at] == "]":
            return items, at + 1
        item, at = value(text, at, note, depth)
        items.append(item)
        at = _next_item(text, at, "]")


def _next_item(text: str, at: int, close: str) -> int:
    """Where the next member or the closing bracket stands."""
    at = space(text, at)
    if at >= len(text):
        raise TruncatedError(at)
    if text[at] == ",":
        return space(text, at + 1)
    if text[at] != close:
        raise DamagedError(at)
    return at


def canonical(item: Any) -> str:
    """JSON text of a value as tables keep it: one spelling, whatever the file's white space."""
    if isinstance(item, (Number, BareWord)):
        return str(item)
    if isinstance(item, str):
        return json.dumps(item, ensure_ascii=False)
    if isinstance(item, list):
        return "[" + ", ".join(canonical(part) for part in item) + "]"
    if isinstance(item, dict):
        return "{" + ", ".join(f"{canonical(key)}: {canonical(part)}" for key, part in item.items()) + "}"
    return json.dumps(item)


def clean(text: str) -> str:
    """Text that can be stored: what was not UTF-8 shows as the replacement character."""
    return _SURROGATE.sub("\ufffd", text)
