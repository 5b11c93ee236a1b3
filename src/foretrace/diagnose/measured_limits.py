"""Measured limits: whether a change asks kernels for more than the device can do, by what Nsight Compute measured of them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from foretrace.analyze.concepts.device.profiled_kernels import joined
from foretrace.diagnose.case import Case
from foretrace.predict.changes import Change
from foretrace.units import shorten


def within_limits(case: Case, change: Change) -> Change:
    """The change; where it makes profiled kernels faster than the part of the device that they use most allows, with that doubt."""
    if case.trace.profile is None or not change.edit.durations_ns:
        return change
    reached = joined(case.trace).profiled.select(
        "group", reached=pl.max_horizontal("sm_pct", "memory_pct") / 100
    )
    spans = joined(case.trace).spans.join(reached, on="group").rename({"span_id": "id"})
    wanted = pl.DataFrame(
        list(change.edit.durations_ns.items()), schema={"task": pl.Int64, "wanted_ns": pl.Int64}, orient="row"
    )
    tasks = case.tasks.join(spans, on="id").join(wanted, on="task")
    beyond = tasks.filter(pl.col("wanted_ns") < pl.col("dur_ns") * pl.col("reached"))
    if beyond.is_empty():
        return change
    first = beyond.sort("dur_ns", descending=True).row(0, named=True)
    says = (
        f"{shorten(str(first['name']), 60)} already uses {100 * first['reached']:.0f} % of its limit, as Nsight Compute measured "
        f"it, so that the same work takes at least {first['reached']:.2f} of its time"
    )
    return replace(change, doubt=change.doubt or says)
