"""Copies between pageable memory and the device hold the host and run at a fraction of the bus."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.program import SYNC

_LARGE_BYTES = 1 << 20
# Pinned memory over PCIe 5 x16 moved 55.4 GB/s on the H200 of the corpus; older buses take their own peak.
_PINNED_SHARE = 0.87
_TO_DEVICE = Fix(
    "Pin the memory and do not wait for the copy.",
    "loader = DataLoader(dataset, pin_memory=True)\nx = x.to(device, non_blocking=True)",
)
_TO_HOST = Fix(
    "Copy into pinned memory, and read it a step later.",
    "pinned = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)   # once\n"
    "pinned.copy_(y, non_blocking=True)\n"
    "copied.record()        # an event; copied.synchronize() before pinned is read",
)


@rule
def pageable_copy(case: Case) -> Iterator[Finding]:
    """Large copies between the device and pageable host memory.

    What it does
    Looks for copies of at least 1 MB between the device and pageable memory. Those to the device are replayed at
    87 % of the bus, beside the kernels and not waited for; those to the host at the same speed, behind the kernels,
    and not waited for. The range includes that the host must wait for what it receives.

    Why it matters
    The driver stages such a copy through its own pinned buffer: the call returns only when nearly all of it
    has been moved, several times slower than the bus allows, and nothing else is launched meanwhile.

    Use instead
    DataLoader(..., pin_memory=True) and tensor.to(device, non_blocking=True). Towards the host,
    pinned.copy_(tensor, non_blocking=True) and an event to wait for before it is read.
    """
    copies = case.trace.require("copies", "no copies recorded; record with ProfilerActivity.CUDA")
    large = copies.filter(pl.col("pageable") & (pl.col("size_bytes") >= _LARGE_BYTES))
    found = case.tasks.join(
        large.select(pl.col("span_id").alias("id"), "size_bytes", "direction"), on="id", maintain_order="left"
    )
    for direction in ("HtoD", "DtoH"):
        mine = found.filter(pl.col("direction") == direction)
        if not mine.is_empty():
            yield _finding(case, mine, to_host=direction == "DtoH")


def _finding(case: Case, mine: pl.DataFrame, *, to_host: bool) -> Finding:
    moved, time = int(mine["size_bytes"].sum()), int(mine["dur_ns"].sum())
    return Finding(
        rule="pageable-copy",
        says=f"{mine.height / case.step_count:.3g} copies a step move {moved / case.step_count / 1e6:.3g} MB "
        f"{'to' if to_host else 'from'} pageable memory at {moved / max(time, 1):.3g} GB/s.",
        why="The host stands still until each has arrived, and the bus is mostly idle.",
        fix=_TO_HOST if to_host else _TO_DEVICE,
        evidence={
            "copies_per_step_count": mine.height / case.step_count,
            "moved_bytes": moved // case.step_count,
            "bytes_per_s": moved / max(time, 1) * 1e9,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().to_list()),
        change=_change(case, mine, to_host=to_host),
        unless="the host needs the values at once: then only the copy's own speed is gained."
        if to_host
        else "the host has no other work to launch meanwhile, or the data is made just before it is copied.",
    )


def _change(case: Case, mine: pl.DataFrame, *, to_host: bool) -> Change:
    """At the speed of pinned memory, without a wait; what goes to the host may have to be waited for all the same."""
    bus = case.device.pcie_bytes if case.device and case.device.pcie_bytes else 32e9
    durations = {
        task: min(dur, round(size / (bus * _PINNED_SHARE) * 1e9))
        for task, dur, size in mine.select("task", "dur_ns", "size_bytes").iter_rows()
    }
    modelled, calls = frozenset(durations), mine["call"].unique().to_numpy()
    if to_host:
        waits = np.unique(np.concatenate((calls, _waits_behind(case, calls))))
        edit = Edit(durations_ns=durations, modelled=modelled, unwaited_calls=waits)
        awaited = Edit(durations_ns=durations, modelled=modelled)
        return Change("copies into pinned memory and not waited for", edit, others=(awaited,))
    stream = len(case.program.stream_free_ns)
    moved = dict.fromkeys(durations, stream)
    edit = Edit(durations_ns=durations, modelled=modelled, unwaited_calls=calls, moved_tasks=moved)
    return Change("copies pinned and not waited for", edit)


def _waits_behind(case: Case, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """The next call behind each copy where it waits: .cpu() waits for its stream after the copy has been asked for."""
    behind: NDArray[np.int64] = np.unique(calls + 1)
    behind = behind[behind < len(case.program.kind)]
    waits: NDArray[np.int64] = behind[case.program.kind[behind] == SYNC]
    return waits
