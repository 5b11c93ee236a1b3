"""`benchmark`: a sweep of `foretrace bench`: where and how it was timed, whether to believe it, its rows and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from foretrace.bench.benchmark import CLOCKS, OK, Benchmark
from foretrace.present.text import bench_tables
from foretrace.present.text.bench_tables import Rows
from foretrace.present.web.bench_plots import drawn, page_name, page_value
from foretrace.present.web.bench_view import BenchView
from foretrace.present.web.resources import table
from foretrace.present.web.resources.bench_trust import noise_pct, trust
from foretrace.units import counted, format_value, visible

_UNKNOWN = "not recorded"
_HOW = {
    "back-to-back": "many calls in a row",
    "flush": "one call after the L2 cache was emptied",
    "single": "one call at a time, launches included",
}
_ENDS = ("low_ms", "high_ms")  # shown as noise
_FIRST_OF = ("fwd_ms", "p50_ms", "median_ms")  # what the interval without a prefix is of
_BESIDE = ("slowed_by", "reason")
_HEADINGS = {
    "tflops": "TFLOP/s", "tokens_per_s": "tokens/s", "items_per_s": "items/s", "mfu_pct": "MFU", "roof_pct": "of peak",
    "clock_mhz": "clock, MHz", "slowed_by": "held back by", "algbw_GBps": "algbw, GB/s", "busbw_GBps": "busbw, GB/s",
    "avg_ms": "mean", "std_ms": "std", "noise_pct": "noise", "bwd_noise_pct": "bwd noise",
}  # fmt: skip
_SAYS = {
    "median_ms": "the median of the samples",
    "avg_ms": "the mean of the samples",
    "std_ms": "the standard deviation of a sample",
    "fwd_ms": "the forward pass: the median of the samples",
    "bwd_ms": "the backward pass alone: the median of the samples",
    "noise_pct": "half of the median's interval at 99 %, as a share of the median",
    "bwd_noise_pct": "half of the interval of the backward pass's median, as a share of the median",
    "mem_before_bwd_MiB": "what torch's allocator holds between the forward and the backward pass",
    "formula_MiB": "what that must be, by the formula: docs/guide/bench.md",
    "fixed_MiB": "of that, workspaces of cuBLAS",
    "peak_alloc_MiB": "the most that tensors held at once",
    "peak_reserved_MiB": "the most that torch's allocator had taken from the device",
    "mfu_pct": "of the device's peak in this precision",
    "roof_pct": "of the device's peak in this precision",
    "clock_mhz": "the lowest clock seen while the row was timed",
    "slowed_by": "what held the clock back: power, heat",
    "speedup": "how many times as fast as the first row",
    "status": "OK, OOM (out of memory), ERROR or TIMEOUT",
}


def benchmark(view: BenchView) -> dict[str, Any]:
    """The whole benchmark, without its samples."""
    found = view.benchmark
    return {
        "name": view.name,
        "says": _says(found),
        "facts": [visible(found.device), f"torch {visible(found.torch)}", counted(len(found.rows), "case")],
        "about": _about(found),
        "trust": trust(found),
        "parts": [_part(found, name, rows) for name, rows in bench_tables.parts(found)],
        # What was seen of the clock stands in the trust panel.
        "notes": [visible(note) for note in found.notes if not note.startswith(CLOCKS)],
        "markdown": bench_tables.markdown(found),
    }


def _says(found: Benchmark) -> str:
    times = [row["median_ms"] for row in found.rows if row["status"] == OK and row.get("median_ms")]
    failed = [row["status"] for row in found.rows if row["status"] != OK]
    said = f"{found.kind}: {counted(len(found.rows), 'case')} on {found.device}"
    if times:
        ends = dict.fromkeys(format_value("_ns", 1e6 * time) for time in (min(times), max(times)))
        said += f", {' to '.join(ends)}"
    counts = [f"{failed.count(status)} {status}" for status in dict.fromkeys(failed)]
    return visible("; ".join((said, *counts)))


def _about(found: Benchmark) -> list[dict[str, Any]]:
    """How it came about: where, when, by which command."""
    timing = found.timing
    how = _HOW.get(str(timing.get("how")), _UNKNOWN)
    if timing.get("isolate") or timing.get("cold"):
        how += ", each case in a process of its own"
    known = [
        ("Device", found.device, False),
        ("torch", found.torch, False),
        ("Date", _date(found.began), False),
        ("A sample", how, False),
        ("Command", found.command or _UNKNOWN, found.command is not None),
    ]
    return [{"label": label, "value": visible(value), "code": code} for label, value, code in known]


def _date(began: str | None) -> str:
    if began is None:
        return _UNKNOWN
    try:
        return f"{datetime.fromisoformat(began):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return began


def _part(found: Benchmark, name: str, rows: Rows) -> dict[str, Any]:
    same = bench_tables.constants(found, rows)
    shared = ", ".join(f"{field} {bench_tables.cell(field, value)}" for field, value in same.items())
    return {
        "name": visible(name),
        "says": f"All rows: {shared}" if shared else "",
        "table": _table(found, name, rows, _columns(found, rows, list(same))),
        **drawn(found, rows),
    }


def _columns(found: Benchmark, rows: Rows, same: Sequence[str]) -> list[str]:
    """What was timed, how that went, then what was measured; the ends of an interval are told as the noise beside it."""
    known = bench_tables.columns_of(rows)
    case = [name for name in found.case if name in known and name not in (*same, "part")]
    noises = {"bwd_ms": "bwd_noise_pct"}
    noises |= {name: "noise_pct" for name in _FIRST_OF[::-1] if name in known and "low_ms" in known}
    measured: list[str] = []
    for name in known:
        if name in (*found.case, "part", "status", *_BESIDE) or name.endswith(_ENDS):
            continue
        measured += [name, noises[name]] if name in noises and noises[name] not in measured else [name]
    slowed, reason = ([name] if name in known else [] for name in _BESIDE)
    return [*case, "status", *slowed, *measured, *reason]


def _table(found: Benchmark, name: str, rows: Rows, columns: Sequence[str]) -> dict[str, Any]:
    shown = [{column: _cell(row, column) for column in columns} for row in rows]
    frame = bench_tables.frame(shown, columns).rename({column: page_name(column) for column in columns})
    made = table.of_frame(frame, {page_name(column): says for column, says in _SAYS.items()})
    for column, field in zip(made["columns"], columns, strict=True):
        column["heading"] = field if field in found.case else _HEADINGS.get(field, column["heading"])
    return {
        "name": visible(name or found.kind),
        "says": f"{counted(len(rows), 'row')} of {visible(found.kind)}",
        **made,
        "values": [],
        "notes": [],
    }


def _cell(row: Any, column: str) -> Any:
    if column.endswith("noise_pct"):
        return noise_pct(row, column.removesuffix("noise_pct"))
    return page_value(column, row.get(column))
