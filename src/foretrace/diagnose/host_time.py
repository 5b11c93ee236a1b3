"""The host time that operators take, with those around them that do nothing else and the Python that leads to them.

Not a rule itself; rules whose fix puts one call in the place of many share it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.intervals import Intervals

# What the program does to call the next operator, recorded; longer, it does something else first.
_LEADING_NS = 40_000


def host_time(case: Case, ops: Iterable[int]) -> Intervals:
    """When the host was busy with these operators: each with the outermost one around it that launches no other's work.

    With them go autograd's nodes for what is inside of them, such as views. From the end of what the thread did before,
    where that is near: a call that is not made is not prepared either.
    """
    mine = set(ops)
    elsewhere = {caller for op in set(case.tasks["op_id"].drop_nulls()) - mine for caller in case.callers(op)}
    spans = set()
    for op in mine:
        spans.update([each for each in case.callers(op) if each not in elsewhere][-1:])
    for node, forward in case.keep("nodes of autograd", lambda: _nodes(case)):
        if not spans.isdisjoint(case.callers(forward)):
            spans.update([each for each in case.callers(node) if each not in elsewhere][-1:])
    taken = case.trace.spans.select("start_ns", "dur_ns", "track_id")[sorted(spans)]
    start = taken["start_ns"].to_numpy()
    begin = start - _leading_ns(case, start, taken["track_id"].to_numpy())
    end = start + taken["dur_ns"].fill_null(0).to_numpy()
    return intervals.union(begin - case.program.start_ns, end - case.program.start_ns)


def _nodes(case: Case) -> list[tuple[int, int]]:
    """Operators that autograd calls, with the forward operator that each belongs to."""
    return case.trace.ops.drop_nulls("forward_id").select("span_id", "forward_id").rows()


def _leading_ns(case: Case, start: NDArray[np.int64], track: NDArray[np.uint32]) -> NDArray[np.int64]:
    """For each start on a track, how long before it the thread last began or ended an operator or a call."""
    bounds = case.keep("bounds of operators and calls", lambda: _bounds(case))
    found = np.zeros(len(start), np.int64)
    for each in np.unique(track):
        chosen, here = track == each, bounds[int(each)]
        place = np.searchsorted(here, start[chosen])
        # Two bounds at one moment: the operator before ends where this one starts.
        alone = np.searchsorted(here, start[chosen], side="right") == place + 1
        since = start[chosen] - here[np.maximum(place - 1, 0)]
        found[chosen] = np.where(alone & (place > 0) & (since <= _LEADING_NS), since, 0)
    return found


def _bounds(case: Case) -> dict[int, NDArray[np.int64]]:
    spans = case.trace.spans.filter(pl.col("kind").is_in(("op", "runtime")))
    return {
        int(track): np.sort(
            np.concatenate(
                (mine["start_ns"].to_numpy(), (mine["start_ns"] + mine["dur_ns"].fill_null(0)).to_numpy())
            )
        )
        for (track,), mine in spans.group_by("track_id")
    }
