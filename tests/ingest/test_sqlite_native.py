"""Tables read from their pages are those that SQLite reads."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

from foretrace.errors import InputError
from foretrace.ingest.source import open_source
from foretrace.ingest.sqlite_tables import open_database

pytestmark = [
    pytest.mark.fast,
    pytest.mark.skipif(find_spec("foretrace._scan") is None, reason="the native extension was not built"),
]
TYPES = {"c": pl.String, "a": pl.Int64, "d": pl.Int64, "absent": pl.String}


def write(path: Path, rows: int, *, page_bytes: int = 4096, longest: int = 40) -> Path:
    """A table of values of all sizes, some of other types; texts as long as asked."""
    chance = random.Random(rows)
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"pragma page_size={page_bytes}")
        database.execute("create table other (a INTEGER)")
        database.execute("create table t (a INTEGER, b REAL, c TEXT, d INTEGER)")
        database.execute("create table keyed (a INTEGER PRIMARY KEY, c TEXT)")
        for number in range(rows):
            value = chance.choice(
                (None, 0, 1, -1, chance.getrandbits(chance.randint(1, 63)), -chance.getrandbits(40))
            )
            text = chance.choice(
                (None, "", "é" * chance.randint(0, longest), "x" * chance.randint(0, longest), b"blob", 7.5)
            )
            database.execute(
                "insert into t values (?, ?, ?, ?)", (value, 0.5, text, chance.choice((value, 2.5, number)))
            )
        database.execute("insert into t (a) values (5)")
        database.execute("alter table t add column e INTEGER")
        database.execute("insert into keyed values (7, 'seven')")
    return path


def both(path: Path, monkeypatch: pytest.MonkeyPatch, table: str = "t") -> tuple[pl.DataFrame, pl.DataFrame]:
    with open_database(open_source(path)) as database:
        assert database.layout is not None
        quick = database.frame(table, TYPES)
    monkeypatch.setenv("FORETRACE_PURE_PYTHON", "1")
    with open_database(open_source(path)) as database:
        assert database.layout is None
        return quick, database.frame(table, TYPES)


@pytest.mark.parametrize(
    ("rows", "page_bytes", "longest"),
    [(0, 4096, 40), (3, 4096, 40), (3_000, 512, 40), (400, 1024, 5_000), (60, 65536, 200_000)],
)
def test_values_are_those_of_sqlite(
    rows: int, page_bytes: int, longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small pages make a deep tree, long texts lie on pages of their own."""
    quick, slow = both(write(tmp_path / "x", rows, page_bytes=page_bytes, longest=longest), monkeypatch)
    assert quick.height == rows + 1
    assert quick.equals(slow)


def test_a_table_with_a_key_is_left_to_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = both(write(tmp_path / "x", 3), monkeypatch, "keyed")
    assert quick.rows() == slow.rows() == [("seven", 7, None, None)]


@pytest.mark.parametrize("seed", range(50))
def test_damaged_pages_are_one_line_or_read(seed: int, tmp_path: Path) -> None:
    """Neither a crash nor a hang, whatever stands in a page."""
    chance = random.Random(seed)
    content = bytearray(write(tmp_path / "x", 60, page_bytes=512, longest=900).read_bytes())
    for _ in range(chance.choice((1, 3, 30))):
        at = 512 * chance.randrange(2, len(content) // 512) + chance.choice(
            (chance.randrange(12), chance.randrange(512))
        )
        content[at] = chance.choice((0, 2, 5, 13, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    path = tmp_path / "damaged"
    path.write_bytes(content)
    said = ""
    try:
        with open_database(open_source(path)) as database:
            assert database.frame("t", TYPES).schema == pl.Schema(TYPES)
    except InputError as error:
        said = str(error)
    assert not said or ("cannot be read" in said and len(said.splitlines()) == 1)
