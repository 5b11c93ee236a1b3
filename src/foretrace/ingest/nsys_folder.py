"""Folders that `nsys export --type parquetdir` or `arrowdir` writes: one file for each table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from foretrace.errors import InputError, is_fault
from foretrace.urls import on_disk

SUFFIXES = (".parquet", ".arrow", ".feather")
_ROWS = 500_000
_KNOWN = ("StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL")


def tables_among(files: Sequence[Path]) -> tuple[Path, ...]:
    """The tables of the one export that is among these files; none where there is none, or several."""
    tables = [file for file in files if file.suffix in SUFFIXES]
    folders = {file.parent for file in tables if file.stem in _KNOWN}
    return tuple(file for file in tables if file.parent in folders) if len(folders) == 1 else ()


class TableFolder:
    """The tables of an export, each in a file of its own."""

    def __init__(self, name: str, files: Sequence[Path]) -> None:
        self.name = name
        self.files = {file.stem: file for file in files}
        self._schemas: dict[str, dict[str, Any]] = {}

    @property
    def size_bytes(self) -> int:
        """Of all tables together."""
        return sum(file.stat().st_size for file in self.files.values())

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there, with all these columns."""
        return table in self.files and set(columns) <= set(self._schema(table))

    def frame(self, table: str, types: Mapping[str, Any], *, where: str = "") -> pl.DataFrame:
        """These columns of a table: empty where the table is not there, null where the column or a sound value is not."""
        return pl.concat(
            [pl.DataFrame(schema=dict(types)), *self.frames(table, types, where=where)], rechunk=True
        )

    def frames(self, table: str, types: Mapping[str, Any], *, where: str = "") -> Iterator[pl.DataFrame]:
        """The same, some rows at a time."""
        if table not in self.files:
            return
        there = self._schema(table)
        columns = [
            (pl.col(name).cast(dtype, strict=False) if name in there else pl.lit(None, dtype)).alias(name)
            for name, dtype in types.items()
        ]
        with self._told(table):
            scan = self._scan(table)
            rows = (scan.filter(pl.sql_expr(where)) if where else scan).select(columns).collect()
        for begin in range(0, rows.height, _ROWS):
            yield rows.slice(begin, _ROWS)

    def _schema(self, table: str) -> dict[str, Any]:
        if table not in self._schemas:
            with self._told(table):
                self._schemas[table] = dict(self._scan(table).collect_schema())
        return self._schemas[table]

    def _scan(self, table: str) -> pl.LazyFrame:
        file = on_disk(self.files[table])
        return pl.scan_parquet(file) if file.suffix == ".parquet" else _arrow(file)

    @contextmanager
    def _told(self, table: str) -> Iterator[None]:
        """What polars raises for a damaged file, as one line; a panic inside it is no Exception."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, pl.exceptions.PolarsError | OSError) and not is_fault(error):
                raise
            what = " ".join(str(error).split())[:200] or type(error).__name__
            raise InputError(f"{self.name}/{self.files[table].name}: cannot be read: {what}") from error


def _arrow(file: Path) -> pl.LazyFrame:
    """An Arrow file, or a stream of Arrow's, which nsys writes under the same suffix."""
    with file.open("rb") as opened:
        is_file = opened.read(6) == b"ARROW1"
    return pl.scan_ipc(file) if is_file else pl.read_ipc_stream(file).lazy()
