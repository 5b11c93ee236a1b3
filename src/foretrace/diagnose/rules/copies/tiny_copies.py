"""Many small copies from the host, each with its own call and wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import NOBODY
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.operators import main_thread_operators
from foretrace.diagnose.patterns.host_copies import MANY_SMALL, host_copies
from foretrace.diagnose.removal import without_time
from foretrace.diagnose.rule import rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.changes import Change
from foretrace.predict.costs.transfer import STAGED_BYTES
from foretrace.predict.numbers import ProgramTime, joined
from foretrace.sourced import JUDGEMENT, Bytes, Count, Nanoseconds, Share

LEAST_SHARE = Share(0.02, "host time", JUDGEMENT)
NUMBER_BYTES = Bytes(
    16, "one or two numbers: an argument of a kernel, or a constant, rather than data", JUDGEMENT
)
LOOP_NS = Nanoseconds(100_000, "Python between two copies of a loop: more is work of another kind", JUDGEMENT)
_TENSOR_CALLS = Count(
    4, "operators that torch.tensor calls before or after a copy, at most", "recordings of torch.tensor"
)
_COPYING = (
    r"^aten::(?:to|_to_copy|copy_|_copy_from|lift_fresh|item|fill_|index_put_|full|scalar_tensor|tensor)$"
)
# Operators that make a tensor of nothing but numbers: what is computed from it alone is a constant.
_MAKES = (
    r"^aten::(?:arange|range|linspace|logspace|eye|full|ones|zeros|tril_indices|triu_indices|\w+_window)$"
)
# What torch.tensor calls around a copy, and of that what only it calls.
_TENSOR, _ONLY_TENSOR = r"^aten::(?:empty|to|lift_fresh|detach_)$", r"^aten::(?:lift_fresh|detach_)$"
_TOGETHER = r"^aten::(?:stack|cat)$"  # puts together what was copied one by one


@rule("Many tiny copies between host and GPU", "Tiny copies", see="syncs")
def tiny_copies(case: Case) -> Iterator[Finding]:
    """Small tensors made on the host and copied to the device one by one, in every step.

    Finds at least {MANY_SMALL} copies a step of less than {STAGED_BYTES} from the host, whose operators take at least
    {LEAST_SHARE} of host time.

    Slow
        mask = torch.arange(n).cuda()
        scale = torch.tensor(0.5, device="cuda")  # in every step

    Fast
        mask = torch.arange(n, device="cuda")
        scale = 0.5  # or a tensor that is made once

    Why
    Each costs an operator, a call and, from pageable memory, a wait for the device, to move a few bytes.

    How the worth is predicted
    The replay keeps the first copy of each step, if it is of more than two numbers, and drops the others with their
    operators and waits. Operators on the host that made what is copied go too, where these begin with one that takes no
    tensor, such as torch.arange: what they make is the same each time. Of one or two numbers, what torch.tensor calls goes
    as well, and the Python between. Where torch.stack puts together what was copied, it goes and one copy stays.

    For every other copy of more than two numbers an operator of the usual length is added, for what differs from step to
    step has to be put together on the host. The range includes that constants are still made, on the device, and that what
    is copied lies together already.

    When not
    The values are made on the host from what only it knows, and differ from copy to copy.
    """
    copies = host_copies(case, "HtoD").where(pl.col("size_bytes") < STAGED_BYTES)
    if len(copies) < MANY_SMALL * case.step_count:
        return
    dropped = _dropped(copies)
    host = _copying_operators(dropped)
    share = host.total_ns / max(case.program.measured_host_ns, 1)
    if too_little(case, f"{copies.per_step_count:.3g} small copies a step", share, LEAST_SHARE):
        return
    mean_bytes = int(copies.rows["size_bytes"].sum()) / len(copies)
    yield Finding(
        says=f"{copies.per_step_count:.3g} copies a step bring {mean_bytes:.0f} bytes each to the device; they take the host "
        f"{host.total_ns / case.step_count / 1e6:.3g} ms.",
        why="A copy of a few bytes costs the host as much as a kernel, and from pageable memory a wait as well.",
        fix=Fix(
            "Make small tensors on the device, or copy them together.",
            'mask = torch.arange(n, device="cuda")   # not: torch.arange(n).cuda()',
        ),
        evidence={
            "copies_per_step_count": copies.per_step_count,
            "mean_bytes": mean_bytes,
            "host_ns": host.total_ns // case.step_count,
            "spans": copies.spans(),
        },
        where=copies.places(),
        change=_change(dropped, host),
        unless="the values are made on the host from what only it knows, and differ from copy to copy.",
    )


def _dropped(copies: DeviceWork) -> DeviceWork:
    """The copies that go: all but the first of each step, and that too where it is of a number or two."""
    step = pl.Series("step", copies.case.program.step[copies.rows["call"].to_numpy()])
    several = pl.int_range(pl.len()).over("step") > 0
    dropped = copies.rows.with_columns(step).filter(several | (pl.col("size_bytes") <= NUMBER_BYTES))
    return DeviceWork(copies.case, dropped)


def _copying_operators(dropped: DeviceWork) -> ProgramTime:
    """The host time of the outermost copying operators around these copies; of the call where there is none."""
    case, host = dropped.case, dropped.case.host
    calls = dropped.rows["launch_id"].drop_nulls().cast(pl.Int64).to_numpy()
    outer = host.outermost(calls, host.named(_COPYING, "op"))
    spans = np.unique(np.where(outer == NOBODY, calls, outer))
    return ProgramTime(
        intervals.union(
            host.start_ns[spans] - case.program.start_ns, host.end_ns[spans] - case.program.start_ns
        )
    )


def _change(dropped: DeviceWork, copying: ProgramTime) -> Change:
    """The copies gone, with what makes constants for them; what is no constant has to be packed."""
    case = dropped.case
    thread = _MainThread(case)
    constants = _with_constants(thread, copying)
    packed = _packed(dropped, copying, constants)
    of_runs, kept = _runs(thread, copying, dropped)
    removed = ProgramTime(intervals.subtract(joined(constants, of_runs), kept))
    return Change(
        "small copies made once a step",
        replace(without_time(case, removed), added_host_ns=packed),
        others=(without_time(case, removed), replace(without_time(case, copying), added_host_ns=packed)),
    )


class _MainThread:
    """The outermost operators of the thread that makes most calls, in order, in program time."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.ops = main_thread_operators(case)
        self.start_ns = case.host.start_ns[self.ops] - case.program.start_ns
        self.end_ns = case.host.end_ns[self.ops] - case.program.start_ns

    def named(self, pattern: str) -> NDArray[np.bool_]:
        """Which of the operators have such a name."""
        return self.case.host.named(pattern, "op")[self.ops]

    def around(self, moments: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the operators are around any of these moments."""
        ordered = np.sort(moments)
        around: NDArray[np.bool_] = np.searchsorted(ordered, self.start_ns) < np.searchsorted(
            ordered, self.end_ns
        )
        return around

    def copying(self, copying: ProgramTime, copies: pl.DataFrame) -> NDArray[np.bool_]:
        """Which of the operators do nothing but make some of these copies."""
        covered = intervals.covered_ns(copying, self.start_ns, self.end_ns) == self.end_ns - self.start_ns
        copying_ops: NDArray[np.bool_] = covered & self.around(
            self.case.program.call_start_ns[copies["call"].to_numpy()]
        )
        return copying_ops


def _with_constants(thread: _MainThread, copying: ProgramTime) -> ProgramTime:
    """The copies with the operators before each that made a constant for it, launching nothing."""
    program = thread.case.program
    launching = thread.around(program.call_start_ns[np.diff(program.task_from) > 0])
    launching &= intervals.covered_ns(copying, thread.start_ns, thread.end_ns) == 0
    stops, makes = np.flatnonzero(launching), np.flatnonzero(thread.named(_MAKES))
    starts = copying.start.copy()
    for place, last in enumerate(np.searchsorted(thread.start_ns, copying.start).tolist()):
        before = int(np.searchsorted(stops, last))
        after = int(stops[before - 1]) if before else -1
        between = makes[(makes > after) & (makes < last)]
        if len(between):
            starts[place] = thread.start_ns[between[0]]
    return ProgramTime(intervals.union(starts, copying.end))


def _packed(dropped: DeviceWork, copying: ProgramTime, constants: ProgramTime) -> dict[int, int]:
    """Host work before copies of data that go with another: an operator each, as long as the recording's are."""
    program = dropped.case.program
    constant = intervals.covered_ns(constants, copying.start - 1, copying.start) > 0
    calls = dropped.where(pl.col("size_bytes") > NUMBER_BYTES).rows["call"].to_numpy()
    around = np.searchsorted(copying.start, program.call_start_ns[calls], "right") - 1
    operator_ns = int(dense_ns(program).sum()) // max(int(program.gap_ops.sum()), 1)
    added = Counter(calls[(around >= 0) & ~constant[around]].tolist())
    return {call: count * operator_ns for call, count in added.items()}


def _runs(thread: _MainThread, copying: ProgramTime, dropped: DeviceWork) -> tuple[ProgramTime, ProgramTime]:
    """What goes with copies that follow each other, and the copies that stay instead.

    Of numbers, what torch.tensor calls for them and the Python between goes. Where an operator after them puts them
    together, it goes and one of them stays.
    """
    start, end = thread.start_ns, thread.end_ns
    copies = thread.copying(copying, dropped.rows)
    numbers = thread.copying(copying, dropped.where(pl.col("size_bytes") <= NUMBER_BYTES).rows)
    belongs = copies | (thread.named(_TENSOR) & ~thread.around(thread.case.program.call_start_ns))
    only_tensor, joins = thread.named(_ONLY_TENSOR), thread.named(_TOGETHER)
    apart = ~belongs[1:] | ~belongs[:-1] | (start[1:] - end[:-1] > LOOP_NS)
    removed, kept = [], []
    for run in np.split(np.arange(len(start)), np.flatnonzero(apart) + 1):
        of_run = run[copies[run]]
        if not len(of_run):
            continue
        last, following = of_run[-1], run[-1] + 1
        soon = following < len(start) and start[following] - end[following - 1] <= LOOP_NS
        if len(of_run) > 1 and soon and joins[following]:
            kept.append((start[last], end[last]))
            removed.append((end[last], end[following]))
        if numbers[of_run].all():
            first, last = _with_tensor_calls(run, of_run, only_tensor)
            removed.append((start[first], end[last]))
    return _times(removed), _times(kept)


def _with_tensor_calls(
    run: NDArray[np.int64], copies: NDArray[np.int64], only_tensor: NDArray[np.bool_]
) -> tuple[int, int]:
    """The first and the last operator of what torch.tensor calls for copies of a run."""
    first, last = int(copies[0]), int(copies[-1])
    before = np.arange(max(run[0], first - _TENSOR_CALLS), first)
    after = run[(run > last) & (run <= last + _TENSOR_CALLS) & only_tensor[run]]
    return int(before[0]) if only_tensor[before].any() else first, max([last, *after.tolist()])


def _times(pairs: list[tuple[int, int]]) -> ProgramTime:
    return ProgramTime(intervals.union(*np.array(pairs, np.int64).reshape(-1, 2).T))
