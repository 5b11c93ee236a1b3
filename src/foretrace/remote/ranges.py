"""Parts of a file at an address: by ranges, or where a server gives none, from its beginning; again where a connection breaks."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

from foretrace.errors import InputError
from foretrace.remote.failures import NoRangesError, asking, broken_off, is_passing
from foretrace.remote.objects import Facts
from foretrace.remote.patience import Allowance
from foretrace.remote.systems import open_whole, plain, scheme_of, system_of

HEAD_BYTES = 1 << 16  # what tells a file's format, and is kept in memory
BLOCK_BYTES = 4 << 20  # of one request
_TRIES, _FIRST_PAUSE_S = 4, 0.2
_SMALLEST_BYTES = 1 << 18  # of a range that is not halved
_MOST_HEADS_BYTES = 64 << 20  # together
_heads: OrderedDict[tuple[str, str], bytes] = OrderedDict()
_lock = threading.Lock()


def head_of(url: str, told: Facts) -> Part:
    """How a file begins; asked for once, as long as the file stays as it is."""
    key = (url, f"{told.size} {told.version}")
    with _lock:
        if key in _heads:
            _heads.move_to_end(key)
            return Part(_heads[key])
    head = fetched(url, 0, min(HEAD_BYTES, told.size or 0), told.size)
    if told.version is not None and head.failure is None:
        with _lock:
            _heads[key] = head.content
            held = sum(map(len, _heads.values())) if len(_heads) * HEAD_BYTES > _MOST_HEADS_BYTES else 0
            while held > _MOST_HEADS_BYTES:
                held -= len(_heads.popitem(last=False)[1])
    return head


@dataclass(frozen=True)
class Part:
    """The content of a range, as far as it came, and what kept the rest away."""

    content: bytes
    failure: OSError | None = None


def fetched(url: str, begin: int, end: int, size: int | None, *, tries: int = _TRIES) -> Part:
    """A range of a file; asked for again where the connection breaks, and then by halves, so that all comes that can."""
    for attempt in range(1, tries + 1):
        try:
            content = _range_of(url, begin, end, size)
            if len(content) == end - begin:
                return Part(content)
            failure = broken_off()
        except OSError as error:
            failure = error
        if not is_passing(failure) or (isinstance(failure, TimeoutError) and attempt > 1):
            break
        if attempt < tries:
            time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
    if not isinstance(failure, ConnectionResetError) or end - begin <= _SMALLEST_BYTES:
        return Part(b"", failure)
    middle = (begin + end) // 2
    first = fetched(url, begin, middle, size, tries=1)
    if first.failure is not None:
        return first
    second = fetched(url, middle, end, size, tries=1)
    return Part(first.content + second.content, second.failure)


def _range_of(url: str, begin: int, end: int, size: int | None) -> bytes:
    system = system_of(url)
    with asking():
        if scheme_of(url) not in ("http", "https"):
            return bytes(system.cat_file(plain(url), start=begin, end=end))
        with system.open(url, size=size, block_size=BLOCK_BYTES, cache_type="none") as file:
            file.seek(begin)
            try:
                return bytes(file.read(end - begin))
            except ValueError as error:  # so fsspec says that all came where a range was asked for
                raise NoRangesError from error


class Unranged:
    """A file of a server that gives no ranges, read once through; after a break again, up to where it was."""

    def __init__(self, url: str, size: int | None, allowance: Allowance) -> None:
        self._url, self._size, self._file, self._allowance = url, size, None, allowance
        self.at, self.last = 0, b""  # bytes taken, and the last piece, which may be read again

    def read_at(self, at: int, size: int) -> bytes:
        """What is there: of the last piece, or the next."""
        begin = self.at - len(self.last)
        if begin <= at < self.at:
            return self.last[at - begin : at - begin + size]
        while self.at < at:
            if not self._next(min(BLOCK_BYTES, at - self.at)):
                return b""
        return self._next(size)

    def close(self) -> None:
        """Ends the request."""
        if self._file is not None:
            with suppress(Exception):  # a connection that is gone already
                self._file.close()
        self._file = None

    def _next(self, size: int) -> bytes:
        # Pieces as large as a file's beginning at least: its format is looked at more than once.
        size = max(size, HEAD_BYTES)
        for attempt in range(_TRIES):
            try:
                piece = self._taken(size)
            except OSError as error:
                if attempt + 1 == _TRIES or not is_passing(error):
                    raise
                self.close()
                time.sleep(_FIRST_PAUSE_S * 2**attempt)
            else:
                self.at += len(piece)
                self.last = piece
                return piece
        raise AssertionError("unreachable")

    def _taken(self, size: int) -> bytes:
        with asking():
            if self._file is None:
                self._file = open_whole(self._url)
                left = self.at
                while left:
                    skipped = self._file.read(min(left, BLOCK_BYTES))  # type: ignore[attr-defined]
                    if not skipped:
                        raise broken_off()
                    left -= len(skipped)
            pieces, had = [], 0
            try:
                while had < size and (piece := self._file.read(size - had)):  # type: ignore[attr-defined]
                    pieces.append(piece)
                    had += len(piece)
                    self._allowance.take(len(piece))
            except Exception as error:
                if not had or isinstance(error, InputError):
                    raise
                self.close()  # what came is handed on; the next piece is asked for anew
                return b"".join(pieces)
        if not had and self._size is not None and self.at < self._size:
            raise broken_off()
        return b"".join(pieces)
