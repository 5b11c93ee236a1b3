"""The tree of host calls as torch.profiler builds it for its table, with or without Python functions.

Rules, from torch/autograd/profiler.py and profiler_util.py (2.11 and 2.13 agree):
- operators, annotations, runtime calls and the profiler's overhead nest by time within one thread;
- a runtime call belongs to the thread of its operator; one without an operator, and all overhead, to the
  thread that ended the recording, whichever thread made the call;
- a call whose caller has its name and no other callee is not counted; its device work goes to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.trace import Trace

Array = NDArray[Any]

HOST_KINDS = ("op", "annotation", "runtime", "overhead")
# torch's own list of bookkeeping that its table leaves out.
_LEFT_OUT = (
    "profiler::_record_function_enter", "profiler::_record_function_enter_new",
    "profiler::_record_function_exit", "aten::is_leaf", "aten::output_nr", "aten::_version",
)  # fmt: skip
NOBODY = -1


@dataclass(frozen=True)
class CallTree:
    """One row per counted host call, callers before callees."""

    span_id: Array
    parent: Array  # row of the caller, or NOBODY
    start_ns: Array
    end_ns: Array
    device_ns: Array  # device work that the call itself launched

    def per_parent(self, amount: Array) -> Array:
        """For each call, the sum over its direct callees."""
        total = np.zeros(len(amount), amount.dtype)
        nested = np.flatnonzero(self.parent != NOBODY)
        np.add.at(total, self.parent[nested], amount[nested])
        return total

    def with_callees(self, amount: Array) -> Array:
        """For each call, the sum over itself and everything below it."""
        total = amount.copy()
        rows = np.flatnonzero(amount)
        above, amount = self.parent[rows], amount[rows]
        while len(above):
            inside = above != NOBODY
            above, amount = above[inside], amount[inside]
            np.add.at(total, above, amount)
            above = self.parent[above]
        return total


def containers(start: Array, end: Array) -> Array:
    """For each interval, the row of the innermost one around it; they are sorted by start, the longest first.

    That is the nearest earlier row that ends no sooner. Rows between a row and its candidate all end sooner
    than it does, so a candidate that ends too soon can hand over its own: the distance about doubles each time.
    """
    needed = end + (end == start)  # an empty interval does not lie inside one that ends there
    parent = np.arange(-1, len(start) - 1)
    open_rows = np.arange(1, len(start))
    while len(open_rows):
        candidate = parent[open_rows]
        open_rows = open_rows[(candidate != NOBODY) & (end[candidate] < needed[open_rows])]
        parent[open_rows] = parent[parent[open_rows]]
    return parent


def host_spans(trace: Trace, *, python: bool = False) -> pl.DataFrame:
    """The host calls that torch's table counts, in order of start."""
    kinds = (*HOST_KINDS, "python") if python else HOST_KINDS
    on_device = trace.tracks.filter(pl.col("device").is_not_null())["id"]
    names = trace.spans["name"].unique()
    left_out = names.filter(names.cast(pl.String).is_in(_LEFT_OUT))
    return (
        trace.spans.lazy()
        .filter(
            pl.col("kind").is_in(kinds)
            & ~pl.col("track_id").is_in(on_device.implode())
            & ~pl.col("name").is_in(left_out.implode())
        )
        .select("id", "kind", "name", "start_ns", "dur_ns", "track_id", "op_id")
        .collect()
    )


def build(trace: Trace, *, python: bool = False) -> CallTree:
    """The tree of all host calls of the recording, Python functions among them or not."""
    spans = trace.spans
    host = host_spans(trace, python=python)
    ids = host["id"].to_numpy()
    start = host["start_ns"].to_numpy()
    end = start + host["dur_ns"].fill_null(0).to_numpy()
    device_ns = _launched(trace)
    main = ending_track(trace, host)
    _repeat_under_overhead(spans, main, device_ns)
    thread = _threads(trace, host, main)
    order = _calling_order(thread, start, end)
    ids, start, end, thread = ids[order], start[order], end[order], thread[order]
    # Threads one after another on one time line, so that no interval reaches into the next thread.
    shift = np.unique(thread, return_inverse=True)[1] * (int(end.max(initial=0)) + 2)
    parent = containers(start + shift, end + shift)
    names = host["name"].to_physical().to_numpy()[order]
    return _without_repeats(CallTree(ids, parent, start, end, device_ns[ids]), names)


def _calling_order(thread: Array, start: Array, end: Array) -> Array:
    """The order by thread, then start, then the longer first; `start` is in order already."""
    place = np.unique(thread, return_inverse=True)[1]
    order = np.argsort(place.astype(np.min_scalar_type(place.max(initial=0))), kind="stable")
    # Only calls that start together are left to sort: several times quicker than sorting all by three keys.
    place, begin = place[order], start[order]
    tie = (begin[1:] == begin[:-1]) & (place[1:] == place[:-1])
    tied = np.flatnonzero(np.append(tie, False) | np.append(False, tie))
    rows = order[tied]
    order[tied] = rows[np.lexsort((-end[rows], begin[tied], place[tied]))]
    return order


