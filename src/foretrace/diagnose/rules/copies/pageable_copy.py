"""Copies that the host waits for: from and to pageable memory, or from pinned memory without non_blocking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import rule
from foretrace.predict.builder import STAGED_BYTES
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit, apply, merge
from foretrace.predict.program import BLOCKING_COPY, SYNC
from foretrace.predict.steady import step_ns

_LARGE_BYTES = 1 << 20
_MANY_SMALL = 3  # a step: from here on they are tiny-copies
_LEAST_GAIN = 1.02  # of the step, for less than a megabyte to be worth a word
# Pinned memory over PCIe 5 x16 moved 55.4 GB/s on the H200 of the corpus; older buses take their own peak.
_PINNED_SHARE = 0.87
_TO_DEVICE = Fix(
    "Pin the memory and do not wait for the copy.",
    "loader = DataLoader(dataset, pin_memory=True)\nx = x.to(device, non_blocking=True)",
)
# A stream of its own, with two buffers, is worth its trouble where it makes the step this much faster once more.
_PREFETCH_GAIN = 1.5
_PREFETCHED = Fix(
    "Pin the memory, and copy the next batch on a stream of its own while the GPU computes on this one.",
    "with torch.cuda.stream(copying):\n"
    "    following = following.to(device, non_blocking=True)   # from pinned memory\n"
    "torch.cuda.current_stream().wait_stream(copying)          # before it is used",
)
_TO_HOST = Fix(
    "Copy into pinned memory, and read it a step later.",
    "pinned = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)   # once\n"
    "pinned.copy_(y, non_blocking=True)\n"
    "copied.record()        # an event; copied.synchronize() before pinned is read",
)


@rule(
    title="Copies hold the host up",
    topic="Blocking copies",
    see="syncs",
)
def pageable_copy(case: Case) -> Iterator[Finding]:
    """Copies between the device and the host that hold the host: pageable ones, and pinned ones that are waited for.

    What it does
    Looks for copies of more than 64 KB between the device and pageable memory, and for copies to the device of any
    size and from any memory whose operator waits for them; where they move less than 1 MB a step, only if not waiting
    would make it 2 % faster. Many small ones are left to tiny-copies. All are replayed at 87 % of the bus and not waited
    for. Copies to the device take turns with the kernels, as they do in one stream; the range includes a stream of their
    own, which is advised, and replayed, where it makes the step half again as fast. Those to the host run behind the
    kernels; the range includes that the host must wait for what it receives.

    Why it matters
    The driver stages a pageable copy through its own pinned buffer: the call returns only when nearly all of it
    has been moved, several times slower than the bus allows. And where the host waits, for the copy and for all
    that the device had to do before it, nothing else is launched meanwhile.

    Use instead
    DataLoader(..., pin_memory=True) and tensor.to(device, non_blocking=True); for large inputs on a stream of their own,
    a batch ahead. Towards the host, pinned.copy_(tensor, non_blocking=True) and an event to wait for before it is read.
    """
    found = case.tasks.join(
        case.copies.select(pl.col("span_id").alias("id"), "size_bytes", "direction", "pageable"),
        on="id",
        maintain_order="left",
    ).with_columns(pl.col("pageable").fill_null(value=False))
    staged = pl.col("pageable") & (pl.col("size_bytes") > STAGED_BYTES)
    to_host = found.filter((pl.col("direction") == "DtoH") & staged)
    to_device = found.filter(pl.col("direction") == "HtoD")
    awaited = pl.Series(waited(case, to_device["call"].to_numpy()), dtype=pl.Boolean)
    to_device = to_device.filter(staged | awaited)
    small = to_device["size_bytes"] <= STAGED_BYTES
    if small.sum() >= _MANY_SMALL * case.step_count:
        to_device = to_device.filter(~small)
    groups = tuple(_Group(case, each) for each in (to_device, to_host) if not each.is_empty())
    if groups:
        yield from _finding(case, groups)


def waited(case: Case, calls: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For calls that copy, whether the host waits: within the call, or in one of the same operator right behind it."""
    program = case.program
    behind = np.minimum(calls + 1, len(program.kind) - 1)
    op = case.trace.spans["op_id"].fill_null(-1).cast(pl.Int64).gather(program.call_span).to_numpy()
    same = (op[calls] == op[behind]) & (op[calls] >= 0)
    held: NDArray[np.bool_] = program.kind[calls] == BLOCKING_COPY
    held |= same & (program.kind[behind] == SYNC)
    return held


