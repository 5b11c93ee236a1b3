"""Damaged exports and tables of Nsight Systems: bytes of SQLite files changed, values of rows, columns and tables, texts of CSVs."""

from __future__ import annotations

import random
import tempfile
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from tests.ingest import fuzz as scanners
from tests.ingest.nsys_exports import COLUMNS, Export, of_recording, process_id, thread_id
from tests.ingest.test_nsys import training, two_processes
from tests.ingest.test_nsys_stats import KERNELS, RANGES, table

VALUES: tuple[Any, ...] = (
    None, 0, -1, 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 0.5, -1e300, "", "text", "\u0000", b"\xff\x00", "9" * 40,
    thread_id(7, 9), process_id(9), 59, 60, 75, 10**15,
)  # fmt: skip
TEXTS = ("aten::mm, seq = 99999999999999999999, op_id = 1, sizes = [[", "step, op_id = -1", ", seq = ", "ProfilerStep#9999999999",
         "ProfilerStep#1", "x" * 5_000, "\ud7ff", "sizes = []")  # fmt: skip
SQLITE, BYTES, CSV = "sqlite", "bytes", "csv"


@cache
def exports() -> list[Export]:
    """What is damaged; small, since it is about values."""
    graph = Export().call("cudaGraphLaunch", 0, 10, 1)
    graph.work("GRAPH_TRACE", 20, 1020, 1, graphId=3, graphExecId=4)
    graph.add("META_DATA_CAPTURE", name="ENVIRONMENT", value="X=1")
    ranges = (
        Export()
        .range("train_step 1", 0, 100)
        .range("train_step 2", 100, 200)
        .range("train_step 3", 150, 260, kind=60)
    )
    return [of_recording(training()), two_processes(), graph, ranges]


@cache
def files() -> list[bytes]:
    """The same as SQLite files."""
    with tempfile.TemporaryDirectory() as folder:
        return [export.write(Path(folder) / "seed.sqlite").read_bytes() for export in exports()]


@cache
def tables() -> list[bytes]:
    """Tables of `nsys stats`."""
    return [
        table(KERNELS, "Instances", "Name").encode(),
        table(RANGES, "Instances", "Range", unit="ms", prefix=":").encode(),
        table(KERNELS, "Num Calls", "Name", unit="us").encode(),
    ]


def made(chance: random.Random, folder: Path) -> Path:
    """A damaged file."""
    kind = chance.choice((SQLITE, BYTES, BYTES, CSV))
    if kind == CSV:
        path = folder / "nvtx_pushpop_sum.csv"
        path.write_bytes(scanners.mutate(chance.choice(tables()), chance))
        return path
    path = folder / "fuzz.sqlite"
    if kind == BYTES:
        path.write_bytes(_changed(chance.choice(files()), chance))
        return path
    return _damaged(deepcopy(chance.choice(exports())), chance, path)


def _changed(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, most of them where pages and rows begin; or the file cut."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 40))):
        page = 4096 * chance.randrange(max(len(changed) // 4096, 1))
        at = page + chance.choice((chance.randrange(16), chance.randrange(110), chance.randrange(4096)))
        if at < len(changed):
            changed[at] = chance.choice((0, 1, 5, 13, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    if chance.random() < 0.1:
        del changed[chance.randrange(len(changed)) :]
    return bytes(changed) or b"SQLite format 3\0"


def _damaged(export: Export, chance: random.Random, path: Path) -> Path:
    """Values, rows, columns or tables changed."""
    columns = dict(COLUMNS)
    for _ in range(chance.randint(1, 6)):
        name = chance.choice(list(export.rows))
        rows = export.rows[name]
        choice = chance.randrange(8)
        if choice == 0 and len(export.rows) > 1:
            del export.rows[name]
        elif choice == 1:
            columns[name] = tuple(
                each for each in columns.get(name, tuple(rows[0])) if chance.random() < 0.8
            ) or ("start",)
        elif choice == 2:
            rows += deepcopy(chance.choices(rows, k=chance.choice((1, 3, 30))))
        else:
            for row in chance.choices(rows, k=chance.choice((1, 1, 3, 200))):
                column = chance.choice(list(row))
                row[column] = chance.choice(TEXTS if column in ("text", "value") else VALUES)
    return export.write(path, columns=columns)
