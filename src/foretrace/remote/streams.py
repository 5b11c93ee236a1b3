"""Streams: files at addresses, read as files on disk are."""

from __future__ import annotations

import errno
import io
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from weakref import finalize

from foretrace import scratch_folders
from foretrace.errors import InputError
from foretrace.remote.failures import NoRangesError, nothing
from foretrace.remote.objects import Facts, asked, facts
from foretrace.remote.patience import Allowance
from foretrace.remote.ranges import BLOCK_BYTES, HEAD_BYTES, Part, Unranged, fetched, head_of

_LEFT_FREE_BYTES = 256 << 20  # a copy leaves so much of the disk
_AHEAD = 3  # requests under way while a block is worked on


def open_stream(url: str, shown: str) -> Stream:
    """The bytes of an address, fetched as they are read."""
    found = facts(url)
    if found is None:
        raise nothing()
    if found.is_folder:
        raise IsADirectoryError(errno.EISDIR, "a folder, where a file is needed")
    return Stream(url, shown, found)


def look_ahead(urls: Iterable[str]) -> None:
    """Fetches how these files begin, many at a time; what cannot be read is told when it is opened."""

    def look(url: str) -> None:
        with suppress(OSError, InputError), open_stream(url, "") as stream:
            stream.read(1)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(look, urls))


def _check_disk(folder: Path) -> None:
    """Stops before a copy fills the disk."""
    if shutil.disk_usage(folder).free < _LEFT_FREE_BYTES:
        raise OSError(
            errno.ENOSPC, f"the disk of {folder} is nearly full; TMPDIR names another place for copies"
        )


class _Copy:
    """A file in a folder of its own, which goes with the process."""

    def __init__(self, name: str) -> None:
        folder = scratch_folders.make("url")
        self.file = folder / (Path(name).name or "copy")
        self.remove = finalize(self, scratch_folders.remove, folder)


_copies: dict[str, tuple[Facts, _Copy]] = {}


def copy_of(url: str, shown: str, name: str) -> Path:
    """The content as a file on this machine, for readers that jump about in it; removed when the process ends."""
    found = facts(url)
    kept = _copies.get(url)
    if (
        kept is not None
        and found is not None
        and (kept[0] is found or kept[0].version == found.version is not None)
    ):
        return kept[1].file
    copy = _Copy(name)
    with open_stream(url, shown) as stream, copy.file.open("wb") as file:
        while piece := stream.read(BLOCK_BYTES):
            _check_disk(copy.file.parent)
            file.write(piece)
    if kept is not None:
        kept[1].remove()
    _copies[url] = (stream.facts, copy)
    return copy.file