def ending_track(trace: Trace, host: pl.DataFrame) -> int | None:
    """The thread that ended the recording: the one with the steps, else the process's first, else the busiest."""
    annotations = host.filter(pl.col("kind") == "annotation")
    steps = annotations.filter(pl.col("name").cast(pl.String).str.starts_with("ProfilerStep#"))
    if steps.height:
        return int(steps["track_id"][0])
    first = set(trace.tracks.filter(pl.col("process") == pl.col("thread"))["id"])
    busiest = host.filter(pl.col("kind").is_in(("op", "annotation")))["track_id"].value_counts(sort=True)
    ordered = busiest["track_id"].to_list()
    candidates = [track for track in ordered if track in first] or sorted(first) or ordered
    return int(candidates[0]) if candidates else None


def _launched(trace: Trace) -> Array:
    """For each span of the trace, the device time of what it launched as an operator."""
    total = np.zeros(trace.spans.height, np.int64)
    work = trace.spans.filter(
        pl.col("kind").is_in(("kernel", "copy", "set", "sync"))
        & pl.col("op_id").is_not_null()
        & pl.col("dur_ns").is_not_null()
    )
    np.add.at(total, work["op_id"].to_numpy(), work["dur_ns"].to_numpy())
    return total


def _repeat_under_overhead(spans: pl.DataFrame, main: int | None, device_ns: Array) -> None:
    """Gives each overhead span the device work of the operator it interrupts, as torch does (so counts it twice).

    torch gives such a span the id of the innermost event open on the ending thread, and finds work by that id.
    """
    overhead = spans.filter(pl.col("kind") == "overhead")
    if main is None or overhead.is_empty():
        return
    own = np.flatnonzero(spans["track_id"].to_numpy() == main)
    if not len(own):
        return
    start = spans["start_ns"].to_numpy()
    end = start + spans["dur_ns"].fill_null(0).to_numpy()
    parent = spans["parent_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    is_op = (spans["kind"] == "op").to_numpy()
    # Calls linked to an operator are no events of that thread's stack.
    skipped = (spans["kind"] == "overhead") | ((spans["kind"] == "runtime") & spans["op_id"].is_not_null())
    passed = skipped.to_numpy()
    at = overhead["start_ns"].to_numpy()
    ids = overhead["id"].to_numpy()
    place = np.searchsorted(start[own], at, side="right") - 1
    inside = np.where(place >= 0, own[place], NOBODY)
    while len(up := np.flatnonzero((inside != NOBODY) & ((end[inside] < at) | passed[inside]))):
        inside[up] = parent[inside[up]]
    in_op = (inside != NOBODY) & is_op[inside]
    device_ns[ids[in_op]] = device_ns[inside[in_op]]


def _threads(trace: Trace, host: pl.DataFrame, main: int | None) -> Array:
    """The track that torch counts each call on."""
    track = host["track_id"].cast(pl.Int64).to_numpy().copy()
    op = host["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    called = (host["kind"] == "runtime").to_numpy()
    linked = np.flatnonzero(called & (op != NOBODY))
    track[linked] = trace.spans["track_id"].to_numpy()[op[linked]]
    if main is not None:
        process = trace.tracks["process"]
        same_process = process.eq_missing(process[main]).to_numpy()  # a process may have no number
        adrift = called & (op == NOBODY) & same_process[track]
        track[adrift | (host["kind"] == "overhead").to_numpy()] = main
    return track


def _without_repeats(tree: CallTree, name: Array) -> CallTree:
    """The tree less every call whose caller has its name and no other callee."""
    nested = tree.parent != NOBODY
    callees = tree.per_parent(np.ones(len(name), np.int64))
    repeat = nested & (name == name[tree.parent]) & (callees[tree.parent] == 1)
    rows = np.flatnonzero(repeat)
    if not len(rows):
        return tree
    first = np.where(repeat, tree.parent, np.arange(len(name)))
    while repeat[first].any():
        first = first[first]
    # torch replaces the caller's work by the callee's; the last row of a chain is its innermost call.
    device_ns = tree.device_ns.copy()
    device_ns[first[rows]] = tree.device_ns[rows]
    kept = np.flatnonzero(~repeat)
    place = np.full(len(name), NOBODY)
    place[kept] = np.arange(len(kept))
    parent = tree.parent[kept]
    inside = parent != NOBODY
    parent[inside] = place[first[parent[inside]]]
    return CallTree(tree.span_id[kept], parent, tree.start_ns[kept], tree.end_ns[kept], device_ns[kept])
