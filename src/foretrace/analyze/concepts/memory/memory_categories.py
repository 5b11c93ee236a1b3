"""What a block of memory held, inferred from when it was allocated and freed.

A recording has no tensors, so categories follow torch's `_memory_profiler` as far as lifetimes can tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace import intervals, schema
from foretrace.analyze.concepts.names.named_spans import ids_like
from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.analyze.concepts.trees.module_tree import BACKWARD_NODE
from foretrace.intervals import Intervals
from foretrace.trace import Trace, once_per_trace

CATEGORIES = (
    "before the recording", "activation", "gradient", "optimizer state", "autograd", "intermediate", "temporary",
    "unknown",
)  # fmt: skip
BEFORE, ACTIVATION, GRADIENT, OPTIMIZER, AUTOGRAD, INTERMEDIATE, TEMPORARY, UNKNOWN = range(len(CATEGORIES))

OPTIMIZER_STEP, ZERO_GRAD = r"^Optimizer\.step#", r"^Optimizer\.zero_grad#"
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Origin:
    """Where blocks were allocated: per block."""

    known: Array  # whether inside an operator
    backward: Array  # whether in the backward pass
    op_end: Array  # end of the outermost operator around it
    optimizer_end: Array  # end of the optimizer's step around it, or NOBODY


def categories(trace: Trace, blocks: pl.DataFrame) -> pl.Series:
    """The category of each block, as rows of `allocations` with known addresses."""
    backward = _backward_rows(trace)
    origin = _origin(trace, blocks["op_id"], backward)
    start = blocks["start_ns"].fill_null(NOBODY).to_numpy()
    end = blocks["end_ns"].fill_null(_NEVER).to_numpy()
    work = backward_work(trace)
    passes = _passes(trace, work)
    category = np.full(blocks.height, UNKNOWN)
    before = blocks["start_ns"].is_null().to_numpy()
    category[before] = np.where(_within(trace, end[before], ZERO_GRAD), GRADIENT, BEFORE)
    here = origin.known & ~before
    forward = here & ~origin.backward & (origin.optimizer_end == NOBODY)
    into_backward = end >= _next(work, start)
    category[forward & (end < _NEVER)] = INTERMEDIATE
    category[forward & into_backward] = ACTIVATION
    in_backward = here & origin.backward
    category[in_backward] = np.where(end > _pass_end(passes, start), GRADIENT, AUTOGRAD)[in_backward]
    category[here & (end <= origin.op_end)] = TEMPORARY
    stepping = here & (origin.optimizer_end != NOBODY)
    category[stepping] = np.where(end <= origin.optimizer_end, TEMPORARY, OPTIMIZER)[stepping]
    return pl.Series("category", CATEGORIES, dtype=pl.String).gather(category)


def _origin(trace: Trace, op_id: pl.Series, backward_rows: Array) -> _Origin:
    spans, parent = trace.spans, attribution.parents(trace)
    ops = op_id.cast(pl.Int64).fill_null(NOBODY).to_numpy()
    known = ops != NOBODY
    calling = np.full(len(ops), NOBODY, np.int32)
    calling[known] = parent[ops[known]]
    there = _with_those_around(parent, calling[calling != NOBODY])
    nodes = np.flatnonzero(there).astype(np.int32)
    steps = host_annotations(trace, OPTIMIZER_STEP)["id"].to_numpy().astype(np.int64)
    steps = steps[there[steps]]
    del there
    place_of = np.empty(len(parent) + 1, np.int32)  # known for the nodes, and for nobody
    place_of[nodes] = np.arange(len(nodes), dtype=np.int32)
    place_of[NOBODY] = len(nodes)
    above, place, step_place = (place_of[rows] for rows in (parent[nodes], calling, steps))
    del parent, place_of  # as long as the recording
    is_op = spans["kind"].to_physical().to_numpy()[nodes] == schema.KINDS.index("op")
    backward = np.zeros(spans.height + 1, bool)
    backward[backward_rows] = True
    # One more stands for nobody.
    outermost = np.full(len(nodes) + 1, NOBODY, np.int32)
    outermost[:-1][is_op] = nodes[is_op]
    optimizer = np.full(len(nodes) + 1, NOBODY, np.int32)
    optimizer[step_place] = steps
    in_backward = np.append(backward[nodes], False)
    # From the outside in: what holds for a span holds for those inside of it.
    for rows in _levels(spans["depth"].to_numpy()[nodes]):
        around = above[rows]
        in_backward[rows] |= in_backward[around]
        for found in (outermost, optimizer):
            further = found[around]
            found[rows] = np.where(further != NOBODY, further, found[rows])
    outer = np.where(outermost[place] == NOBODY, ops, outermost[place])
    return _Origin(
        known, in_backward[place] | backward[ops], _ends(trace, outer), _ends(trace, optimizer[place])
    )


def _with_those_around(parent: Array, rows: Array) -> Array:
    """For each span, whether it is one of these or around one."""
    there = np.zeros(len(parent), bool)
    there[rows] = True
    while len(rows):
        rows = parent[rows]
        rows = rows[rows != NOBODY]
        rows = rows[~there[rows]]
        there[rows] = True
        rows = rows[np.diff(rows, prepend=NOBODY) != 0]  # calls of one span follow one another
    return there


def _levels(depth: Array) -> list[Array]:
    """The rows of each depth, the least first."""
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def _ends(trace: Trace, rows: Array) -> Array:
    """When spans end; NOBODY for nobody."""
    ends = np.full(len(rows), NOBODY, np.int64)
    known = rows != NOBODY
    ends[known] = attribution.recorded_ends(trace, rows[known])
    return ends


@once_per_trace
def _backward_rows(trace: Trace) -> Array:
    """Operators of the backward pass: autograd's nodes and those that know their forward thread."""
    is_backward = np.zeros(trace.spans.height, bool)
    is_backward[ids_like(trace, "op", BACKWARD_NODE)] = True
    is_backward[trace.ops["span_id"].filter(trace.ops["forward_thread"] > 0).to_numpy()] = True
    return np.flatnonzero(is_backward).astype(np.uint32)