class _Group:
    """The copies of one direction, and the edits that make them pinned: as advised, and as it may turn out."""

    def __init__(self, case: Case, copies: pl.DataFrame) -> None:
        self.copies = copies
        self.to_host = copies["direction"][0] == "DtoH"
        self.moved_bytes, self.dur_ns = int(copies["size_bytes"].sum()), int(copies["dur_ns"].sum())
        self.advised, self.other = _edits(case, copies, to_host=self.to_host)

    @property
    def fix(self) -> Fix:
        """What to do about them."""
        return _TO_HOST if self.to_host else _PREFETCHED if self.advised.moved_tasks else _TO_DEVICE

    def says(self, steps: int) -> str:
        """How many, how much, from or to where."""
        memory = "pageable memory" if self.copies["pageable"].any() else "pinned memory"
        return (
            f"{self.copies.height / steps:.3g} copies a step move {self.moved_bytes / steps / 1e6:.3g} MB "
            f"{'to' if self.to_host else 'from'} {memory} at {self.moved_bytes / max(self.dur_ns, 1):.3g} GB/s"
        )


def _finding(case: Case, groups: tuple[_Group, ...]) -> Iterator[Finding]:
    """One finding for both directions: who pins memory pins it for both."""
    moved, time = sum(each.moved_bytes for each in groups), sum(each.dur_ns for each in groups)
    change = Change(
        "copies pinned and not waited for",
        merge(each.advised for each in groups),
        others=tuple(merge(each) for each in _ends(groups)),
    )
    if moved < _LARGE_BYTES * case.step_count:
        gain = step_ns(case.program) / max(step_ns(change.applied(case.program)), 1)
        if gain < _LEAST_GAIN:
            return
    to_host = groups[-1].to_host
    all_copies = pl.concat(each.copies for each in groups)
    yield Finding(
        says="; ".join(each.says(case.step_count) for each in groups) + ". The host waits for them.",
        why="The host stands still until each has arrived, and the bus is mostly idle.",
        fix=groups[0].fix,
        evidence={
            "copies_per_step_count": all_copies.height / case.step_count,
            "moved_bytes": moved // case.step_count,
            "bytes_per_s": moved / max(time, 1) * 1e9,
            "spans": all_copies["id"].head(5).to_list(),
        },
        where=case.places(all_copies["op_id"].drop_nulls().to_list()),
        change=change,
        unless="the host needs the values at once: then only the copy's own speed is gained."
        if to_host
        else "the host has no other work to launch meanwhile, or the data is made just before it is copied.",
    )


def _ends(groups: tuple[_Group, ...]) -> Iterator[tuple[Edit, ...]]:
    """The edits of all groups with one of them as it may turn out."""
    for group in groups:
        yield tuple(each.other if each is group else each.advised for each in groups)


def _edits(case: Case, mine: pl.DataFrame, *, to_host: bool) -> tuple[Edit, Edit]:
    """At the speed of pinned memory, without a wait; the other is waited for, or beside the kernels, or in turn with them."""
    bus = case.device.pcie_bytes if case.device and case.device.pcie_bytes else 32e9
    slow = mine.filter(pl.col("pageable") & (pl.col("size_bytes") > STAGED_BYTES))
    durations = {
        task: min(dur, round(size / (bus * _PINNED_SHARE) * 1e9))
        for task, dur, size in slow.select("task", "dur_ns", "size_bytes").iter_rows()
    }
    faster = Edit(durations_ns=durations, modelled=frozenset(durations))
    calls = mine["call"].unique().to_numpy()
    waits = np.unique(np.concatenate((calls, _waits_behind(case, calls))))
    unawaited = replace(faster, unwaited_calls=waits)
    if to_host:
        return unawaited, faster
    stream = len(case.program.stream_free_ns)
    beside = replace(unawaited, moved_tasks=dict.fromkeys(mine["task"].to_list(), stream))
    in_turn_ns, beside_ns = (step_ns(apply(case.program, each)) for each in (unawaited, beside))
    return (beside, unawaited) if in_turn_ns > _PREFETCH_GAIN * beside_ns else (unawaited, beside)


def _waits_behind(case: Case, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """The next call behind each copy where it waits: .cpu() waits for its stream after the copy has been asked for."""
    behind: NDArray[np.int64] = np.unique(calls + 1)
    behind = behind[behind < len(case.program.kind)]
    waits: NDArray[np.int64] = behind[case.program.kind[behind] == SYNC]
    return waits
