"""Tables of Nsight Compute, damaged: cells, rows, units, quotes and bytes; read, and asked everything that counters answer."""

from __future__ import annotations

import csv
import gzip
import io
import random
from functools import cache
from pathlib import Path

from foretrace import analyze
from foretrace.errors import ForetraceError
from foretrace.ingest import ncu_metrics, open_trace
from foretrace.ingest.recordings import find_recording
from tests.analyze.nine_kernels import DETAILS, RAW, recording

_FEW_LAUNCHES, _FEW_ROWS = 4, 60
_OWN = 11  # columns that say which launch it is
_JOINED = 5  # every so many cases are joined to a recording
_CELLS = (
    "", "0", "-1", "1e308", "nan", "inf", "-inf", "n/a", "1,2,3", "9" * 400, "(1, 2, 3)", "(0, 0, 0)", "(99999999999, 1, 1)", "%", "Tbyte/s",
    "usecond", "Kbyte/Kbyte/s", "/", "//", "\u202e", "\ud7ff", "void f<<<<", "a" * 3000, "ID", "Process ID", "Section Name", "0x10", "1.2.3",
    " 7 ", '"', "==PROF==", "\0", "[lambda() (instance 1)]", "_ZN999", "(" * 300, "gpu__time_duration.sum",
)  # fmt: skip
_LINES = (
    "==PROF== Profiling",
    "loss 3.1",
    "",
    '"',
    '"0"',
    ",,,,",
    '"0","1"',
    "\t",
    "ID,Process ID,Process Name,",
    "=" * 5000,
)
_ANALYSES = ("profiled", "warp-stalls", "memory-access", "ncu-rules", "roofline", "trust", "overview")


@cache
def seeds() -> tuple[list[list[str]], ...]:
    """A few launches of the raw page, with the columns that are read and some that are not, and of the details page."""
    raw = _rows(RAW)
    wanted = [at for at, name in enumerate(raw[0]) if at < _OWN or ncu_metrics.wanted(name) or at % 200 == 0]
    small = [[row[at] for at in wanted] for row in raw[: 2 + _FEW_LAUNCHES]]
    return small, _rows(DETAILS)[:_FEW_ROWS]


def _rows(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode())))


def damaged(chance: random.Random) -> bytes:
    """A table with one to five things wrong in it, and sometimes bytes."""
    rows = [list(row) for row in chance.choice(seeds())]
    for _ in range(chance.randint(1, 5)):
        _spoil(rows, chance)
    out = io.StringIO()
    csv.writer(out, quoting=chance.choice((csv.QUOTE_ALL, csv.QUOTE_MINIMAL))).writerows(rows)
    lines = out.getvalue().splitlines()
    for _ in range(chance.choice((0, 0, 1, 3))):
        lines.insert(chance.randint(0, len(lines)), chance.choice(_LINES))
    data = bytearray("\n".join(lines).encode("utf-8", "replace"))
    for _ in range(chance.choice((0, 0, 0, 1, 8))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.1:
        del data[chance.randrange(len(data)) :]
    return bytes(data)


def _spoil(rows: list[list[str]], chance: random.Random) -> None:
    at = chance.randrange(len(rows))
    row = rows[at]
    match chance.randrange(8):
        case 0 | 1 | 2:
            if row:
                row[chance.randrange(len(row))] = chance.choice(_CELLS)
        case 3:
            del row[chance.randint(0, len(row)) :]
        case 4:
            rows.insert(chance.randrange(len(rows)), list(row))
        case 5:
            if len(rows) > 1:
                del rows[at]
        case 6:
            column = chance.randrange(max(len(rows[0]), 1))
            for each in rows:
                del each[column : column + 1]
        case 7:
            row += [chance.choice(_CELLS) for _ in range(chance.randint(1, 4))]


def attempt(data: bytes, case: int, folder: Path) -> str | None:
    """What is wrong with reading this and asking it; None if nothing is. Errors that are told in one line are right."""
    path = folder / "fuzz.csv"
    path.write_bytes(data)
    if case % _JOINED:
        try:
            trace = open_trace(path, cache=False)
        except ForetraceError as error:
            return None if "\n" not in str(error) else f"more than a line: {error}"
    else:
        program = folder / "trace.json"
        if not program.exists():
            recording().write(folder)
        try:
            trace = find_recording(program, counters=[path]).told(open_trace(program, cache=False))
        except ForetraceError as error:
            return None if "\n" not in str(error) else f"more than a line: {error}"
    for name in _ANALYSES:
        try:
            analyze.run(trace, name).to_dict()
        except ForetraceError as error:
            if "\n" in str(error):
                return f"more than a line: {error}"
    return None
