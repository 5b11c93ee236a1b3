"""The tree of Python stacks and the spans that carry each.

Not an analysis itself; `stacks` and flame graphs share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze import attribution
from foretrace.analyze.call_tree import NOBODY, Array
from foretrace.trace import Trace

_ADDRESS = r"(?: object)? at 0x[0-9a-fA-F]+"  # tells objects of one call apart
_COLUMNS = ("function", "file", "line")


@dataclass(frozen=True)
class StackTree:
    """Stacks, callers before callees; a stack is a frame and its callers."""

    frames: pl.DataFrame  # function, file and line of the innermost frame
    parent: Array  # per stack, or NOBODY
    carried: Array  # per span of the trace: its own stack, or NOBODY
    calls: Array | None  # per stack; null where calls were not recorded


def find(trace: Trace) -> StackTree:
    """The stacks of Python calls, or where none were recorded those of operators."""
    stacks = trace.require("stacks", "no Python stacks recorded; record with with_stack=True")
    frames = stacks.select(pl.col("function").str.replace(_ADDRESS, ""), "file", "line")
    parent = stacks["parent_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    carried = np.full(trace.spans.height, NOBODY, np.int64)
    calls = trace.python.select("span_id", "stack_id").drop_nulls()
    known = calls if calls.height else trace.ops.select("span_id", "stack_id").drop_nulls()
    rows, stack = known["span_id"].to_numpy(), known["stack_id"].cast(pl.Int64).to_numpy()
    if calls.height and (nested := attribution.nesting(trace)).repaired:
        frames, parent, stack = _rebuilt(frames, nested.parent, rows, stack)
    carried[rows] = stack
    count = np.bincount(stack, minlength=len(parent)) if calls.height else None
    return StackTree(frames, parent, carried, count)


def _rebuilt(
    frames: pl.DataFrame, parent: Array, rows: Array, stack: Array
) -> tuple[pl.DataFrame, Array, Array]:
    """Frames and parents of the stacks that corrected nesting makes, and the stack of each call."""
    called = np.zeros(len(parent), bool)
    called[rows] = True
    around = attribution.nearest(parent, called)
    place = np.full(len(parent) + 1, NOBODY)
    place[rows] = np.arange(len(rows))
    caller = place[np.where(parent[rows] == NOBODY, NOBODY, around[parent[rows]])]
    code = frames.select(pl.struct(_COLUMNS).rank("dense")).to_series().to_numpy()[stack]
    node = np.full(len(rows), NOBODY)
    kept: list[Array] = []
    above: list[Array] = []
    count = 0
    for level in attribution.levels(caller):
        outer = np.where(caller[level] == NOBODY, NOBODY, node[caller[level]])
        key = outer.astype(np.int64) * (int(code.max()) + 1) + code[level]
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        node[level] = count + which
        kept.append(stack[level[first]])
        above.append(outer[first])
        count += len(first)
    return frames[np.concatenate(kept)], np.concatenate(above), node
