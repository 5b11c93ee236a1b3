"""The work of host calls: the FLOPs of the operators inside them, and their kernels' time on tensor cores.

Amounts belong to the call itself; `CallTree.with_callees` adds what is inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.concepts.names.per_name import by_name
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array, CallTree
from foretrace.analyze.concepts.work import flops as op_flops
from foretrace.trace import Trace

UNTOLD, _NO, YES = 0, 1, 2


@dataclass(frozen=True)
class OperatorWork:
    """For each row of a CallTree, what the call itself did."""

    flops: Array
    has_flops: Array  # 1 where the FLOPs are known, also where they are none
    tensor_core_ns: Array  # time of its kernels that, by name, use tensor cores
    told_ns: Array  # time of its kernels whose names tell whether they do


def operator_work(trace: Trace, tree: CallTree) -> OperatorWork:
    """The work of each call: FLOPs as recorded, else from shapes; tensor cores by the names of kernels."""
    counted = trace.ops.select("span_id", "flops").drop_nulls()
    if counted.is_empty():
        counted = op_flops.op_work(trace).select("span_id", "flops").drop_nulls()
    kernels = trace.spans.filter(
        (pl.col("kind") == "kernel") & pl.col("op_id").is_not_null() & (pl.col("dur_ns") > 0)
    ).select("name", "op_id", "dur_ns")
    answer = tensor_cores(kernels["name"])
    length, op = kernels["dur_ns"].to_numpy(), kernels["op_id"].to_numpy()
    spans = counted["span_id"].to_numpy()
    return OperatorWork(
        flops=_at_calls(trace, tree, spans, counted["flops"].to_numpy()),
        has_flops=_at_calls(trace, tree, spans, np.ones(len(spans), np.int64)),
        tensor_core_ns=_at_calls(trace, tree, op, np.where(answer == YES, length, 0)),
        told_ns=_at_calls(trace, tree, op, np.where(answer == UNTOLD, 0, length)),
    )


def tensor_cores(names: pl.Series) -> Array:
    """For each kernel's name: 2 where it says tensor cores, 1 where it says none, 0 where it does not tell."""

    def answers(distinct: pl.Series) -> Array:
        told = {None: UNTOLD, False: _NO, True: YES}
        return np.array([told[decode(name).tensor_cores] for name in distinct.to_list()], np.uint8)

    return by_name(names, answers)


def _at_calls(trace: Trace, tree: CallTree, spans: Array, amount: Array) -> Array:
    """The amounts of these spans, summed at the calls of the tree; one that is no call of it counts at its caller."""
    row = np.full(trace.spans.height + 1, NOBODY, np.int64)  # NOBODY is the last place
    row[tree.span_id] = np.arange(len(tree.span_id))
    parent = trace.spans["parent_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    at = spans.astype(np.int64)
    while len(loose := np.flatnonzero((row[at] == NOBODY) & (at != NOBODY))):
        at[loose] = parent[at[loose]]
    total = np.zeros(len(tree.span_id), np.int64)
    there = at != NOBODY
    np.add.at(total, row[at[there]], amount[there].astype(np.int64))
    return total
