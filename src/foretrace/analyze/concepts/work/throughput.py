"""Throughput: items and tokens per second, as recorded, where the batch is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from foretrace.analyze.concepts.work import batch_size
from foretrace.trace import Trace
from foretrace.units import format_value

if TYPE_CHECKING:
    from foretrace.analyze.result import Value
    from foretrace.analyze.steps import StepWindow


def values(trace: Trace, windows: tuple[StepWindow, ...]) -> dict[str, Value]:
    """Items and tokens of a step and per second, over the steps that averages are of; nothing where they are not known."""
    batch = batch_size.find(trace)
    averaged = [window for window in windows if window.averaged]
    if batch is None or not averaged:
        return {}
    times = [window.gpu_ns for window in averaged if window.gpu_ns] or [window.host_ns for window in averaged]
    step_ns = float(np.median(times))
    found: dict[str, Value] = {}
    for name, counts in (("items", batch.items), ("tokens", batch.tokens)):
        known = [counts[window.number] for window in averaged if window.number in counts]
        if len(known) == len(averaged) and step_ns > 0:
            count = float(np.median(known))
            found |= {f"{name}_per_step_count": count, f"{name}_per_s": 1e9 * count / step_ns}
    return {**found, "batch_source": batch.source} if found else {}


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


def says(found: dict[str, Value]) -> str:
    """`32 items a step, 1,200 items/s` with tokens where they are known; empty where nothing is."""
    parts = []
    for name in ("items", "tokens"):
        count, rate = found.get(f"{name}_per_step_count"), found.get(f"{name}_per_s")
        if isinstance(count, float) and isinstance(rate, float):
            per_s = f"{rate:,.0f}" if rate >= 100 else format_value("", rate)
            parts.append(f"{count:,.0f} {name} a step, {per_s} {name}/s")
    return "; ".join(parts)
