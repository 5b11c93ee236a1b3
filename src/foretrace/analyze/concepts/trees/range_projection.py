"""Ranges as the GPU saw them: from the first start to the last end of the work that was launched inside each."""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees import section_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.analyze.concepts.trees.section_tree import SectionTree
from foretrace.trace import Trace


def projected(trace: Trace, tree: SectionTree, work: pl.DataFrame) -> tuple[Array, Array]:
    """For each range of the tree how long its work lasts on the GPU, and how many pieces of work there are.

    Work belongs to all ranges on the launching thread that contain the call; that of a thread without ranges, such as
    autograd's, to those open on the thread that marks them (`section_tree.sections_of_work`).
    """
    spans = trace.spans.select("track_id", "start_ns", "dur_ns")
    ranges = spans[tree.span_id].with_columns(end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0))
    launched = work.filter(pl.col("launch_id").is_not_null())
    calls = spans[launched["launch_id"]].select(
        track="track_id", call="start_ns", returned=pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    )
    tasks = launched.select("start_ns", end=pl.col("start_ns") + pl.col("dur_ns")).hstack(calls).sort("call")
    first, last = np.full(len(tree.span_id), 2**62, np.int64), np.full(len(tree.span_id), -(2**62), np.int64)
    count = np.zeros(len(tree.span_id), np.int64)
    track = ranges["track_id"].to_numpy()
    start, end = ranges["start_ns"].to_numpy(), ranges["end"].to_numpy()
    for (thread,), mine in tasks.group_by("track", maintain_order=True):
        rows = np.flatnonzero(track == thread)
        if len(rows):
            _contained(mine, rows, start, end, first, last, count)
    _of_other_threads(trace, tree, work, first, last, count)
    return np.where(count > 0, last - first, 0), count


def _contained(
    tasks: pl.DataFrame, rows: Array, start: Array, end: Array, first: Array, last: Array, count: Array
) -> None:
    """Adds the work of one thread's calls to the ranges around them."""
    call = tasks["call"].to_numpy()
    # Calls of a thread follow one another; where one is inside another, it returns no later.
    returned = np.maximum.accumulate(tasks["returned"].to_numpy())
    low, high = np.searchsorted(call, start[rows]), np.searchsorted(returned, end[rows], side="right")
    filled = high > low
    rows, low, high = rows[filled], low[filled], high[filled]
    if not len(rows):
        return
    edges = np.stack((low, high), axis=1).ravel()
    begins, ends = (
        np.append(tasks["start_ns"].to_numpy(), 2**62),
        np.append(tasks["end"].to_numpy(), -(2**62)),
    )
    first[rows] = np.minimum(first[rows], np.minimum.reduceat(begins, edges)[::2])
    last[rows] = np.maximum(last[rows], np.maximum.reduceat(ends, edges)[::2])
    count[rows] += high - low


def _of_other_threads(
    trace: Trace, tree: SectionTree, work: pl.DataFrame, first: Array, last: Array, count: Array
) -> None:
    """Adds work launched by threads that mark nothing to what is open on the marking thread, and to all around that."""
    places = section_tree.ranges_of_other_threads(trace, tree, work)
    rows = np.flatnonzero(places != NOBODY)
    at, begins = places[rows], work["start_ns"].gather(rows).to_numpy()
    ends = begins + work["dur_ns"].gather(rows).to_numpy()
    while len(at):
        np.minimum.at(first, at, begins)
        np.maximum.at(last, at, ends)
        np.add.at(count, at, 1)
        at = tree.parent[at]
        begins, ends, at = begins[at != NOBODY], ends[at != NOBODY], at[at != NOBODY]