@once_per_trace
def backward_work(trace: Trace) -> Intervals:
    """When backward operators ran, on any thread."""
    rows = trace.spans.select("start_ns", "dur_ns")[_backward_rows(trace)].drop_nulls()
    start = rows["start_ns"].to_numpy()
    return intervals.union(start, start + rows["dur_ns"].to_numpy())


def _passes(trace: Trace, work: Intervals) -> Intervals:
    """Backward passes: backward work with no forward operator in between."""
    if not len(work.start):
        return work
    ops = trace.ops.select("span_id", "forward_id", "forward_thread", "sequence")
    forward = ops["span_id"].filter((ops["forward_thread"] == 0) & ops["sequence"].is_not_null()).to_numpy()
    linked = ops["forward_id"].drop_nulls().to_numpy()
    if len(linked):
        # A loader's thread runs operators too, at any time.
        track = trace.spans["track_id"].to_numpy()
        known = np.zeros(int(track.max()) + 1, bool)
        known[track[linked]] = True
        forward = forward[known[track[forward]]]
    starts = np.sort(trace.spans["start_ns"].to_numpy()[forward], kind="stable")  # mostly in order already
    apart = np.searchsorted(starts, work.start[1:]) > np.searchsorted(starts, work.end[:-1])
    return Intervals(work.start[np.append(True, apart)], work.end[np.append(apart, True)])


def _next(work: Intervals, at: Array) -> Array:
    """When backward work begins after each time; never, where none does."""
    return np.append(work.start, _NEVER)[np.searchsorted(work.start, at, side="right")]


def _pass_end(passes: Intervals, at: Array) -> Array:
    """The end of the pass that each time lies in, or of the one before."""
    place = np.searchsorted(passes.start, at, side="right") - 1
    ends: Array = np.where(place < 0, _NEVER, np.append(passes.end, _NEVER)[place])
    return ends


def _within(trace: Trace, at: Array, pattern: str) -> Array:
    """For each time, whether an annotation of that name was open then."""
    spans = host_annotations(trace, pattern)
    open_ = intervals.union(spans["start_ns"].to_numpy(), (spans["start_ns"] + spans["dur_ns"]).to_numpy())
    place = np.searchsorted(open_.start, at, side="right") - 1
    inside: Array = (place >= 0) & (at <= np.append(open_.end, NOBODY)[place])
    return inside


def host_annotations(trace: Trace, pattern: str) -> pl.DataFrame:
    """Annotations of that name on host threads."""
    on_device = trace.tracks.filter(pl.col("device").is_not_null())["id"]
    return trace.spans[ids_like(trace, "annotation", pattern)].filter(
        pl.col("dur_ns").is_not_null() & ~pl.col("track_id").is_in(on_device.implode())
    )
