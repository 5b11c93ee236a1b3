"""Opening a file by what it holds, not by its name: plain, gzip, zstd or a zip with one recording in it.

A `Source` yields the uncompressed bytes in chunks, of a file or of a URL. A stream that breaks off ends early and says where.
"""

from __future__ import annotations

import io
import stat
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import IO, Any, Protocol, cast

from foretrace.errors import InputError
from foretrace.urls import RemotePath

CHUNK = 4 << 20
INFLATED = (
    512 << 10
)  # of a compressed file at once: larger pieces cost more to get memory for than to inflate
_AHEAD = 8  # pieces that may wait
Progress = Callable[[int, int], None]  # bytes read of the file so far, bytes of the file

_PACKED = 256 << 10  # bytes of a packed file that are read at once
GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"


class _Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass
class Source:
    """The uncompressed bytes of one recording."""

    path: Path
    size: int
    compression: str  # "", "gzip", "zstd", "zip"
    head: bytes
    broken: list[tuple[str, int]] = field(default_factory=list)  # why the stream ended early, and where

    def chunks(self, progress: Progress | None = None) -> Iterator[bytes]:
        """The content from the beginning; decompression runs in a thread of its own."""
        with _open(self.path) as raw:
            reader = _decompressor(raw, self.compression)
            pieces = self._pieces(reader, raw, progress)
            yield from _ahead(pieces) if self.compression else pieces

    def _pieces(self, reader: _Reader, raw: IO[bytes], progress: Progress | None) -> Iterator[bytes]:
        produced = 0
        while True:
            try:
                piece = reader.read(INFLATED if self.compression else CHUNK)
            except _stream_errors() as error:
                self.broken.append((f"{self.compression or 'file'}: {_reason(error)}", produced))
                return
            if not piece:
                self.size = self.size or raw.tell()  # a server need not tell it before
                return
            produced += len(piece)
            if progress:
                progress(min(raw.tell(), self.size), self.size)
            yield piece


def open_source(path: Path) -> Source:
    """The source at `path`; an error if there is nothing to read."""
    with _open(path) as raw:
        size = _size(raw, path)
        try:
            magic = raw.read(4)
        except OSError as error:
            raise InputError(f"{path}: {_reason(error)}") from error
        if not magic:
            raise InputError(f"{path}: the file is empty")
        compression = _compression(magic)
        raw.seek(0)
        source = Source(path, size, compression, b"")
        try:
            source.head = _decompressor(raw, compression).read(1 << 16)
        except _stream_errors() as error:
            says = f"broken {compression} data at its beginning: " if compression else ""
            raise InputError(f"{path}: {says}{_reason(error)}") from error
    if not source.head:
        raise InputError(f"{path}: the {compression} file holds no data")
    return source


def _size(raw: IO[bytes], path: Path) -> int:
    """Of the file; 0 where a server does not tell it."""
    if isinstance(path, RemotePath):
        return path.stat().st_size
    size = raw.seek(0, io.SEEK_END)
    raw.seek(0)
    return size


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _compression(magic: bytes) -> str:
    for name, start in (("gzip", GZIP), ("zstd", ZSTD), ("zip", ZIP)):
        if magic.startswith(start):
            return name
    return ""


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    try:
        if stat.S_ISFIFO(path.stat().st_mode):  # one that someone else would have to fill, and that ends once
            raise InputError(f"{path}: a pipe, where a file is needed")
        raw = path.open("rb", buffering=0)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:  # a zero byte in the name
        raise InputError(f"{str(path)!r}: {error}") from error
    with raw:
        yield cast(IO[bytes], raw)


def _decompressor(raw: IO[bytes], compression: str) -> _Reader:
    if compression == "gzip":
        return _Gzip(raw)
    if compression == "zstd":
        return _Zstd(raw)
    if compression == "zip":
        return _zip(raw)
    return raw


class _Gzip:
    """A gzip stream, member after member, that keeps all that came before a break."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._inflate, self._rest = raw, _inflater(), b""

    def read(self, size: int, /) -> bytes:
        while True:
            if self._inflate.eof:
                self._rest = self._inflate.unused_data.lstrip(b"\0") or self._raw.read(_PACKED).lstrip(b"\0")
                if not self._rest:
                    return b""
                if not self._rest.startswith(GZIP[: len(self._rest)]):
                    raise OSError("data after the end of the stream")
                self._inflate = _inflater()
            else:
                self._rest = self._inflate.unconsumed_tail or self._raw.read(_PACKED)
                if not self._rest:
                    raise EOFError("the file ends inside the stream")
            piece = self._inflate.decompress(self._rest, size)
            if piece:
                return bytes(piece)


def _inflater() -> Any:
    from foretrace.deflate import stream

    return stream.decompressobj(wbits=31)


class _Zstd:
    """A zstd stream, frame after frame, that keeps all that came before a break."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._frame = raw, _zstd_frame()

    def read(self, size: int, /) -> bytes:
        while True:
            packed = b""
            if self._frame.eof:
                packed = self._frame.unused_data or self._raw.read(_PACKED)
                if not packed:
                    return b""
                self._frame = _zstd_frame()
            elif self._frame.needs_input:
                packed = self._raw.read(_PACKED)
                if not packed:
                    raise EOFError("the file ends inside the stream")
            piece = self._frame.decompress(packed, size)
            if piece:
                return bytes(piece)


def _zstd_frame() -> Any:
    from foretrace.zstd import ZstdDecompressor

    return ZstdDecompressor()


def _stream_errors() -> tuple[type[Exception], ...]:
    """What the decompressors raise for a stream that is broken or ends early."""
    from lzma import LZMAError
    from zipfile import BadZipFile

    from foretrace.deflate import stream
    from foretrace.zstd import ZstdError

    # NotImplementedError, RuntimeError, struct.error: what a member's damaged header asks of zipfile.
    told = (
        EOFError,
        OSError,
        zlib.error,
        ZstdError,
        BadZipFile,
        LZMAError,
        NotImplementedError,
        RuntimeError,
    )
    return (*told, ValueError, struct.error, stream.error)


def _zip(raw: IO[bytes]) -> _Reader:
    import zipfile

    try:
        # A part of a URL may come in pieces, of which zipfile would take the first for all.
        archive = zipfile.ZipFile(raw if isinstance(raw, io.FileIO) else io.BufferedReader(cast(Any, raw)))
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise InputError(f"{raw.name}: broken zip file: {error}") from error
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) != 1:
        listed = ", ".join(member.filename for member in members[:5])
        raise InputError(f"{raw.name}: the zip holds {len(members)} files ({listed}); unpack the one to read")
    try:
        return cast(_Reader, archive.open(members[0]))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError) as error:
        raise InputError(f"{raw.name}: {error}") from error


def _ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces, produced in a thread while the caller works on the last one."""
    queue: Queue[bytes | BaseException | None] = Queue(maxsize=_AHEAD)
    stopped = threading.Event()

    def produce() -> None:
        try:
            for piece in pieces:
                if stopped.is_set():
                    return
                queue.put(piece)
            queue.put(None)
        except BaseException as error:  # handed to the consumer, which raises it
            queue.put(error)

    thread = threading.Thread(target=produce, name="foretrace-inflate", daemon=True)
    thread.start()
    try:
        while (piece := queue.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        stopped.set()
        while thread.is_alive():
            while not queue.empty():
                queue.get_nowait()
            thread.join(0.01)
