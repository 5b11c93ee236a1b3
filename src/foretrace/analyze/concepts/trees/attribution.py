"""Attribution: an owner, such as a module or a source line, for every span and all GPU work.

Some spans *carry* an owner (a module's call, a Python frame). A span belongs to the nearest span around it that carries
one. A backward operator carries the owner of the forward operator that created its autograd node. GPU work belongs to
the owner of its operator, or else of the call that launched it.

Time is attributed once: a carrier keeps its duration minus that of the carriers directly inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.trace import Trace, once_per_trace


@dataclass(frozen=True)
class Attribution:
    """The owner of every span, and the time that each carrier keeps for itself."""

    owner: Array  # per span of the trace: an owner, or NOBODY
    backward: Array  # per span: whether it is owned through a backward operator
    carriers: Array  # ids of the spans that carry an owner
    self_ns: Array  # per carrier

    def host_ns(self, count: int, *, backward: bool) -> Array:
        """For each of `count` owners, the host time of its own carriers, forward or backward."""
        total = np.zeros(count, np.int64)
        chosen = self.backward[self.carriers] == backward
        np.add.at(total, self.owner[self.carriers[chosen]], self.self_ns[chosen])
        return total


@dataclass(frozen=True)
class Nesting:
    """How host spans lie in one another, and where each ends."""

    parent: Array  # per span, or NOBODY
    end_ns: Array


@once_per_trace
def parents(trace: Trace) -> Array:
    """For each span the one around it, or NOBODY; not to be changed."""
    # Ids are row numbers, and few enough for this: the largest of 32 bits is -1 as a number with a sign.
    return trace.spans["parent_id"].fill_null(np.iinfo(np.uint32).max).to_numpy().view(np.int32)


def nesting(trace: Trace) -> Nesting:
    """The spans around each span, with every Python call ending no later than its caller.

    torch loses the return of some calls into C++ (`FunctionMeta.apply` of a compiled function): they seem to last
    until the recording ends. Ingest nests by the same rule; recorded durations stay as they are.
    """
    spans = trace.spans
    parent = parents(trace)
    start = spans["start_ns"].to_numpy()
    end = start + spans["dur_ns"].fill_null(0).to_numpy()
    calls = trace.python.select("span_id", "caller_id").drop_nulls()
    rows, callers = calls["span_id"].to_numpy(), calls["caller_id"].to_numpy()
    _end_with_callers(start, end, spans["track_id"].to_numpy(), rows, callers)
    return Nesting(parent, end)


def recorded_ends(trace: Trace, spans: Array) -> Array:
    """When these spans end, as recorded; one of unknown duration where it starts."""
    start, dur = trace.spans["start_ns"].to_numpy(), trace.spans["dur_ns"]
    taken = dur.gather(spans).fill_null(0).to_numpy() if dur.null_count() else dur.to_numpy()[spans]
    ended: Array = start[spans] + taken
    return ended


def ends(trace: Trace, spans: Array) -> Array:
    """When these spans, given in order, end by `nesting`."""
    calls = trace.python.select("span_id", "caller_id").drop_nulls()
    calling = np.full(trace.spans.height + 1, NOBODY, np.int32)  # nobody is the last
    calling[calls["span_id"].to_numpy()] = calls["caller_id"].to_numpy()
    there = np.zeros(len(calling), bool)
    there[NOBODY] = True
    rows = spans
    while len(rows):
        there[rows] = True
        rows = calling[rows]
        rows = rows[~there[rows]]
    some = np.flatnonzero(there[:-1])
    start, end = trace.spans["start_ns"].to_numpy()[some], recorded_ends(trace, some)
    called = np.flatnonzero(calling[some] != NOBODY)
    callers = np.searchsorted(some, calling[some[called]])
    _end_with_callers(start, end, trace.spans["track_id"].to_numpy()[some], called, callers)
    ended: Array = end[np.searchsorted(some, spans)]
    return ended


def _end_with_callers(start: Array, end: Array, track: Array, rows: Array, callers: Array) -> None:
    """Lets calls end no later than their callers."""
    # The profiler's ids are wrong at times too: a caller on another thread, or one that is over, is none.
    late = np.flatnonzero((end[rows] > end[callers]) & (track[rows] == track[callers]))
    rows, callers = rows[late], callers[late]
    while (cut := (end[rows] > end[callers]) & (start[rows] < end[callers])).any():
        end[rows[cut]] = end[callers[cut]]


def nearest(parent: Array, marked: Array) -> Array:
    """For each row, the nearest marked row among itself and its ancestors, or NOBODY."""
    count = len(parent)
    # One row more, its own parent, stands for nobody; following links of links doubles the distance each time.
    links = np.append(np.where(marked, np.arange(count, dtype=np.int32), parent), np.int32(count))
    links[links == NOBODY] = count
    rows = np.flatnonzero(~marked & (links[:-1] != count))
    while len(rows):
        before = links[rows]
        after = links[before]
        links[rows] = after
        rows = rows[after != before]
    nearest_row = links[:-1]
    nearest_row[nearest_row == count] = NOBODY
    return nearest_row


def attribute(trace: Trace, carried: Array) -> Attribution:
    """The owners of all spans, from those that some spans carry (per span: an owner, or NOBODY)."""
    nested = nesting(trace)
    linked = trace.ops.select("span_id", "forward_id").drop_nulls()
    rows, forward = linked["span_id"].to_numpy(), linked["forward_id"].cast(pl.Int64).to_numpy()
    of_forward = _at(carried, _climb(nested.parent, carried != NOBODY, forward))
    rows, of_forward = rows[of_forward != NOBODY], of_forward[of_forward != NOBODY]
    backward = np.zeros(len(carried), bool)
    backward[rows] = True
    carried = carried.copy()
    carried[rows] = of_forward
    around = nearest(nested.parent, carried != NOBODY)
    owner = _at(carried, around)
    through_backward = np.append(backward, False)[around]
    carriers = np.flatnonzero(carried != NOBODY)
    return Attribution(owner, through_backward, carriers, _self_ns(trace, nested, around, carriers))


def _climb(parent: Array, marked: Array, rows: Array) -> Array:
    """`nearest` for a few rows."""
    at = rows.copy()
    while len(up := np.flatnonzero((at != NOBODY) & ~marked[at])):
        at[up] = parent[at[up]]
    return at


def _at(values: Array, rows: Array) -> Array:
    """The values of the rows; NOBODY for nobody."""
    taken: Array = np.where(rows == NOBODY, NOBODY, values[rows]) if len(values) else rows
    return taken


def _self_ns(trace: Trace, nested: Nesting, around: Array, carriers: Array) -> Array:
    """For each carrier, its duration less that of the carriers directly inside it."""
    dur = nested.end_ns - trace.spans["start_ns"].to_numpy()
    above = _at(around, nested.parent[carriers])
    inside = np.zeros(len(dur), np.int64)
    within = above != NOBODY
    np.add.at(inside, above[within], dur[carriers[within]])
    # Children that overlap one another could take more than there is.
    left: Array = np.maximum(dur[carriers] - inside[carriers], 0)
    return left


def device_owners(trace: Trace, given: Attribution) -> pl.DataFrame:
    """GPU work launched in the recording: `name`, `dur_ns`, `owner` (null where none) and `backward`."""
    work = device_time.device_work(trace).filter(~pl.col("orphan"))
    cause = work.select(pl.coalesce("op_id", "launch_id").cast(pl.Int64).fill_null(NOBODY)).to_series()
    rows = cause.to_numpy()
    owner = pl.Series("owner", _at(given.owner, rows)).cast(pl.Int64)
    backward = pl.Series("backward", np.where(rows == NOBODY, False, given.backward[rows]))
    return work.select("name", "dur_ns", "launch_id", "op_id").with_columns(
        owner.set(owner == NOBODY, None), backward, cause=cause
    )


def limits(trace: Trace, owners: str) -> tuple[str, ...]:
    """Notes on what the recording lacks, so that some time is given to none of these owners."""
    if not trace.has_device:
        return ("no GPU work recorded: host time only",)
    if not trace.ops["forward_id"].is_not_null().any():
        return (f"no backward operator is linked to its forward operator: {owners} get no backward time",)
    return ()


def sums(owners: Array, amounts: Array, count: int) -> Array:
    """For each of `count` owners, the sum of its amounts; those of NOBODY do not count."""
    total = np.zeros(count, np.int64)
    owned = owners != NOBODY
    np.add.at(total, owners[owned], amounts[owned])
    return total


def with_descendants(parent: Array, amount: Array) -> Array:
    """For each node of a tree whose parents come before their children, the sum over it and all below it."""
    total = amount.copy()
    for level in reversed(levels(parent)):
        inside = level[parent[level] != NOBODY]
        np.add.at(total, parent[inside], total[inside])
    return total


def levels(parent: Array) -> list[Array]:
    """The nodes of a tree by depth, roots first."""
    by_depth = []
    level = np.flatnonzero(parent == NOBODY)
    order = np.argsort(parent, kind="stable")
    ordered = parent[order]
    while len(level):
        by_depth.append(level)
        first = np.searchsorted(ordered, level, side="left")
        count = np.searchsorted(ordered, level, side="right") - first
        offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        level = order[np.repeat(first, count) + offset]
    return by_depth


def depths(parent: Array) -> Array:
    """For each node of a tree, the number of its ancestors."""
    depth = np.zeros(len(parent), np.int64)
    for number, level in enumerate(levels(parent)):
        depth[level] = number
    return depth


def tree_order(parent: Array) -> Array:
    """The nodes of a tree, each followed by all below it, siblings in order of their ids."""
    size = with_descendants(parent, np.ones(len(parent), np.int64))
    place = np.zeros(len(parent), np.int64)
    for number, level in enumerate(levels(parent)):
        siblings = level[np.lexsort((level, parent[level]))]
        above = parent[siblings]
        before = np.cumsum(size[siblings]) - size[siblings]
        first = np.searchsorted(above, above, side="left")
        place[siblings] = before - before[first] + (0 if number == 0 else place[above] + 1)
    return np.argsort(place, kind="stable")
