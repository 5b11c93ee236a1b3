"""What the page draws of a benchmark: which of its cases' fields the rows lie along, the lines over it, and the measures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretrace.bench.benchmark import OK, Benchmark
from foretrace.present.text.bench_tables import Rows, cell
from foretrace.sourced import JUDGEMENT, Count, Factor
from foretrace.units import visible

COLOURS = Count(8, "lines of one picture: the page's palette has so many colours", "web/src/base/tokens.css")
_WIDE = Factor(
    8.0, "the largest value of a swept field by the smallest, from which its axis is logarithmic", JUDGEMENT
)
_FAR = Factor(50.0, "the largest measure by the smallest, from which small ones would not show", JUDGEMENT)
_MIB = 1 << 20


@dataclass(frozen=True)
class Measure:
    """A field of a row as the page shows it: under a name whose suffix is its unit."""

    field: str
    title: str
    low: str = ""  # the fields of its interval; of a rate, the time that it is made from
    high: str = ""
    time: str = ""  # of a rate

    @property
    def name(self) -> str:
        """The name on the page."""
        return page_name(self.field)


_INTERVAL = ("low_ms", "high_ms")
_RATE = (*_INTERVAL, "median_ms")
# In the order of the page: time, speed, memory, share. A row has one of the first three.
MEASURES = (
    Measure("fwd_ms", "Forward pass, median", *_INTERVAL),
    Measure("p50_ms", "Latency, median", *_INTERVAL),
    Measure("median_ms", "Time, median", *_INTERVAL),
    Measure("bwd_ms", "Backward pass, median", "bwd_low_ms", "bwd_high_ms"),
    Measure("p99_ms", "Latency, 99th percentile"),
    Measure("tokens_per_s", "Tokens per second", *_RATE),
    Measure("items_per_s", "Items per second", *_RATE),
    Measure("tflops", "TFLOP per second", *_RATE),
    Measure("busbw_GBps", "Bandwidth of a link, GB per second", *_RATE),
    Measure("mem_before_bwd_MiB", "Memory before the backward pass"),
    Measure("peak_alloc_MiB", "Memory, peak"),
    Measure("roof_pct", "Share of the device's peak", *_RATE),
    Measure("mfu_pct", "Model FLOPs utilization", *_RATE),
    Measure("loss_error", "Error of the loss, as a share"),
)


def page_name(field: str) -> str:
    """The name of a field on the page, where the suffix is the unit: `fwd_ms` is `fwd_ns` there."""
    for suffix, (unit, _) in _UNITS.items():
        if field.endswith(suffix):
            return field.removesuffix(suffix) + unit
    return field


_UNITS = {"_ms": ("_ns", 1e6), "_MiB": ("_bytes", float(_MIB))}


def page_value(field: str, value: Any) -> Any:
    """A value in the unit of `page_name`; what is no finite number is not there."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not math.isfinite(value):
        return None
    factor = next((factor for suffix, (_, factor) in _UNITS.items() if field.endswith(suffix)), None)
    return value if factor is None else value * factor


def drawn(benchmark: Benchmark, rows: Rows) -> dict[str, Any]:
    """The rows of one part as pictures: one value per row in every list."""
    x, keys = _swept(benchmark.case, rows)
    return {
        "labels": names_of(benchmark, rows),
        "statuses": [row["status"] for row in rows],
        "slowed": [row.get("slowed_by") for row in rows],
        "x": None if x is None else _axis(x, benchmark.case, rows),
        **_lines(x, keys, rows),
        "plots": [plot for measure in _measures(rows) if (plot := _plot(measure, rows)) is not None],
    }


def names_of(benchmark: Benchmark, rows: Rows) -> list[str]:
    """What each row timed, in words, without what all rows share."""
    varied = _varied(benchmark.case, rows)
    return [_named(varied, row) or visible(benchmark.kind) for row in rows]


def _varied(case: Sequence[str], rows: Rows) -> list[str]:
    return [name for name in case if name != "part" and len(_values(rows, name)) > 1]


