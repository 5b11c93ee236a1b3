"""Columns of large recordings in files without a name: in memory lies what is looked at, and the system takes it back when it must.

A column is written block after block, then mapped. Small ones stay in memory, and so do all where a file cannot be written: the
values are the same. Frames are made of mapped columns without a copy, through the native extension.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from foretrace.ingest.columns import NULLS, Array, nullable

try:
    from foretrace._scan import ArrowColumn
except ImportError:  # not built, or built before: frames copy, and nothing is mapped
    ArrowColumn = None

LEAST_BYTES = 4 << 20  # of a column that goes to a file
BLOCK_ROWS = 1 << 19  # worked on at a time
_ON_DISK = Path("/var/tmp")  # by convention; /tmp may be memory


def blocks(count: int) -> Iterator[slice]:
    """So many rows, some at a time."""
    for begin in range(0, count, BLOCK_ROWS):
        yield slice(begin, min(begin + BLOCK_ROWS, count))


class ColumnFile:
    """A column that grows, until `array()` is asked for."""

    def __init__(self, dtype: Any, store: ColumnStore) -> None:
        self.dtype, self._store = np.dtype(dtype), store
        self._parts: list[Array] = []
        self._file: FileIO | None = None
        self._bytes = 0  # in memory, or in the file

    def __len__(self) -> int:
        return self._bytes // int(self.dtype.itemsize)

    def append(self, values: Array) -> None:
        """Adds values at the end."""
        values = np.ascontiguousarray(values, self.dtype)
        if self._file is None:
            self._parts.append(values)
        elif not _written(self._file, values):
            self._back_to_memory()
            self._parts.append(values)
        self._bytes += values.nbytes
        if self._file is None and self._bytes >= LEAST_BYTES:
            self._to_file()

    def array(self) -> Array:
        """All values, to be read only; the column ends here."""
        if self._file is None:
            parts, self._parts = self._parts, []
            return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])
        mapped = mmap.mmap(self._file.fileno(), self._bytes, access=mmap.ACCESS_READ)
        self._file.close()
        self._store.mapped.append(weakref.ref(mapped))
        return np.frombuffer(mapped, self.dtype)

    def _to_file(self) -> None:
        file = self._store.new_file()
        if file is None:
            return
        if all(_written(file, part) for part in self._parts):
            self._file, self._parts = file, []
        else:
            file.close()
            self._store.folder = None

    def _back_to_memory(self) -> None:
        """No room is left for files."""
        assert self._file is not None
        self._file.seek(0)
        whole = bytearray(self._file.readall()[: self._bytes])
        self._file.close()
        self._file, self._parts, self._store.folder = None, [np.frombuffer(whole, self.dtype)], None


class ColumnStore:
    """The columns of one recording."""

    def __init__(self) -> None:
        usable = (
            ArrowColumn is not None and os.name == "posix" and not os.environ.get("FORETRACE_PURE_PYTHON")
        )
        self.folder = _folder() if usable else None  # none: columns stay in memory
        self.mapped: list[weakref.ref[mmap.mmap]] = []

    def column(self, dtype: Any) -> ColumnFile:
        """A new column."""
        return ColumnFile(dtype, self)

    def kept(self, parts: Iterable[Array], dtype: Any) -> Array:
        """The values of all parts as one column."""
        column = self.column(dtype)
        for part in parts:
            column.append(part)
        return column.array()

    def gathered(self, values: Array, rows: Array) -> Array:
        """The values of some rows."""
        return self.kept((values[rows[block]] for block in blocks(len(rows))), values.dtype)

    def release(self) -> None:
        """Takes mapped columns out of memory; they come back where they are looked at."""
        self.mapped = [each for each in self.mapped if each() is not None]
        for reference in self.mapped:
            mapped = reference()
            if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)

    def new_file(self) -> FileIO | None:
        """A file without a name; `None` where none can be had."""
        if self.folder is None:
            return None
        try:
            return tempfile.TemporaryFile(buffering=0, dir=self.folder)
        except OSError:
            self.folder = None
            return None


def series(name: str, values: Array, *, nulls: bool = True) -> pl.Series:
    """A series of a column, without a copy where it is large; with `nulls`, its type's NULL is null."""
    if ArrowColumn is None or values.nbytes < LEAST_BYTES:
        return (nullable(values) if nulls else pl.Series(values)).alias(name)
    code = values.dtype.str[1:]
    valid, missing = None, 0
    if nulls:
        there = np.empty((len(values) + 7) // 8, np.uint8)
        for block in blocks(len(values)):  # a multiple of eight
            known = values[block] != NULLS[code]
            missing += len(known) - int(np.count_nonzero(known))
            there[block.start // 8 : (block.stop + 7) // 8] = np.packbits(known, bitorder="little")
        valid = there if missing else None
    return pl.Series(name, ArrowColumn(code, values, valid, missing)).alias(name)


def _written(file: FileIO, values: Array) -> bool:
    left = values.data.cast("B") if values.nbytes else memoryview(b"")
    try:
        while left:
            left = left[file.write(left) or 0 :]
    except OSError:
        return False
    return True


def _folder() -> Path | None:
    if not any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")) and os.access(_ON_DISK, os.W_OK):
        return _ON_DISK
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # nowhere may be written to
        return None
