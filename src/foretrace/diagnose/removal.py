"""Taking work out of a program, with one meaning of "this goes".

- Time of the host goes with the calls that begin in it (`without_time`).
- Operators go with those around them that do nothing else, and with the Python that leads to them (`host_time`).
- Device work goes with the host time of its operators (`without_work`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device.phases import distinct
from foretrace.diagnose.case import LONGEST_WALK, Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Calls, ProgramTime

# What the program does to call the next operator, recorded; longer, it does something else first.
_LEADING_NS = 40_000
_LONG_AGO = -(2**62)


def calls_in(case: Case, stretches: ProgramTime) -> Calls:
    """The calls that begin within some stretches of the host's time."""
    start = case.program.call_start_ns
    return Calls(np.flatnonzero(intervals.covered_ns(stretches, start, start + 1) > 0))


def without_time(case: Case, stretches: ProgramTime) -> Edit:
    """Stretches of the host's time gone, with the calls that begin in them."""
    return Edit(removed_host=stretches, removed_calls=calls_in(case, stretches))


def without_work(work: DeviceWork) -> Edit:
    """Device work gone, with the host time of the operators that launched it."""
    return Edit(removed_host=host_time(work.case, work.ops), removed_tasks=work.tasks)


def host_time(case: Case, ops: Iterable[int]) -> ProgramTime:
    """When the host was busy with these operators: each with the outermost one around it that launches no other's work.

    With them go autograd's nodes for what is inside of them, such as views. From the end of what the thread did before,
    where that is near: a call that is not made is not prepared either.
    """
    mine = distinct(np.fromiter(ops, np.int64), case.trace.spans.height)
    spans = np.zeros(case.trace.spans.height, bool)
    spans[case.tasks["op_id"].drop_nulls().to_numpy()] = True
    spans[mine] = False
    elsewhere = _with_callers(case, np.flatnonzero(spans))
    spans[:] = False
    spans[_outermost(case, mine, elsewhere)] = True
    node, forward = case.keep("nodes of autograd", lambda: _nodes(case))
    spans[_outermost(case, node[_within(case, forward, spans)], elsewhere)] = True
    taken = case.trace.spans.select("start_ns", "dur_ns", "track_id")[np.flatnonzero(spans)]
    start = taken["start_ns"].to_numpy()
    begin = start - _leading_ns(case, start, taken["track_id"].to_numpy())
    end = start + taken["dur_ns"].fill_null(0).to_numpy()
    return ProgramTime(intervals.union(begin - case.program.start_ns, end - case.program.start_ns))


def _with_callers(case: Case, ops: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a span is one of these operators, or around one."""
    found = np.zeros(len(case.calling_op), bool)
    while len(ops):
        found[ops] = True
        ops = distinct(case.calling_op[ops], len(found))
        ops = ops[~found[ops]]
    return found


def _outermost(case: Case, ops: NDArray[np.int64], barred: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The outermost callers of operators that are not barred, as far as these or their callers are not."""
    at = distinct(ops[~barred[ops]], len(barred))
    for _ in range(LONGEST_WALK):
        caller = case.calling_op[at]
        climbs = (caller >= 0) & ~barred[caller]
        if not climbs.any():
            break
        at = distinct(np.where(climbs, caller, at), len(barred))
    return at


def _within(case: Case, ops: NDArray[np.int64], spans: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether operators are among these spans, or inside of one."""
    found = np.zeros(len(ops), bool)
    rows = np.arange(len(ops))
    for _ in range(LONGEST_WALK):
        found[rows] = spans[ops]
        ops = case.calling_op[ops]
        left = ~found[rows] & (ops >= 0)
        rows, ops = rows[left], ops[left]
        if not len(rows):
            break
    return found


def _nodes(case: Case) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Operators that autograd calls, and the forward operator that each belongs to."""
    nodes = case.trace.ops.drop_nulls("forward_id").select(pl.col("span_id", "forward_id").cast(pl.Int64))
    return nodes["span_id"].to_numpy(), nodes["forward_id"].to_numpy()


def _leading_ns(case: Case, start: NDArray[np.int64], track: NDArray[np.uint32]) -> NDArray[np.int64]:
    """For each start on a track, how long before it the thread last began or ended an operator or a call."""
    found = np.zeros(len(start), np.int64)
    for each in np.unique(track).tolist():
        chosen = track == each
        at = start[chosen]
        times = _bounds(case, each)
        places = [np.searchsorted(bounds, at) for bounds in times]
        # Two bounds at one moment: the operator before ends where this one starts.
        alone = sum(np.searchsorted(bounds, at, side="right") for bounds in times) == sum(places) + 1
        before = [np.append(_LONG_AGO, bounds)[place] for bounds, place in zip(times, places, strict=True)]
        since = at - np.maximum(*before)
        found[chosen] = np.where(alone & (since <= _LEADING_NS), since, 0)
    return found


def _bounds(case: Case, track: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When operators and calls of a track begin, and when they end, each in order."""

    def bounds() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        on_track = case.trace.spans["track_id"].to_numpy() == track
        mine = np.flatnonzero(case.host.kind("op", "runtime") & on_track)
        return case.host.start_ns[mine], np.sort(case.host.end_ns[mine])

    return case.keep(f"bounds of operators and calls of {track}", bounds)