def _measures(rows: Rows) -> list[Measure]:
    """Those that rows have; a median that stands under another name too is drawn once."""
    found = [measure for measure in MEASURES if any(_number(row.get(measure.field)) for row in rows)]
    named = {measure.field for measure in found} & {"fwd_ms", "p50_ms"}
    return [measure for measure in found if not (named and measure.field == "median_ms")]


def _plot(measure: Measure, rows: Rows) -> dict[str, Any] | None:
    points = [_interval(measure, row) for row in rows]
    values = [point[0] for point in points if point[0] is not None]
    if not any(values):
        return None
    positive = all(value > 0 for value in values)
    return {
        "name": measure.name,
        "title": measure.title,
        "log": positive and max(values) >= _FAR * min(values),
        "values": [point[0] for point in points],
        "low": [point[1] for point in points],
        "high": [point[2] for point in points],
    }


def _interval(measure: Measure, row: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """The value of a row and the ends of its interval, in the page's unit."""
    value = _number(row.get(measure.field))
    if value is None or row["status"] != OK:
        return None, None, None
    ends = [_number(row.get(field)) for field in (measure.low, measure.high)]
    if measure.time:
        median = _number(row.get(measure.time))
        ends = [value * median / end if median and end else None for end in reversed(ends)]
    low, high = (page_value(measure.field, end) for end in ends)
    return page_value(measure.field, value), low, high


def _swept(case: Sequence[str], rows: Rows) -> tuple[str | None, list[str]]:
    """The field that rows lie along, the one with most numbers; and those that tell the lines over it apart."""
    varied = _varied(case, rows)
    numbers = [name for name in varied if all(_number(row.get(name)) is not None for row in rows)]
    if not numbers:
        return None, varied
    x = max(reversed(numbers), key=lambda name: len(_values(rows, name)))
    keys = [name for name in varied if name != x and not _follows(rows, x, name)]
    lines = {tuple(repr(row.get(key)) for key in keys) for row in rows}
    # Where no line has two points there is nothing to connect.
    return (x, keys) if len(lines) < len(rows) else (None, varied)


def _follows(rows: Rows, x: str, name: str) -> bool:
    """Whether one field says the other: the sides of a square."""
    return len({(row[x], repr(row.get(name))) for row in rows}) == len(_values(rows, x))


def _values(rows: Rows, name: str) -> list[str]:
    return list(dict.fromkeys(repr(row.get(name)) for row in rows))


def _axis(x: str, case: Sequence[str], rows: Rows) -> dict[str, Any]:
    equal = [name for name in case if name == x or all(row.get(name) == row[x] for row in rows)]
    values = [float(row[x]) for row in rows]
    wide = min(values) > 0 and max(values) >= _WIDE * min(values)
    return {"title": " = ".join(equal), "log": wide, "values": values}


def _lines(x: str | None, keys: list[str], rows: Rows) -> dict[str, Any]:
    """The lines; where they would be too many for one picture, fields are taken out that choose among several."""
    if x is None:
        return {"panels": [], "series": []}
    inside, outside = list(keys), []
    while inside and math.prod(len(_values(rows, key)) for key in inside) > COLOURS:
        outside.append(inside.pop(inside.index(max(inside, key=lambda key: len(_values(rows, key))))))
    chosen = [key for key in keys if key in outside]
    panels = list(dict.fromkeys(_named(chosen, row) for row in rows))
    found: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(rows):
        found.setdefault((_named(chosen, row), _named(inside, row)), []).append(number)
    series = [
        {"label": label, "panel": panels.index(panel), "rows": sorted(numbers, key=lambda at: rows[at][x])}
        for (panel, label), numbers in found.items()
    ]
    return {"panels": panels if chosen else [], "series": _coloured(series)}


def _coloured(series: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same line has the same colour in every picture: its number among the labels."""
    labels = list(dict.fromkeys(line["label"] for line in series))
    return [{**line, "colour": labels.index(line["label"]) % int(COLOURS)} for line in series]


def _named(keys: Sequence[str], row: Mapping[str, Any]) -> str:
    """What tells a line apart: a name stands for itself, a number needs its field's name."""
    told = []
    for key in keys:
        value = row.get(key)
        bare = isinstance(value, str)
        told.append(cell(key, value) if bare else f"{key} {cell(key, value)}")
    return ", ".join(told)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
