"""Throughput: items and tokens per second, as recorded, where the batch is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from foretrace.analyze.concepts.work import batch_size
from foretrace.trace import Trace
from foretrace.units import format_value

if TYPE_CHECKING:
    from foretrace.analyze.result import Value
    from foretrace.analyze.steps import StepWindow

_WHAT = ("items", "tokens")
_WHOLE = 100  # a rate from here on needs no decimals


def taken_in(trace: Trace, windows: tuple[StepWindow, ...]) -> dict[str, float]:
    """Items and tokens of a step, medians over the steps that averages are of; nothing where they are not known."""
    batch = batch_size.find(trace)
    averaged = [window.number for window in windows if window.averaged]
    found = {}
    for name, counts in (("items", batch.items), ("tokens", batch.tokens)) if batch else ():
        known = [counts[number] for number in averaged if number in counts]
        if averaged and len(known) == len(averaged):
            found[name] = float(np.median(known))
    return found


def values(trace: Trace, windows: tuple[StepWindow, ...]) -> dict[str, Value]:
    """Items and tokens of a step and per second as recorded, and what tells them; nothing where they are not known."""
    averaged = [window for window in windows if window.averaged]
    times = [window.gpu_ns for window in averaged if window.gpu_ns] or [window.host_ns for window in averaged]
    step_ns = float(np.median(times)) if times else 0.0
    batch, found = batch_size.find(trace), taken_in(trace, windows)
    if batch is None or not found or step_ns <= 0:
        return {}
    rates: dict[str, Value] = {}
    for name, count in found.items():
        rates |= {f"{name}_per_step_count": count, f"{name}_per_s": 1e9 * count / step_ns}
    return {**rates, "batch_source": batch.source}


def columns(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    """The table of steps with the items and tokens of each, and per second; as it is where they are not known."""
    batch = batch_size.find(trace)
    if batch is None:
        return table
    length = pl.coalesce("gpu_ns", "host_ns")
    for name, counts in (("items", batch.items), ("tokens", batch.tokens)):
        if counts:
            known = pl.Series([counts.get(step) for step in table["step"].to_list()], dtype=pl.Int64)
            table = table.with_columns(known.alias(f"{name}_count"))
            rate = pl.when(length > 0).then(1e9 * pl.col(f"{name}_count") / length)
            table = table.with_columns(rate.alias(f"{name}_per_s"))
    return table


def says(found: Mapping[str, Value]) -> str:
    """The values in words: `32 items a step, 1,200 items/s`, with tokens where they are known; empty where nothing is."""
    parts = []
    for name in _WHAT:
        count, rate = found.get(f"{name}_per_step_count"), found.get(f"{name}_per_s")
        if isinstance(count, float) and isinstance(rate, float):
            parts.append(_words(name, count, rate))
    return "; ".join(parts)


def in_words(counts: Mapping[str, float], step_ns: float | None) -> str:
    """The same for items and tokens of a step, at another step time."""
    known = counts.items() if step_ns else ()
    return "; ".join(_words(name, count, 1e9 * count / (step_ns or 1.0)) for name, count in known)


def _words(name: str, count: float, rate: float) -> str:
    per_s = f"{rate:,.0f}" if rate >= _WHOLE else format_value("", rate)
    return f"{count:,.0f} {name} a step, {per_s} {name}/s"
