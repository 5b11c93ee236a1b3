"""Columns of large SQLite tables through the native extension: some thirty times as fast as rows of Python objects.

Read are plain tables of UTF-8 files; all others, and everything where the extension is not there, go through sqlite3.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from foretrace.errors import InputError
from foretrace.ingest.columns import nullable

try:
    from foretrace._scan import TableScanner
except ImportError:  # not built, or built before: sqlite3 reads the same
    TableScanner = None

_ROWS = 50_000  # few enough that their texts stay small beside the columns
# What changes how rows lie in the file, or what a column that is not stored holds
_UNUSUAL = re.compile(r"(?i)primary\s+key|without\s+rowid|generated|\bdefault\b|\bas\s*\(")


@dataclass(frozen=True)
class Layout:
    """Where the plain tables of a file begin, and how large its pages are."""

    path: Path
    page_bytes: int
    reserved_bytes: int
    roots: Mapping[str, int]


def layout(path: Path, connection: sqlite3.Connection) -> Layout | None:
    """How to read the file without SQLite; `None` where only SQLite can."""
    if TableScanner is None or not hasattr(os, "pread") or os.environ.get("FORETRACE_PURE_PYTHON"):
        return None
    with path.open("rb") as file:
        head = file.read(100)
    (encoding,) = connection.execute("pragma encoding").fetchone()
    (page_bytes,) = connection.execute("pragma page_size").fetchone()
    if encoding != "UTF-8" or len(head) < 100 or head[18:20] != b"\1\1":  # 2: a file with a write-ahead log
        return None
    rows = connection.execute("select name, rootpage, sql from sqlite_master where type = 'table'").fetchall()
    roots = {
        name: root
        for name, root, sql in rows
        if isinstance(root, int) and 0 < root < 2**32 and isinstance(sql, str) and not _UNUSUAL.search(sql)
    }
    return Layout(path, int(page_bytes), head[20], roots)


def frames(
    found: Layout, table: str, columns: Mapping[str, tuple[int, Any]], name: str
) -> Iterator[pl.DataFrame]:
    """These columns, each by its place in the table and its type (Int64 or String), some rows at a time."""
    ints = [place for place, dtype in columns.values() if dtype == pl.Int64]
    texts = [place for place, dtype in columns.values() if dtype == pl.String]
    with found.path.open("rb", buffering=0) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            scan = TableScanner(
                file.fileno(), found.page_bytes, found.reserved_bytes, size, found.roots[table], ints, texts
            )
            while (read := scan.read(_ROWS)) is not None:
                yield _frame(read, columns)
        except ValueError as error:
            raise InputError(
                f"{name}: the SQLite file cannot be read: its table {table} is damaged ({error})"
            ) from error


def _frame(read: tuple[list[bytes], list[bytes]], columns: Mapping[str, tuple[int, Any]]) -> pl.DataFrame:
    numbers, texts = (iter(values) for values in read)
    made = {}
    for column, (_, dtype) in columns.items():
        if dtype == pl.Int64:
            made[column] = nullable(np.frombuffer(next(numbers), np.int64))
        else:
            made[column] = _texts(next(texts))
    return pl.DataFrame(made)


def _texts(data: bytes) -> pl.Series:
    """Texts, each behind a zero byte and T, or N for none."""
    # Split by polars: a list of Python's texts takes twice as long.
    tagged = pl.Series("text", [data.decode("utf-8", "replace")]).str.split("\0").explode().slice(1)
    is_text = pl.col("text").str.starts_with("T")
    return tagged.to_frame().select(pl.when(is_text).then(pl.col("text").str.strip_prefix("T"))).to_series()
