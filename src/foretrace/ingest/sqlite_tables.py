"""SQLite files of profilers: opened read-only and without trust, their tables as frames, every failure in one line.

A file may be damaged or made to harm: nothing in it is executed, views are read only where a caller names one, and a value
of another type than its column is null.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from foretrace import scratch_folders
from foretrace.errors import FormatError, InputError
from foretrace.ingest import sqlite_native
from foretrace.ingest.source import Source
from foretrace.ingest.sqlite_native import Layout
from foretrace.urls import RemotePath, on_disk

MAGIC = b"SQLite format 3\0"
_ROWS = 50_000  # fetched at a time: few enough that their Python objects stay small beside the columns
_LONGEST_TEXT = 1 << 24  # bytes of one value
_LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Database:
    """An open SQLite file: its tables and views, each with its columns."""

    name: str  # of the file, for messages
    connection: sqlite3.Connection
    columns: Mapping[str, tuple[str, ...]]  # by table or view
    views: frozenset[str]
    layout: Layout | None = None  # where the native extension can read plain tables

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there, with all these columns."""
        return table in self.columns and set(columns) <= set(self.columns[table])

    def require(self, table: str, *columns: str) -> None:
        """Raises FormatError where the table or one of the columns is missing."""
        if table not in self.columns:
            raise FormatError(f"{self.name}: no table {table} in it")
        missing = [column for column in columns if column not in self.columns[table]]
        if missing:
            raise FormatError(f"{self.name}: no column {', '.join(missing)} in its table {table}")

    def frame(self, table: str, types: Mapping[str, Any], *, where: str = "") -> pl.DataFrame:
        """These columns of a table: empty where the table is not there, null where the column or a sound value is not.

        `types` are pl.Int64, pl.Float64 or pl.String; `where` is SQL of our own about these columns, never text from a file.
        """
        frames = self._by_sqlite(table, types, where) if where else self.frames(table, types)
        return pl.concat([pl.DataFrame(schema=dict(types)), *frames], rechunk=True)

    def frames(self, table: str, types: Mapping[str, Any], *, where: str = "") -> Iterator[pl.DataFrame]:
        """The same, some rows at a time: for tables too large to hold with their texts."""
        if self._is_plain(table, types):
            yield from self._by_extension(table, types, where)
        else:
            yield from self._by_sqlite(table, types, where)

    def _by_extension(self, table: str, types: Mapping[str, Any], where: str) -> Iterator[pl.DataFrame]:
        present = [column for column in types if self.has(table, column)]
        absent = [pl.lit(None, types[column]).alias(column) for column in types if column not in present]
        places = {column: (self.columns[table].index(column), types[column]) for column in present}
        for frame in sqlite_native.frames(self.layout, table, places, self.name) if present else ():  # type: ignore[arg-type]
            yield (frame.filter(pl.sql_expr(where)) if where else frame).with_columns(absent).select(*types)

    def _by_sqlite(self, table: str, types: Mapping[str, Any], where: str) -> Iterator[pl.DataFrame]:
        present = [column for column in types if self.has(table, column)]
        if not present:
            return
        absent = [pl.lit(None, types[column]).alias(column) for column in types if column not in present]
        listed = ", ".join(_quoted(column) for column in present)
        query = f"select {listed} from {_quoted(table)}" + (f" where {where}" if where else "")
        schema = {column: types[column] for column in present}
        for rows in self._fetched(query):
            yield _part(rows, schema).with_columns(absent).select(*types)

    def _is_plain(self, table: str, types: Mapping[str, Any]) -> bool:
        plain = self.layout is not None and table in self.layout.roots and table not in self.views
        return plain and set(types.values()) <= {pl.Int64, pl.String}

    def _fetched(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        with told(self.name), closing(self.connection.execute(query)) as cursor:
            while rows := cursor.fetchmany(_ROWS):
                yield rows


@contextmanager
def told(name: str) -> Iterator[None]:
    """SQLite's errors as one line about the file."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, OverflowError, MemoryError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{name}: the SQLite file cannot be read: {what}") from error


@contextmanager
def open_database(source: Source) -> Iterator[Database]:
    """The SQLite file of a source; a compressed one is unpacked into a temporary folder for as long as it is open."""
    name = source.path.name
    with _plain_file(source) as path, closing(_connected(path, name)) as connection:
        with told(name):
            _distrust(connection)
            database = replace(_database(name, connection), layout=sqlite_native.layout(path, connection))
        yield database


def _connected(path: Path, name: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with told(name):
        return sqlite3.connect(address, uri=True, isolation_level=None)


def _distrust(connection: sqlite3.Connection) -> None:
    """No function with side effects in a schema, no writing, no huge values, damaged pages noticed."""
    for setting in ("trusted_schema=off", "query_only=on", "cell_size_check=on", "cache_size=-16000"):
        connection.execute(f"pragma {setting}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
    connection.text_factory = lambda value: value.decode("utf-8", "replace")


def _database(name: str, connection: sqlite3.Connection) -> Database:
    rows = connection.execute(
        "select name, type, sql from sqlite_master where type in ('table', 'view') and name is not null"
    ).fetchall()
    # A virtual table runs code of its module.
    real = [
        (table, kind)
        for table, kind, sql in rows
        if isinstance(table, str) and not str(sql).upper().startswith("CREATE VIRTUAL")
    ]
    columns = {
        table: tuple(row[1] for row in connection.execute(f"pragma table_info({_quoted(table)})"))
        for table, _ in real
    }
    return Database(name, connection, columns, frozenset(table for table, kind in real if kind == "view"))


@contextmanager
def _plain_file(source: Source) -> Iterator[Path]:
    if not source.compression:
        yield on_disk(source.path)
        return
    folder = scratch_folders.make("sqlite")
    try:
        path = folder / "unpacked.sqlite"
        try:
            with path.open("wb") as file:
                for chunk in source.chunks():
                    file.write(chunk)
            if source.broken and isinstance(source.path, RemotePath):
                raise InputError(f"{source.path}: broken off: {source.broken[0][0]}")
        except OSError as error:
            raise InputError(
                f"{source.path.name}: cannot be unpacked into {folder}: {error.strerror or error}"
            ) from error
        yield path
    finally:
        scratch_folders.remove(folder)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _part(rows: list[tuple[Any, ...]], schema: Mapping[str, Any]) -> pl.DataFrame:
    """Rows as columns; where a value is not of its column's type, that value is null."""
    columns = zip(schema.items(), zip(*rows, strict=True), strict=True)
    return pl.DataFrame([_series(name, dtype, values) for (name, dtype), values in columns])


def _series(name: str, dtype: Any, values: tuple[Any, ...]) -> pl.Series:
    try:
        return pl.Series(name, values, dtype, strict=True)
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
        return pl.Series(name, [_sound(value, dtype) for value in values], dtype)


def _sound(value: Any, dtype: Any) -> Any:
    if dtype == pl.String:
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if dtype == pl.Int64:
        return value if isinstance(value, int) and abs(value) <= _LARGEST_INTEGER else None
    return float(value)
