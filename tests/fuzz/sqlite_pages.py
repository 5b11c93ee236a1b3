"""Pages of SQLite files, damaged, given to the native reader of tables as they are: SQLite itself is not asked whether they are sound."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

from tests.ingest.test_sqlite_native import write

PAGE_BYTES, LONG_PAGE_BYTES = 512, 4096
MOST_ROWS = 10_000_000  # that a damaged file may be taken to hold: a page may be read again, a tree may not run in circles


@cache
def files() -> list[tuple[int, int, bytes]]:
    """Page size, the table's first page, and content: a tree of several levels, and rows that go over many pages."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for page_bytes, rows, longest in (
            (PAGE_BYTES, 300, 30),
            (PAGE_BYTES, 40, 3_000),
            (LONG_PAGE_BYTES, 200, 60),
        ):
            path = write(Path(folder) / "x", rows, page_bytes=page_bytes, longest=longest)
            found.append((page_bytes, _root(path), path.read_bytes()))
    return found


def _root(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("select rootpage from sqlite_master where name = 't'").fetchone()
    return int(root)


def attempt(chance: random.Random, folder: Path) -> str | None:
    """What is wrong with reading a damaged file; None if nothing is."""
    from foretrace._scan import TableScanner

    page_bytes, root, content = chance.choice(files())
    path = folder / "fuzz.sqlite"
    path.write_bytes(_damaged(content, page_bytes, chance))
    size = path.stat().st_size if chance.random() < 0.9 else chance.choice((0, 1, 2**40, 2**63))
    reserved = 0 if chance.random() < 0.8 else chance.choice((1, 32, 100, 255))
    pages = page_bytes if chance.random() < 0.9 else chance.choice((0, 1, 512, 1000, 1024, 65536, 2**31))
    first = root if chance.random() < 0.8 else chance.choice((0, 1, 2, 3, 7, 2**32 - 1))
    ints, texts = chance.choice(
        (([0, 3], [2]), ([0, 1, 2, 3], []), ([], [2, 3]), ([4000], [0]), ([3, 0, 4], [1, 2]))
    )
    rows = 0
    with path.open("rb", buffering=0) as file:
        try:
            scan = TableScanner(file.fileno(), pages, reserved, size, first, ints, texts)
            while (read := scan.read(chance.choice((1, 7, 50_000)))) is not None:
                counts = {len(column) // 8 for column in read[0]} | {
                    column.count(b"\0") for column in read[1]
                }
                if len(counts) != 1:
                    return f"columns of one block have {sorted(counts)} rows"
                rows += counts.pop()
                if rows > MOST_ROWS:
                    return f"more than {MOST_ROWS:,} rows of {size:,} bytes"
        except ValueError:
            return None
    return None


def _damaged(content: bytes, page_bytes: int, chance: random.Random) -> bytes:
    """Bytes where pages, cells and rows begin, pointers to other pages, pages in place of others; or the file cut."""
    changed = bytearray(content)
    pages = len(changed) // page_bytes
    for _ in range(chance.choice((0, 1, 1, 2, 5, 40))):
        page = page_bytes * chance.randrange(pages)
        place = chance.choice(
            (chance.randrange(12), chance.randrange(page_bytes), page_bytes - 1 - chance.randrange(60))
        )
        match chance.randrange(6):
            case 0:
                pointer = chance.choice((0, 1, chance.randrange(pages + 2), 2**32 - 1)).to_bytes(4, "big")
                changed[page + 8 : page + 12] = pointer
            case 1:
                other = page_bytes * chance.randrange(pages)
                changed[page : page + page_bytes] = changed[other : other + page_bytes]
            case 2:
                changed[page + place : page + place + 9] = b"\xff" * min(9, len(changed) - page - place)
            case _:
                changed[page + place] = chance.choice(
                    (0, 1, 2, 5, 13, 0x7F, 0x80, 0xFF, chance.randrange(256))
                )
    if chance.random() < 0.1:
        del changed[chance.randrange(len(changed)) :]
    return bytes(changed)
