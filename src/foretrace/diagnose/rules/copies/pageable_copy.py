"""Copies that the host waits for: from and to pageable memory, or from pinned memory without non_blocking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.host_copies import (  # noqa: F401  # named on the page
    MANY_SMALL,
    STAGED_SPEED,
    host_copies,
    waited,
    waits_after,
)
from foretrace.diagnose.rule import rule
from foretrace.diagnose.seen import seen
from foretrace.predict.changes import Change
from foretrace.predict.costs.transfer import PINNED_SHARE, STAGED_BYTES, pinned_ns  # noqa: F401  # named on the page
from foretrace.predict.edits import Edit, apply, merge
from foretrace.predict.numbers import Calls
from foretrace.predict.steady import step_ns
from foretrace.sourced import JUDGEMENT, Bytes, Factor
from foretrace.units import format_value

LARGE_BYTES = Bytes(1 << 20, "moved in a step; less must be worth a word", JUDGEMENT)
LEAST_GAIN = Factor(1.02, "times as fast a step, for copies of less", JUDGEMENT)
PREFETCH_GAIN = Factor(
    1.5,
    "times as fast a step once more, for a stream of its own with two buffers to be worth its trouble",
    JUDGEMENT,
)
_STAGED = pl.col("pageable") & (pl.col("size_bytes") > STAGED_BYTES)
_TO_DEVICE = Fix(
    "Pin the memory and do not wait for the copy.",
    "loader = DataLoader(dataset, pin_memory=True)\nx = x.to(device, non_blocking=True)"
    "   # not written to on the host before the copy is done",
)
_PREFETCHED = Fix(
    "Pin the memory, and copy the next batch on a stream of its own while the GPU computes on this one.",
    "with torch.cuda.stream(copying):\n"
    "    following = following.to(device, non_blocking=True)   # from pinned memory\n"
    "torch.cuda.current_stream().wait_stream(copying)          # before it is used\n"
    "following.record_stream(torch.cuda.current_stream())      # so that its memory is not reused too early",
)
_TO_HOST = Fix(
    "Copy into pinned memory, and read it a step later.",
    "pinned = torch.empty(y.shape, dtype=y.dtype, pin_memory=True)   # once\n"
    "pinned.copy_(y, non_blocking=True)\n"
    "copied.record()        # an event; copied.synchronize() before pinned is read",
)


@rule("Copies block the host", "Blocking copies", see="syncs")
def pageable_copy(case: Case) -> Iterator[Finding]:
    """Copies between the device and the host that block the host: pageable ones, and pinned ones that are waited for.

    Finds copies of more than {STAGED_BYTES} between the device and pageable memory, and copies to the device of any size
    and from any memory whose operator waits for them. Where they move less than {LARGE_BYTES} a step, not waiting must make
    it {LEAST_GAIN} times as fast. {MANY_SMALL} and more small ones a step are left to tiny-copies.

    ROCm does not record which memory is pageable: large copies at less than {STAGED_SPEED} of the speed of pinned memory are taken
    for such, and nothing is promised then.

    Slow
        loader = DataLoader(dataset)
        x = x.to(device)

    Fast
        loader = DataLoader(dataset, pin_memory=True)
        x = x.to(device, non_blocking=True)

    Why
    The driver stages a pageable copy through its own pinned buffer: the call returns only when nearly all of it has been
    moved, several times slower than the bus allows. And where the host waits, for the copy and for all that the device had
    to do before it, nothing else is launched meanwhile.

    How the worth is predicted
    All copies are replayed at {PINNED_SHARE} of the bus and not waited for. Copies to the device take turns with the
    kernels, as they do in one stream; the range includes a stream of their own, a batch ahead, which is advised, and
    replayed, where it makes the step {PREFETCH_GAIN} times as fast once more. Those to the host run after the kernels; the
    range includes that the host must wait for what it receives.

    When not
    The host needs the values at once: then only the copy's own speed is gained. Towards the device, the host has no other
    work to launch meanwhile, or the data is made just before it is copied.
    """
    to_host = host_copies(case, "DtoH").where(_STAGED)
    to_device = host_copies(case, "HtoD")
    awaited = pl.Series(waited(case, Calls(to_device.rows["call"].to_numpy())), dtype=pl.Boolean)
    to_device = to_device.where(_STAGED | awaited)
    small = pl.col("size_bytes") <= STAGED_BYTES
    if len(to_device.where(small)) >= MANY_SMALL * case.step_count:
        to_device = to_device.where(~small)
    groups = [
        _pinned(copies, to_host=direction == "DtoH")
        for direction, copies in (("HtoD", to_device), ("DtoH", to_host))
        if len(copies)
    ]
    if groups:
        yield from _finding(case, groups)


@dataclass(frozen=True)
class _Group:
    """The copies of one direction, and the edits that make them pinned: as advised, and as it may turn out."""

    copies: DeviceWork
    to_host: bool
    advised: Edit
    other: Edit

    @property
    def moved_bytes(self) -> int:
        """In all recorded steps."""
        return int(self.copies.rows["size_bytes"].sum())

    @property
    def fix(self) -> Fix:
        """What to do about them."""
        return _TO_HOST if self.to_host else _PREFETCHED if self.advised.moved_tasks else _TO_DEVICE

    def says(self) -> str:
        """How many, how much, from or to where."""
        told = self.copies.rows.filter("told")["pageable"]
        memory = "pageable memory" if told.any() else "pinned memory" if len(told) else "host memory"
        return (
            f"{self.copies.per_step_count:.3g} copies a step move "
            f"{self.moved_bytes / self.copies.case.step_count / 1e6:.3g} MB {'to' if self.to_host else 'from'} {memory} "
            f"at {self.moved_bytes / max(self.copies.dur_ns, 1):.3g} GB/s"
        )


def _finding(case: Case, groups: list[_Group]) -> Iterator[Finding]:
    """One finding for both directions: who pins memory pins it for both."""
    change = Change(
        "copies pinned and not waited for",
        merge(group.advised for group in groups),
        others=tuple(
            merge(group.other if group is turned else group.advised for group in groups) for turned in groups
        ),
        doubt=_doubt(groups),
    )
    moved_bytes = sum(group.moved_bytes for group in groups)
    if moved_bytes < LARGE_BYTES * case.step_count:
        gain = step_ns(case.program) / max(step_ns(change.applied(case.program)), 1)
        if gain < LEAST_GAIN:
            moved = format_value("_bytes", moved_bytes // case.step_count)
            seen(
                case,
                f"copies of {moved} a step block the host, but without that it is only {gain:.2f} times as fast",
            )
            return
    copies = DeviceWork(case, pl.concat(group.copies.rows for group in groups))
    yield Finding(
        says="; ".join(group.says() for group in groups) + ". The host waits for them.",
        why="The host stands still until each has arrived, and the bus is mostly idle.",
        fix=groups[0].fix,
        evidence={
            "copies_per_step_count": copies.per_step_count,
            "moved_bytes": moved_bytes // case.step_count,
            "bytes_per_s": moved_bytes / max(copies.dur_ns, 1) * 1e9,
            "spans": copies.spans(),
        },
        where=copies.places(),
        change=change,
        unless="the host needs the values at once: then only the copy's own speed is gained."
        if groups[-1].to_host
        else "the host has no other work to launch meanwhile, or the data is made just before it is copied.",
    )


def _doubt(groups: list[_Group]) -> str:
    """Why nothing is promised: the recording does not tell which memory is copied, and only its speed says pageable."""
    guessed = any(group.copies.rows.filter(~pl.col("told"))["pageable"].any() for group in groups)
    return "whether the memory is pageable was not recorded, and is judged by the copies' speed" * guessed


def _pinned(copies: DeviceWork, *, to_host: bool) -> _Group:
    """The copies at the speed of pinned memory, without a wait.

    As it may turn out, they are waited for, or run beside the kernels, or in turn with them.
    """
    case = copies.case
    staged = copies.where(_STAGED).rows
    durations = {
        task: min(dur, pinned_ns(case.device, size_bytes))
        for task, dur, size_bytes in staged.select("task", "dur_ns", "size_bytes").iter_rows()
    }
    faster = Edit(durations_ns=durations, modelled=frozenset(durations))
    calls = Calls(copies.rows["call"].unique().to_numpy())
    waits = Calls(np.unique(np.concatenate((calls, waits_after(case, calls)))))
    unawaited = replace(faster, unwaited_calls=waits)
    if to_host:
        return _Group(copies, to_host, unawaited, faster)
    new_stream = len(case.program.stream_free_ns)
    beside = replace(unawaited, moved_tasks=dict.fromkeys(copies.rows["task"].to_list(), new_stream))
    in_turn_ns, beside_ns = (step_ns(apply(case.program, edit)) for edit in (unawaited, beside))
    if in_turn_ns > PREFETCH_GAIN * beside_ns:
        return _Group(copies, to_host, beside, unawaited)
    return _Group(copies, to_host, unawaited, beside)
