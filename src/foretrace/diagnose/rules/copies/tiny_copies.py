"""Many small copies from the host, each with its own call and wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import NOBODY, HostSpans
from foretrace.diagnose import removal
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import rule
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import ProgramTime

_SMALL_BYTES = 64 << 10
_NUMBER_BYTES = 16  # one or two numbers: an argument of a kernel, or a constant, rather than data
_LEAST_PER_STEP, _LEAST_SHARE = 3, 0.02  # of the host's time
_COPYING = (
    r"^aten::(?:to|_to_copy|copy_|_copy_from|lift_fresh|item|fill_|index_put_|full|scalar_tensor|tensor)$"
)
# Operators that make a tensor of nothing but numbers: what is computed from it alone is a constant.
_MAKES = (
    r"^aten::(?:arange|range|linspace|logspace|eye|full|ones|zeros|tril_indices|triu_indices|\w+_window)$"
)
# What torch.tensor calls, before or around a copy, in this order; and what puts together what was copied one by one.
_TENSOR, _MADE, _CALLS = r"^aten::(?:empty|to|lift_fresh|detach_)$", r"^aten::(?:lift_fresh|detach_)$", 4
_TOGETHER = r"^aten::(?:stack|cat)$"
_LOOP_NS = 100_000  # of Python between two copies of a loop: more is work of another kind


@rule(
    title="Many tiny copies between host and GPU",
    topic="Tiny copies",
    see="syncs",
)
def tiny_copies(case: Case) -> Iterator[Finding]:
    """Small tensors made on the host and copied to the device one by one, in every step.

    What it does
    Looks for at least three copies a step of less than 64 KB from the host, whose operators take at least 2 %
    of the host's time. The replay keeps the first copy of each step, if it is of more than two numbers, and drops the
    others with their operators and waits, and with the operators on the host that made what is copied, where these begin with one
    that takes no tensor, such as torch.arange: what they make is the same each time. Of one or two numbers, what torch.tensor
    calls goes too, and Python between them. Where torch.stack puts together what was copied, it goes and one copy stays. For
    every other copy of more than two numbers it adds an operator of the usual length, for what differs from step to step
    has to be put together on the host. The range includes that constants are still made, on the device, and that what is copied lies together already.

    Why it matters
    Each costs an operator, a call and, from pageable memory, a wait for the device, to move a few bytes.

    Use instead
    torch.arange(n, device="cuda") instead of torch.arange(n).cuda(); make constants once; copy one tensor.
    """
    small = case.copies.filter((pl.col("direction") == "HtoD") & (pl.col("size_bytes") < _SMALL_BYTES))
    mine = case.tasks.join(
        small.select(pl.col("span_id").alias("id"), "size_bytes"), on="id", maintain_order="left"
    )
    if mine.height < _LEAST_PER_STEP * case.step_count:
        return
    step = pl.Series("step", case.program.step[mine["call"].to_numpy()])
    several = pl.int_range(pl.len()).over("step") > 0
    dropped = mine.with_columns(step).filter(several | (pl.col("size_bytes") <= _NUMBER_BYTES))
    host = _operators(case, dropped["launch_id"].drop_nulls().cast(pl.Int64).to_numpy())
    if host.total_ns < _LEAST_SHARE * case.program.measured_host_ns:
        return
    moved = int(mine["size_bytes"].sum())
    yield Finding(
        says=f"{mine.height / case.step_count:.3g} copies a step bring {moved / mine.height:.0f} bytes each to the device; "
        f"they take the host {host.total_ns / case.step_count / 1e6:.3g} ms.",
        why="A copy of a few bytes costs the host as much as a kernel, and from pageable memory a wait as well.",
        fix=Fix(
            "Make small tensors on the device, or copy them together.",
            'mask = torch.arange(n, device="cuda")   # not: torch.arange(n).cuda()',
        ),
        evidence={
            "copies_per_step_count": mine.height / case.step_count,
            "mean_bytes": moved / mine.height,
            "host_ns": host.total_ns // case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().to_list()),
        change=_change(case, dropped, host),
        unless="the values are made on the host from what only it knows, and differ from copy to copy.",
    )


def _change(case: Case, dropped: pl.DataFrame, host: intervals.Intervals) -> Change:
    """The copies gone, with what makes constants for them; what is no constant has to be packed."""
    made = _made(case, host)
    packed = _packed(case, dropped, host, made)
    gone, stays = _runs(case, host, dropped)
    start, end = (np.concatenate(each) for each in zip(made, gone, strict=True))
    whole = intervals.subtract(intervals.union(start, end), stays)
    return Change(
        "small copies made once a step",
        replace(_without(case, whole), added_host_ns=packed),
        others=(_without(case, whole), replace(_without(case, host), added_host_ns=packed)),
    )


def _without(case: Case, host: intervals.Intervals) -> Edit:
    return removal.without_time(case, ProgramTime(host))


def _packed(
    case: Case, dropped: pl.DataFrame, copies: intervals.Intervals, made: intervals.Intervals
) -> dict[int, int]:
    """Host work before copies of data that go with another: an operator each, as long as the recording's are."""
    program = case.program
    constant = intervals.covered_ns(made, copies.start - 1, copies.start) > 0
    calls = dropped.filter(pl.col("size_bytes") > _NUMBER_BYTES)["call"].to_numpy()
    around = np.searchsorted(copies.start, program.call_start_ns[calls], "right") - 1
    operator = int(dense_ns(program).sum()) // max(int(program.gap_ops.sum()), 1)
    added = Counter(calls[(around >= 0) & ~constant[around]].tolist())
    return {call: count * operator for call, count in added.items()}


