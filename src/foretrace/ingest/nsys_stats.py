"""Tables that `nsys stats` prints as CSV: totals by name, of ranges, kernels, calls and copies; no times of single spans.

Old and new report names, any unit of time, lines that nsys prints before a table, several tables of one recording beside one
another. The Trace has no spans; `trace.meta["stats"]` holds the rows (`ingest/totals.py`), in nanoseconds and bytes.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from foretrace import schema
from foretrace.errors import ForetraceError, FormatError, InputError, UsageError
from foretrace.ingest.formats import Format
from foretrace.ingest.secret_texts import mask_texts
from foretrace.ingest.source import Progress, Source, open_source
from foretrace.trace import Trace
from foretrace.urls import RemotePath

FORMAT = "nsys-stats"
FORMATS = (
    Format(
        "summaries of `nsys stats`",
        "*_cuda_gpu_kern_sum.csv, *_cuda_api_sum.csv, *_nvtx_pushpop_sum.csv, a folder of them",
        "nsys stats --format csv --output . REPORT",
        "totals",
        "when anything ran, which range is inside which: open the recording itself (nsys export --type sqlite)",
    ),
)
_TIMELINE = "the recording itself has one (`nsys export --type sqlite`)"
_LONGEST_BYTES = 64 << 20
_PREAMBLE = 200  # lines before the header
_TIMES = {"ns": 1, "nsec": 1, "us": 1e3, "μs": 1e3, "µs": 1e3, "usec": 1e3, "ms": 1e6, "msec": 1e6, "s": 1e9, "sec": 1e9,
          "nanoseconds": 1, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}  # fmt: skip
_SIZES = {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_HEADER = re.compile(
    r'"?(?:Time ?\(%\)"?,"?Total Time|Range"?,"?Style"?,"?Total Proj Time|Total ?\([KMG]i?B\)"?,)'
)
_UNIT = re.compile(r"\s*\(([^)]*)\)\s*\Z")
_SAME = {"average": "avg", "minimum": "min", "maximum": "max", "median": "med", "num calls": "calls", "instances": "calls",
         "count": "calls", "operations": "calls", "range instances": "calls", "total time": "total"}  # fmt: skip
# Report names, old and new, as they stand in file names
_REPORT = re.compile(
    r"[_.-]?(?:cuda_api(?:_gpu)?_sum|cuda_gpu_(?:kern_gb_|kern_|mem_time_|mem_size_)?sum|nvtx(?:_pushpop|_startend|_gpu_proj)?_sum|"
    r"cudaapisum|gpukern(?:gb)?sum|gpumem(?:time|size)sum|gpusum|nvtx(?:pp|pushpop|startend|gpuproj)?sum)"
)


def accepts(head: bytes) -> bool:
    """Whether a file that begins like this may hold a table of `nsys stats`."""
    lines = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").splitlines()[:_PREAMBLE]
    return any(_HEADER.match(line) for line in lines)


def read(
    source: Source, *, reader: str | None = None, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """The tables of one recording: this file, and those beside it that only the report's name tells from it."""
    if reader is not None:
        raise UsageError(f"{source.path.name}: tables of `nsys stats` have one reader")
    found = [source if path == source.path else _opened(path) for path in siblings(source.path)]
    return _read(source.path, [each for each in found if each is not None and accepts(each.head)], pid)


def parts(files: Sequence[Path]) -> tuple[Path, ...]:
    """The tables of one recording among these files; none where no two are, or where they are of several."""
    found = [file for file in files if _prefix(file) is not None and _is_table(file)]
    same = {(file.parent, _prefix(file)) for file in found}
    return tuple(found) if len(found) > 1 and len(same) == 1 else ()


