"""The tree of Python stacks and the spans that carry each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
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
    carried[rows] = stack
    count = np.bincount(stack, minlength=len(parent)) if calls.height else None
    return StackTree(frames, parent, carried, count)
