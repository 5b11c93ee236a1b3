"""Files of rocprofv3, Proton and XProf, damaged by structure and by bytes; read, and asked what such files answer."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from foretrace import analyze
from foretrace.errors import ForetraceError
from foretrace.ingest import open_trace
from tests.fuzz.mutations import NUMBERS, OTHERS, TEXTS
from tests.ingest.fuzz import mutate
from tests.ingest.rocprof_files import ROCPD_TABLES, csv_tables, json_document, rocpd_file
from tests.ingest.test_proton import H100, kernel, node
from tests.ingest.test_xprof import GPU

_CELLS = (*map(str, NUMBERS), *TEXTS, '"', "Agent", "GPU 99999999", "[1,2,3]", "1,2", "9" * 400)
ASKED = 20  # every so many cases are analysed, too
_ANALYSES = (
    "trust",
    "overview",
    "kernels",
    "sections",
    "roles",
    "launches",
    "idle",
    "gpu-efficiency",
    "tracks",
)


def rocpd(chance: random.Random) -> bytes:
    """A database with cells, columns or tables spoilt, or bytes."""
    if chance.random() < 0.4:
        return mutate(_database(), chance)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.deserialize(_database())
        for _ in range(chance.randint(1, 4)):
            _spoil_database(database, chance)
        return database.serialize()


def _spoil_database(database: sqlite3.Connection, chance: random.Random) -> None:
    plain = chance.choice(list(ROCPD_TABLES))
    table, column = f"rocpd_{plain}_0000aaaa_1", chance.choice(ROCPD_TABLES[plain].split(",")).strip()
    value = chance.choice(
        [*TEXTS, *(each for each in NUMBERS if abs(each) < 2**63), None, b"\xff\xfe", "{", '{"message": 5}']
    )
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()
    orders: tuple[tuple[str, tuple[Any, ...]], ...] = (
        (f'update "{table}" set "{column}" = ?', (value,)),
        (f'update "{table}" set "{column}" = ?', (value,)),
        (f'drop table "{table}"', ()),
        (f'alter table "{table}" rename column "{column}" to "other"', ()),
        (f'insert into "{table}" select id + 100, {", ".join(_quoted(plain))} from "{table}"', ()),
        (f'create view "rocpd_{plain}_0000cccc_3" as select * from "{table}"', ()),
    )
    try:
        database.execute(*chance.choice(orders))
    except (sqlite3.Error, OverflowError):
        return  # what an earlier order took away


def _quoted(table: str) -> list[str]:
    return [f'"{column.strip()}"' for column in ROCPD_TABLES[table].split(",")]


@cache
def _database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return rocpd_file(Path(folder) / "x.db").read_bytes()


def rocprof_csv(chance: random.Random) -> bytes:
    """A table with cells, columns or rows spoilt, or bytes."""
    text = chance.choice(list(csv_tables().values()))
    rows = list(csv.reader(io.StringIO(text * chance.choice((1, 1, 2)))))
    for _ in range(chance.randint(0, 4)):
        row = chance.choice(rows)
        match chance.randrange(5):
            case 0 | 1:
                row.insert(chance.randrange(len(row) + 1), chance.choice(_CELLS))
            case 2:
                if row:
                    row[chance.randrange(len(row))] = chance.choice(_CELLS)
            case 3:
                rows.insert(chance.randrange(len(rows) + 1), list(row))
            case 4:
                del row[chance.randrange(len(row) + 1) :]
    out = io.StringIO()
    csv.writer(out, quoting=chance.choice((csv.QUOTE_ALL, csv.QUOTE_MINIMAL))).writerows(rows)
    data = out.getvalue().encode("utf-8", "replace")
    return mutate(data, chance) if chance.random() < 0.4 else data


def rocprof_json(chance: random.Random) -> bytes:
    """rocprofv3's document with values replaced, or bytes."""
    return _spoilt(json_document(), chance)


def proton(chance: random.Random) -> bytes:
    """A profile or a timeline of Proton with values replaced, or bytes."""
    inner = node("attention", kernel("softmax", 300, 3), cycles=5)
    profile = [node("ROOT", node("step", inner, kernel("matmul", 700, 2, flops16=1e6), bytes=10)), H100]
    args = {"call_stack": ["ROOT", "step", "matmul"], "flops16": 1e6}
    event = {"name": "matmul", "cat": "kernel", "ph": "X", "ts": 1, "dur": 5, "tid": 7, "args": args}
    timeline = {"displayTimeUnit": "us", "traceEvents": [event, {**event, "cat": "triton", "pid": "CTA"}]}
    return _spoilt(chance.choice((profile, timeline)), chance)


def xprof(chance: random.Random) -> bytes:
    """A trace of XProf with values replaced, or bytes."""
    return _spoilt({"metadata": {"highres-ticks": True}, "traceEvents": GPU}, chance)


def _spoilt(document: Any, chance: random.Random) -> bytes:
    document = copy.deepcopy(document)
    for _ in range(chance.randint(0, 5)):
        holder, key = chance.choice(list(_places(document)))
        match chance.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case _:
                holder[key] = copy.deepcopy(chance.choice((*NUMBERS, *TEXTS, *OTHERS)))
        if not list(_places(document)):
            break
    data = json.dumps(document).encode("utf-8", "replace")
    return mutate(data, chance) if chance.random() < 0.4 else data


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every value within a document, by what holds it; deep ones of the damage itself are left alone."""
    found: list[tuple[Any, Any]] = []
    waiting = [(value, 0)]
    while waiting:
        holder, depth = waiting.pop()
        keys = (
            list(holder)
            if isinstance(holder, dict)
            else range(len(holder))
            if isinstance(holder, list)
            else ()
        )
        for key in keys:
            found.append((holder, key))
            if depth < 20:
                waiting.append((holder[key], depth + 1))
    return found


FORMATS: dict[str, Callable[[random.Random], bytes]] = {
    "rocpd": rocpd,
    "rocprof-csv": rocprof_csv,
    "rocprof-json": rocprof_json,
    "proton": proton,
    "xprof": xprof,
}


def attempt(data: bytes, case: int, folder: Path) -> str | None:
    """What is wrong with reading this and asking it; None if nothing is. Errors that are told in one line are right."""
    path = folder / "fuzz.bin"
    path.write_bytes(data or b" ")
    try:
        trace = open_trace(path, cache=False)
    except ForetraceError as error:
        return None if "\n" not in str(error) else f"more than a line: {error}"
    for name in _ANALYSES if case % ASKED == 0 else ():
        try:
            analyze.run(trace, name).to_dict()
        except ForetraceError as error:
            if "\n" in str(error):
                return f"more than a line: {error}"
    return None
