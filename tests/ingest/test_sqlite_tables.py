"""SQLite files are opened read-only, their tables become frames, and failures are one line."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from foretrace.errors import FormatError, InputError
from foretrace.ingest.source import open_source
from foretrace.ingest.sqlite_tables import open_database

pytestmark = pytest.mark.fast
TYPES = {"id": pl.Int64, "size": pl.Float64, "name": pl.String, "absent": pl.Int64}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tables.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute('create table "a ""table""" (id, size, name)')
        rows = [(1, 2.5, "first"), ("two", 3, b"bytes"), (None, None, None), (2**62, "x", 7)]
        database.executemany('insert into "a ""table""" values (?, ?, ?)', rows)
        database.execute('insert into "a ""table""" values (5, 1.0, cast(x\'c3\' as text))')
        database.execute('create view seen as select id from "a ""table"""')
    return path


def test_a_value_of_another_type_is_null_and_an_absent_column_too(file: Path) -> None:
    with open_database(open_source(file)) as database:
        rows = database.frame('a "table"', TYPES).rows()
        assert database.views == {"seen"}
        assert database.has('a "table"', "id")
        assert not database.has('a "table"', "absent")
    assert rows == [
        (1, 2.5, "first", None),
        (None, 3.0, None, None),
        (None, None, None, None),
        (2**62, None, None, None),
        (5, 1.0, "\ufffd", None),
    ]


def test_an_absent_table_is_empty_and_one_that_is_needed_is_told(file: Path) -> None:
    with open_database(open_source(file)) as database:
        assert database.frame("absent", TYPES).schema == pl.Schema(TYPES)
        with pytest.raises(FormatError, match=r"tables\.sqlite: no table absent in it"):
            database.require("absent")
        with pytest.raises(FormatError, match="no column end in its table seen"):
            database.require("seen", "id", "end")


def test_a_compressed_file_is_unpacked_and_nothing_is_left(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    packed = tmp_path / "tables.sqlite.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    with open_database(open_source(packed)) as database:
        assert database.frame("seen", {"id": pl.Int64}).height == 5
        assert list(folder.iterdir())
    assert not list(folder.iterdir())


def test_nothing_can_be_written(file: Path) -> None:
    with open_database(open_source(file)) as database, pytest.raises(sqlite3.OperationalError):
        database.connection.execute("create table more (id)")


def test_a_damaged_file_is_one_line(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    file.write_bytes(content)
    with (
        pytest.raises(InputError, match=r"tables\.sqlite: the SQLite file cannot be read: "),
        open_database(open_source(file)) as database,
    ):
        database.frame('a "table"', TYPES)