def _operators(case: Case, calls: NDArray[np.int64]) -> intervals.Intervals:
    """The host time of the outermost copying operators around these calls; of the call where there is none."""
    host = case.host
    outer = host.outermost(calls, host.named(_COPYING, "op"))
    spans = np.unique(np.where(outer == NOBODY, calls, outer))
    return intervals.union(
        host.start_ns[spans] - case.program.start_ns, host.end_ns[spans] - case.program.start_ns
    )


def _made(case: Case, copies: intervals.Intervals) -> intervals.Intervals:
    """The copies with the operators before each that made a constant for it, launching nothing."""
    host, program = case.host, case.program
    outer = _outermost_operators(case, host)
    start, end = host.start_ns[outer] - program.start_ns, host.end_ns[outer] - program.start_ns
    calls = np.sort(program.call_start_ns[np.diff(program.task_from) > 0])
    launching = np.searchsorted(calls, start) < np.searchsorted(calls, end)
    launching &= intervals.covered_ns(copies, start, end) == 0
    stops, makes = np.flatnonzero(launching), np.flatnonzero(host.named(_MAKES, "op")[outer])
    starts = copies.start.copy()
    for place, last in enumerate(np.searchsorted(start, copies.start).tolist()):
        before = int(np.searchsorted(stops, last))
        after = int(stops[before - 1]) if before else -1
        between = makes[(makes > after) & (makes < last)]
        if len(between):
            starts[place] = start[between[0]]
    return intervals.union(starts, copies.end)


def _runs(
    case: Case, copies: intervals.Intervals, dropped: pl.DataFrame
) -> tuple[intervals.Intervals, intervals.Intervals]:
    """What goes with copies that follow each other, and the copies that stay instead.

    Of numbers, what torch.tensor calls for them and the Python between goes. Where an operator behind them puts them
    together, it goes and one of them stays.
    """
    host, program = case.host, case.program
    outer = _outermost_operators(case, host)
    start, end = host.start_ns[outer] - program.start_ns, host.end_ns[outer] - program.start_ns
    copied, number = (
        (intervals.covered_ns(copies, start, end) == end - start) & _any_in(at, start, end)
        for at in (
            program.call_start_ns[each["call"].to_numpy()]
            for each in (dropped, dropped.filter(pl.col("size_bytes") <= _NUMBER_BYTES))
        )
    )
    makes = host.named(_TENSOR, "op")[outer] & ~_any_in(program.call_start_ns, start, end)
    made, joins = (host.named(each, "op")[outer] for each in (_MADE, _TOGETHER))
    mine = copied | makes
    parts = np.flatnonzero(~mine[1:] | ~mine[:-1] | (start[1:] - end[:-1] > _LOOP_NS)) + 1
    gone, stays = [], []
    for run in np.split(np.arange(len(outer)), parts):
        first, *others = run[copied[run]].tolist() or [-1]
        if first < 0:
            continue
        last, behind = others[-1] if others else first, int(run[-1]) + 1
        soon = behind < len(outer) and start[behind] - end[behind - 1] <= _LOOP_NS
        if others and soon and joins[behind]:
            stays.append((start[last], end[last]))
            gone.append((end[last], end[behind]))
        if number[[first, *others]].all():
            before = np.arange(max(run[0], first - _CALLS), first)
            after = run[(run > last) & (run <= last + _CALLS) & made[run]]
            first = int(before[0]) if made[before].any() else first
            gone.append((start[first], end[max([last, *after.tolist()])]))
    of_runs, left = (intervals.union(*np.array(each, np.int64).reshape(-1, 2).T) for each in (gone, stays))
    return of_runs, left


def _any_in(at: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether any of these moments lies in each stretch."""
    ordered = np.sort(at)
    return np.searchsorted(ordered, start) < np.searchsorted(ordered, end)


def _outermost_operators(case: Case, host: HostSpans) -> NDArray[np.int64]:
    """The operators of the thread that makes most of the program's calls, without those inside others."""
    spans = case.trace.spans
    tracks = spans["track_id"].gather(case.program.call_span)
    operators = host.kind("op") & (host.end_ns > host.start_ns)
    operators &= spans["track_id"].is_in(tracks.mode().head(1).implode()).to_numpy()
    ids = np.flatnonzero(operators)
    outermost: NDArray[np.int64] = ids[host.outermost(ids, operators) == ids]
    return outermost
