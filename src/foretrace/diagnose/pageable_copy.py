"""Copies from pageable memory hold the host and run at a fraction of the bus."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_LARGE_BYTES = 1 << 20
# Pinned memory over PCIe 5 x16 moved 55.4 GB/s on the H200 of the corpus; older buses take their own peak.
_PINNED_SHARE = 0.87


@rule
def pageable_copy(case: Case) -> Iterator[Finding]:
    """Large copies from pageable host memory to the device.

    What it does
    Looks for host-to-device copies of at least 1 MB whose source is pageable memory.

    Why it matters
    The driver stages such a copy through its own pinned buffer: the call returns only when nearly all of it
    has been moved, several times slower than the bus allows, and nothing else is launched meanwhile.

    Use instead
    DataLoader(..., pin_memory=True) and tensor.to(device, non_blocking=True).
    """
    copies = case.trace.require("copies", "no copies recorded; record with ProfilerActivity.CUDA")
    large = copies.filter(
        (pl.col("direction") == "HtoD") & pl.col("pageable") & (pl.col("size_bytes") >= _LARGE_BYTES)
    )
    mine = case.tasks.join(
        large.select(pl.col("span_id").alias("id"), "size_bytes"), on="id", maintain_order="left"
    )
    if mine.is_empty():
        return
    bus = case.device.pcie_bytes if case.device and case.device.pcie_bytes else 32e9
    stream = len(case.program.stream_free_ns)
    edit = Edit(
        durations_ns={
            task: min(dur, round(size / (bus * _PINNED_SHARE) * 1e9))
            for task, dur, size in mine.select("task", "dur_ns", "size_bytes").iter_rows()
        },
        modelled=frozenset(mine["task"]),
        unwaited_calls=mine["call"].unique().to_numpy(),
        moved_tasks=dict.fromkeys(mine["task"], stream),
    )
    moved, time = int(mine["size_bytes"].sum()), int(mine["dur_ns"].sum())
    yield Finding(
        rule="pageable-copy",
        says=f"{mine.height / case.step_count:.3g} copies a step move {moved / case.step_count / 1e6:.3g} MB from "
        f"pageable memory at {moved / max(time, 1):.3g} GB/s.",
        why="The host stands still until each has arrived, and the bus is mostly idle.",
        fix=Fix(
            "Pin the memory and do not wait for the copy.",
            "loader = DataLoader(dataset, pin_memory=True)\nx = x.to(device, non_blocking=True)",
        ),
        evidence={
            "copies_per_step_count": mine.height / case.step_count,
            "moved_bytes": moved // case.step_count,
            "bytes_per_s": moved / max(time, 1) * 1e9,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().to_list()),
        change=Change("copies pinned and not waited for", edit),
        unless="the host has no other work to launch meanwhile, or the data is made just before it is copied.",
    )
