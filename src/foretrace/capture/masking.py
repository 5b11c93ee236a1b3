"""Masking: the secrets in a file that a profiler wrote are overwritten with asterisks, in place."""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO

from foretrace.capture.known_secrets import bytes_pattern, masked
from foretrace.secret_formats import may_hold_secrets, secret_places

Places = tuple[tuple[int, int], ...]

_PIECE_BYTES, _OVERLAP_BYTES = 8 << 20, 256 << 10
_LOG_BYTES = 64 << 10
# Texts of JSON: behind a name, first in a list, and further in a list. Each pattern begins with characters that `re` searches
# for quickly: a recording has millions of texts, nearly all of them alike. Texts of fewer than eight characters hold no secret.
_TEXT = rb'"(?![^"\\]{0,7}")([^"\\\n]*(?:\\.[^"\\\n]*)*)'
_JSON_TEXTS = [re.compile(begin + _TEXT) for begin in (rb'":\s?', rb"\[", rb'",\s?')]
# Texts of a pickle: the opcode, the length, the text, and the opcode that remembers it.
_SHORT_TEXT, _LONG_TEXT = re.compile(rb"\x8c([\x08-\xff])", re.DOTALL), re.compile(rb"X(..\0\0)", re.DOTALL)
_REMEMBERED = b"\x94"


def mask_in_file(path: Path, secrets: Collection[str], *, formats: bool = True) -> int:
    """Masks these secrets, and with `formats` what has a secret's form, wherever a text holds them; how often that was."""
    if path.stat().st_size == 0:
        return 0
    known: dict[bytes, Places] = {}
    count = 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        is_json = content[:64].lstrip()[:1] in (b"{", b"[")
        for begin in range(0, len(content), _PIECE_BYTES):
            piece = content[begin : begin + _PIECE_BYTES + _OVERLAP_BYTES]
            for start, end in (_in_json if is_json else _in_pickle)(
                piece, frozenset(secrets), known, formats
            ):
                stars = b"*" * (end - start)
                count += content[begin + start : begin + end] != stars
                content[begin + start : begin + end] = stars
    return count


def keep_log(printed: IO[bytes], log: Path) -> None:
    """Writes what a program printed, without secrets."""
    printed.seek(0)
    with log.open("wb") as file:
        while lines := printed.readlines(_LOG_BYTES):
            text = b"".join(lines).decode(errors="surrogateescape")
            file.write(str(masked(text)).encode(errors="surrogateescape"))


def _in_json(
    piece: bytes, secrets: frozenset[str], known: dict[bytes, Places], formats: bool
) -> Iterator[tuple[int, int]]:
    """Where secrets stand in a part of a JSON file; each distinct text is looked through once for all parts."""
    for pattern in _JSON_TEXTS:
        texts = set(pattern.findall(piece))
        _look_through(texts - known.keys(), secrets, known, formats)
        if any(known[text] for text in texts):
            for match in pattern.finditer(piece):
                yield from _moved(known.get(match[1], ()), match.start(1))


def _in_pickle(
    piece: bytes, secrets: frozenset[str], known: dict[bytes, Places], formats: bool
) -> Iterator[tuple[int, int]]:
    """Where secrets stand in the texts of a pickle, which hold nothing of the opcodes around them."""
    begins = {}
    for pattern in (_SHORT_TEXT, _LONG_TEXT):
        for match in pattern.finditer(piece):
            begin, end = match.end(), match.end() + int.from_bytes(match[1], "little")
            if piece[end : end + 1] == _REMEMBERED:
                begins[begin] = piece[begin:end]
    _look_through(set(begins.values()) - known.keys(), secrets, known, formats)
    for begin, text in begins.items():
        yield from _moved(known[text], begin)


def _look_through(
    texts: set[bytes], secrets: frozenset[str], known: dict[bytes, Places], formats: bool
) -> None:
    """Notes of new texts where secrets stand in them: nearly always nowhere, which one look at all of them shows."""
    together = b"\n".join(texts)
    pattern = bytes_pattern(secrets)
    if pattern is not None and not pattern.search(together):
        pattern = None
    formats = formats and may_hold_secrets(together.decode("latin-1"))
    if pattern is None and not formats:
        known.update(dict.fromkeys(texts, ()))
        return
    for text in texts:
        by_value = (match.span() for match in pattern.finditer(text)) if pattern is not None else ()
        by_form = secret_places(text.decode("latin-1")) if formats else ()
        known[text] = (*by_value, *by_form)


def _moved(places: Iterable[tuple[int, int]], by: int) -> Iterator[tuple[int, int]]:
    return ((start + by, end + by) for start, end in places)