def read_parts(
    folder: Path, files: Sequence[Path], *, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """All tables of a folder as one recording."""
    return _read(folder, [open_source(file) for file in files], pid)


def _read(path: Path, sources: Sequence[Source], pid: str | None) -> Trace:
    if pid is not None:
        raise UsageError(f"{path.name}: tables of `nsys stats` do not tell processes")
    stats: dict[str, list[dict[str, Any]]] = {}
    for source in sources:
        for kind, rows in _tables(source):
            stats.setdefault(kind, rows)
    if not any(stats.values()):
        raise FormatError(f"{path.name}: a table of `nsys stats` without a row that can be read")
    masked = sum(_masked(rows) for rows in stats.values())
    meta = {
        "totals": True, "stats": stats, "timeline_by": _TIMELINE, "files": [source.path.name for source in sources],
        "devices": [], "distributed": None, "world_size": None, "header": {}, "recorded": [],
        "steps": [], "windows": [], "processes": [], "events": 0, "base_ns": 0, "epoch_ns": 0, "rank": None, "rank_source": None,
        "file_bytes": sum(source.size for source in sources), "compression": sources[0].compression or None, "masked_texts": masked,
    }  # fmt: skip
    return Trace(path, FORMAT, meta, (), lambda table: pl.DataFrame(schema=schema.polars_schema(table)))


def _is_table(file: Path) -> bool:
    source = _opened(file)
    return source is not None and accepts(source.head)


def siblings(path: Path) -> list[Path]:
    """The files of the same recording, this one first."""
    prefix = _prefix(path)
    if prefix is None:
        return [path]
    try:
        beside = sorted(path.parent.iterdir())[:1_000]
    except OSError as error:
        raise InputError(f"{path.parent}: {error.strerror or error}") from error
    return [
        path,
        *(file for file in beside if file != path and _prefix(file) == prefix and _is_readable(file)),
    ]


def _prefix(path: Path) -> str | None:
    """A file's name before the name of the report; doubled names (`X.csv_X.csv`) and options of a report are left out too."""
    match = _REPORT.search(path.name)
    return path.name[: match.start()] if match else None


def _is_readable(file: Path) -> bool:
    return file.is_file() and (isinstance(file, RemotePath) or os.access(file, os.R_OK))


def _opened(path: Path) -> Source | None:
    try:
        return open_source(path)
    except ForetraceError:
        return None  # empty, as nsys leaves a report without data, or not readable: naming it tells why


def _text(source: Source) -> str:
    content = bytearray()
    for chunk in source.chunks():
        content += chunk
        if len(content) > _LONGEST_BYTES:
            raise InputError(
                f"{source.path.name}: longer than {_LONGEST_BYTES >> 20} MiB, which no table of `nsys stats` is"
            )
    return bytes(content).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").replace("\0", "")


def _tables(source: Source) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    """Every table in a file: nsys prints several into one where it is asked to."""
    lines = _text(source).splitlines()
    starts = [place for place, line in enumerate(lines) if _HEADER.match(line)]
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        try:
            rows = list(csv.reader(lines[begin:end]))  # the header at least
        except csv.Error as error:
            raise InputError(f"{source.path.name}: not a table (line {begin + 1}): {error}") from error
        header = [_column(name) for name in rows[0]]
        kind = _kind(
            [name for name, _ in header], counts_calls=any("num calls" in name.lower() for name in rows[0])
        )
        if kind is not None:
            yield kind, [row for values in rows[1:] if (row := _row(header, values))]


def _column(text: str) -> tuple[str, float]:
    """A column's name without its unit, and what one of its unit is in nanoseconds or bytes."""
    match = _UNIT.search(text)
    unit = match[1].strip().lower() if match else ""
    name = (text[: match.start()] if match else text).strip().lower()
    return _SAME.get(name, name), _TIMES.get(unit, _SIZES.get(unit, 1))


def _kind(names: Sequence[str], *, counts_calls: bool) -> str | None:
    """What the rows of a table are; tables of kernels and of calls differ in what the third column counts."""
    if "total proj time" in names:
        return "projected"
    if "range" in names:
        return "ranges"
    if "operation" in names:
        return None if "category" in names else "copies" if "time" in names else "sizes"
    if "name" in names and "gridxyz" not in names:
        return "calls" if counts_calls else "kernels"
    return None


def _row(header: Sequence[tuple[str, float]], values: Sequence[str]) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for (name, unit), text in zip(header, values, strict=False):
        if name in ("range", "name", "operation"):
            found["name"] = text.strip().removeprefix(":")
        elif (number := _number(text)) is not None:
            found[name] = number * unit
    total = found.get("total", found.get("total proj time"))
    calls = found.get("calls")
    if not found.get("name") or total is None or calls is None:
        return None
    row = {"name": found["name"], "calls_count": int(calls), "total": round(total)}
    for name in ("min", "max"):
        row[name] = round(found[name]) if name in found else None
    for name, column in (
        ("med", "median"),
        ("stddev", "deviation"),
        ("total range time", "host"),
        ("total gpu ops", "work_count"),
    ):
        row[column] = found.get(name)
    return row


def _number(text: str) -> float | None:
    try:
        number = float(text.strip().replace(",", ""))
    except ValueError:
        return None
    return number if 0 <= number < 1e18 else None


def _masked(rows: list[dict[str, Any]]) -> int:
    names = [row["name"] for row in rows]
    count = mask_texts(names)
    for row, name in zip(rows, names, strict=True):
        row["name"] = name
    return count
