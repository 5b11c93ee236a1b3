"""Time around operators that compiling the model can reach: the caller's own Python, between operators, is no part of it.

Within an operator it is torch's dispatch, between two nodes of the backward pass it is autograd. Between two operators of the
forward pass it is Python, of a module or of the program around it: only frames tell which. A light recording has none; there
the rich one of the same program is asked whether a module called what comes before and after.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns.cpu_operators import cpu_operators
from foretrace.intervals import Intervals

_BACKWARD = "autograd::engine::evaluate_function"
_MODULE = "nn.Module: "
_Pair = tuple[str, str]


def compilable(case: Case) -> Intervals:
    """When the host was within operators, or between two that a module or the backward pass calls, on the program's clock."""
    outer = _outermost(case)
    start, end = outer["start_ns"].to_numpy(), outer["end_ns"].to_numpy()
    backward = outer["name"].str.starts_with(_BACKWARD).to_numpy()
    between = backward[:-1] & backward[1:]
    framed = case if _has_modules(case) else case.rich
    if framed is not None and _has_modules(framed):
        called = _by_modules(framed)
        names = outer["name"].to_list()
        between |= np.array([pair in called for pair in pairwise(names)], bool)
    chosen = np.flatnonzero(between & (start[1:] > end[:-1]))
    return intervals.union(
        np.concatenate((start, end[:-1][chosen])), np.concatenate((end, start[1:][chosen]))
    )


def _outermost(case: Case) -> pl.DataFrame:
    """The operators that no operator called, in order."""
    table = cpu_operators(case).table
    return table.filter(pl.Series(case.calling_op[table["op_id"].to_numpy()] < 0)).sort("start_ns")


def _has_modules(case: Case) -> bool:
    spans = case.trace.spans.filter(pl.col("kind") == "python")
    return bool(spans["name"].cast(pl.String).str.starts_with(_MODULE).any())


def _by_modules(case: Case) -> set[_Pair]:
    """Pairs of operators that follow each other within one call of a module, mostly if not always."""
    outer = _outermost(case)
    start, end = outer["start_ns"].to_numpy(), outer["end_ns"].to_numpy()
    inside = _within_one(_module_calls(case), end[:-1], start[1:])
    names = outer["name"].to_list()
    pairs = list(pairwise(names))
    times = Counter(pairs)
    within = Counter(pair for pair, whole in zip(pairs, inside.tolist(), strict=True) if whole)
    return {pair for pair, count in within.items() if 2 * count > times[pair]}


def _module_calls(case: Case) -> Intervals:
    """When modules were called, the outermost of those that call each other; on the program's clock."""
    threads = case.trace.spans["track_id"].gather(case.program.call_span).unique().implode()
    calls = case.trace.spans.filter(
        (pl.col("kind") == "python")
        & pl.col("track_id").is_in(threads)
        & pl.col("name").cast(pl.String).str.starts_with(_MODULE)
        & pl.col("dur_ns").is_not_null()
    )
    start = (calls["start_ns"] - case.program.start_ns).to_numpy()
    return intervals.union(start, start + calls["dur_ns"].to_numpy())


def _within_one(calls: Intervals, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each stretch, whether one of these intervals holds all of it."""
    if not len(calls.start):
        return np.zeros(len(start), bool)
    place = np.searchsorted(calls.start, start, "right") - 1
    return (place >= 0) & (calls.end[np.maximum(place, 0)] >= end)