class Stream(io.RawIOBase):
    """A file of an address: a block is one request, and the next ones are under way while one is read.

    A server that gives no ranges is read from the beginning to the end; going back there keeps all in a temporary file.
    """

    def __init__(self, url: str, shown: str, told: Facts) -> None:
        super().__init__()
        self.name, self.facts = shown, told
        self._url, self._at, self._last = url, 0, -1
        self._blocks: dict[int, Part] = {}
        self._under_way: dict[int, Future[Part]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._plain: Unranged | None = None
        self._checked = False
        self._whole: Any = None  # a temporary file
        self._allowance = Allowance(shown)
        self._allowance.check(told.size)
        if told.size is None:
            self._plain = Unranged(url, None, self._allowance)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is, if need be through a temporary file."""
        return True

    def tell(self) -> int:
        """Bytes from the beginning."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Another place; nothing is fetched for it where the size is known."""
        if whence == io.SEEK_END:
            self._at = self._size() + offset
        else:
            self._at = offset + (self._at if whence == io.SEEK_CUR else 0)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """What comes next, into a buffer."""
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def read(self, size: int = -1, /) -> bytes:
        """What comes next, up to the end of a block; nothing at the end. Below 0: all."""
        if size < 0:
            return b"".join(iter(lambda: self.read(BLOCK_BYTES), b""))
        with self._allowance.waiting():
            if self._whole is not None:
                self._whole.seek(self._at)
                piece = bytes(self._whole.read(size))
            elif self._plain is not None:
                piece = self._unranged(size)
            else:
                piece = self._ranged(size)
        self._at += len(piece)
        if size and not piece and not self._checked and (self._last > 0 or self._plain is not None):
            self._check()
        return piece

    def close(self) -> None:
        """Lets go of what is under way."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        if self._plain is not None:
            self._plain.close()
        if self._whole is not None:
            self._whole.close()
        self._under_way, self._blocks = {}, {}
        super().close()

    def _size(self) -> int:
        if self.facts.size is not None:
            return self.facts.size
        self._keep_whole()
        return int(self._whole.seek(0, io.SEEK_END))

    def _check(self) -> None:
        """That all that was fetched, by more than one request, is of one file."""
        self._checked = True
        if self.facts.version is None:
            return
        now = asked(self._url)
        if now is None or now.version != self.facts.version:
            raise InputError(f"{self.name}: it changed while it was read; try again")

    def _ranged(self, size: int) -> bytes:
        assert self.facts.size is not None
        if self._at >= self.facts.size:
            return b""
        number = 0 if self._at < HEAD_BYTES else 1 + (self._at - HEAD_BYTES) // BLOCK_BYTES
        begin, _ = self._range(number)
        try:
            block = self._block(number)
        except NoRangesError:
            self._stop()
            self._plain = Unranged(self._url, self.facts.size, self._allowance)
            return self._unranged(size)
        self._last = max(self._last, number)
        piece = block.content[self._at - begin : self._at - begin + size]
        if not piece and size and block.failure is not None:
            raise block.failure
        return piece

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._under_way = {}

    def _range(self, number: int) -> tuple[int, int]:
        size = self.facts.size or 0
        if number == 0:
            return 0, min(HEAD_BYTES, size)
        begin = HEAD_BYTES + (number - 1) * BLOCK_BYTES
        return begin, min(begin + BLOCK_BYTES, size)

    def _block(self, number: int) -> Part:
        if number in self._blocks:
            return self._blocks[number]
        if number == 0:
            block = head_of(self._url, self.facts)
        elif number in self._under_way:
            block = self._under_way.pop(number).result()
        else:
            block = fetched(self._url, *self._range(number), self.facts.size)
        self._blocks = {number: block}
        if number >= 1:
            self._go_ahead(number)
        return block

    def _go_ahead(self, number: int) -> None:
        """Asks for the next blocks; where reading jumped, for none of those that were asked for before."""
        wanted = [
            next_one
            for next_one in range(number + 1, number + 1 + _AHEAD)
            if self._range(next_one)[0] < (self.facts.size or 0)
        ]
        self._under_way = {each: self._under_way[each] for each in wanted if each in self._under_way}
        if number not in (1, self._last + 1):
            return
        for each in wanted:
            if each not in self._under_way:
                self._pool = self._pool or ThreadPoolExecutor(_AHEAD, thread_name_prefix="foretrace-url")
                self._under_way[each] = self._pool.submit(
                    fetched, self._url, *self._range(each), self.facts.size
                )

    def _unranged(self, size: int) -> bytes:
        assert self._plain is not None
        if self._at < self._plain.at - len(self._plain.last):
            self._keep_whole()
            self._whole.seek(self._at)
            return bytes(self._whole.read(size))
        return self._plain.read_at(self._at, size)

    def _keep_whole(self) -> None:
        if self._whole is not None:
            return
        with ExitStack() as opened:
            copy = opened.enter_context(tempfile.TemporaryFile(prefix="foretrace-url-"))
            allowance = Allowance(self.name)
            from_start = Unranged(self._url, self.facts.size, allowance)
            opened.callback(from_start.close)
            opened.enter_context(allowance.waiting())
            while piece := from_start.read_at(from_start.at, BLOCK_BYTES):
                _check_disk(Path(tempfile.gettempdir()))
                copy.write(piece)
            opened.pop_all()
        from_start.close()
        self._whole = copy  # closed with the stream
