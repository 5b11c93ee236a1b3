"""Python stacks of events as torch.profiler groups by them: innermost frame first, backward under its forward."""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace.analyze.concepts.names.line_text import function_text
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array, CallTree
from foretrace.trace import Trace

# Frames that torch's profiler_util leaves out: file part and function part.
_LEFT_OUT = (
    ("autograd/__init__", "_make_grads"), ("autograd/__init__", "backward"), ("torch/tensor", "backward"),
    ("_internal/common_utils", "prof_callable"), ("_internal/common_utils", "prof_func_call"),
    ("_internal/common_utils", "prof_meth_call"),
)  # fmt: skip


def add(
    trace: Trace, tree: CallTree, host: pl.DataFrame, device: pl.DataFrame, *, depth: int
) -> list[pl.DataFrame]:
    """Host and device events with a column `stack`: up to `depth` frames, null where there are none."""
    trace.require("stacks", "no Python stacks recorded; record with with_stack=True")
    of_span = _stack_of_spans(trace)
    by_row = of_span[tree.span_id]
    called = (trace.spans["kind"].gather(tree.span_id) == "python").to_numpy()
    callers = trace.stacks["parent_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    by_row[called] = np.where(by_row[called] == NOBODY, NOBODY, callers[by_row[called]])
    backward = _backward_row(trace, tree)
    under = np.flatnonzero(backward != NOBODY)
    by_row[under] = _forward_stack(trace, tree, by_row, backward)[backward[under]]
    cause = pl.coalesce(pl.col("launch_id"), pl.col("op_id")).cast(pl.Int64).fill_null(NOBODY)
    causes = device.select(cause).to_series().to_numpy()
    by_device = np.where(causes == NOBODY, NOBODY, of_span[causes])
    text = _texts(trace, np.union1d(by_row, by_device), depth)
    return [
        events.with_columns(
            stack=pl.Series(stacks).replace_strict(text, default=None, return_dtype=pl.String)
        )
        for events, stacks in ((host, by_row), (device, by_device))
    ]


def _stack_of_spans(trace: Trace) -> Array:
    """For each span the stack of the innermost Python frame around it, or NOBODY."""
    spans = trace.spans
    stack = np.full(spans.height, NOBODY, np.int64)
    known = np.zeros(spans.height, bool)
    for table in (trace.ops, trace.python):
        rows = table["span_id"].to_numpy()
        stack[rows] = table["stack_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
        known[rows] = True
    parent = spans["parent_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    rows = np.flatnonzero(~known & (parent != NOBODY))
    above = parent[rows]
    while len(rows):
        has_stack = known[above]
        stack[rows[has_stack]] = stack[above[has_stack]]
        rows, above = rows[~has_stack], parent[above[~has_stack]]
        inside = above != NOBODY
        rows, above = rows[inside], above[inside]
    return stack


def _of_ops(trace: Trace, tree: CallTree, column: str, absent: int) -> Array:
    """A column of `ops` for each call of the tree."""
    values = np.full(trace.spans.height, absent, np.int64)
    values[trace.ops["span_id"].to_numpy()] = trace.ops[column].fill_null(absent).to_numpy()
    taken: Array = values[tree.span_id]
    return taken


def _backward_row(trace: Trace, tree: CallTree) -> Array:
    """For each call, the row of the innermost backward operator that it is or lies in, or NOBODY."""
    names = trace.spans["name"].gather(tree.span_id).cast(pl.String)
    # The engine's own wrapper carries the numbers of the backward operator, but stands in no backward scope.
    wrapper = names.str.starts_with("autograd::engine::evaluate_function").to_numpy()
    is_backward = (_of_ops(trace, tree, "forward_thread", 0) != 0) & ~wrapper
    inside = np.arange(len(tree.parent))
    while len(up := np.flatnonzero((inside != NOBODY) & ~is_backward[inside])):
        inside[up] = tree.parent[inside[up]]
    return inside


def _forward_stack(trace: Trace, tree: CallTree, stacks: Array, backward: Array) -> Array:
    """For each row, the stack of the first forward operator with its sequence number, or NOBODY."""
    sequence = _of_ops(trace, tree, "sequence", NOBODY)
    forward = np.flatnonzero((backward == NOBODY) & (sequence != NOBODY))
    forward = forward[np.argsort(tree.start_ns[forward], kind="stable")]
    numbers, first = np.unique(sequence[forward], return_index=True)
    if not len(numbers):
        return np.full(len(sequence), NOBODY)
    place = np.minimum(np.searchsorted(numbers, sequence), len(numbers) - 1)
    return np.where(numbers[place] == sequence, stacks[forward[first[place]]], NOBODY)


def _texts(trace: Trace, stacks: Array, depth: int) -> dict[int, str | None]:
    """For each stack, its innermost frames as torch writes them."""
    parents = trace.stacks["parent_id"].to_list()
    words = trace.stacks.select(function_text()).to_series().to_list()
    texts: dict[int, str | None] = {NOBODY: None}
    for stack in stacks.tolist():
        frames: list[str] = []
        node = stack if stack != NOBODY else None
        while node is not None and len(frames) < depth:
            frame = words[node]
            if not any(where in frame and what in frame for where, what in _LEFT_OUT):
                frames.append(frame)
            node = parents[node]
        texts[stack] = "; ".join(frames) or None
    return texts
