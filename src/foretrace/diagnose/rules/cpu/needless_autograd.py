"""Autograd writes down a graph that nothing uses."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.cpu_operators import CpuOperators, cpu_operators, replaced
from foretrace.diagnose.rule import CPU, headline, on, rule
from foretrace.predict.changes import Change
from foretrace.predict.costs.cpu_overheads import LEAST_NODE_NS, NODE_NS
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Count, Share

LEAST_NODES = Count(20, "nodes of autograd a step", JUDGEMENT)
_MOST = Share(0.5, "the operators' time that goes with the graph, at most", JUDGEMENT)


@on(CPU)
@headline("Autograd makes {nodes_per_step_count:.0f} nodes in every step, and nothing uses them")
@rule("Autograd's graph is made for nothing", "Autograd", see="operators")
def needless_autograd(case: Case) -> Iterator[Finding]:
    """A program that only infers, with autograd switched on: each operator leaves a node and keeps its inputs.

    Finds steps without a backward pass or an optimizer in which autograd's sequence numbers grow by {LEAST_NODES} or more.

    Slow
        answer = model(request)

    Fast
        with torch.inference_mode():
            answer = model(request)

    Why
    Where a parameter needs a gradient, each operator makes a node of a graph, and the graph keeps every activation until
    the result is dropped: memory is taken anew where it could have been used again, and the processor's caches are cold.

    How the worth is predicted
    The step is replayed with {NODE_NS} less for each node, memory included; the range is from {LEAST_NODE_NS}, for the node
    alone, to twice as much.

    When not
    A backward pass follows that was not recorded.
    """
    if case.trains or _optimizes(case):
        return
    nodes = _nodes(case)
    count = int(nodes.table["made"].sum()) / case.step_count
    if count < LEAST_NODES:
        return
    yield Finding(
        says=f"The program only infers, but autograd makes {count:.0f} nodes a step, and they keep what was computed.",
        why="Making nodes takes time, and activations that are kept need new memory.",
        fix=Fix("Switch autograd off.", "with torch.inference_mode():\n    answer = model(request)"),
        evidence={"nodes_per_step_count": count, "nodes_ns": round(count * NODE_NS)},
        where=case.places(nodes.ids),
        change=Change(
            "no graph made", _without(case, count, NODE_NS),
            others=(_without(case, count, LEAST_NODE_NS), _without(case, count, 2 * NODE_NS)),
        ),
        unless="a backward pass follows that was not recorded.",
    )  # fmt: skip


def _optimizes(case: Case) -> bool:
    return bool(case.names.str.starts_with("Optimizer.step#").any())


def _nodes(case: Case) -> CpuOperators:
    """Operators behind which the sequence number is higher, with how many nodes were `made` by then."""
    numbers = case.trace.ops.select(pl.col("span_id").cast(pl.Int64).alias("op_id"), "sequence").drop_nulls()
    table = cpu_operators(case).table.join(numbers, on="op_id", how="inner").sort("start_ns", "op_id")
    made = table["sequence"].diff().fill_null(0).clip(0).shift(-1).fill_null(0)
    return CpuOperators(case, table.with_columns(made=made).filter(pl.col("made") > 0))


def _without(case: Case, count: float, node_ns: float) -> Edit:
    """The step shorter by its nodes, in all operators alike: what keeps memory is felt by what needs some next."""
    leaves = cpu_operators(case).where(~pl.col("calls_others"))
    every = leaves.self_step_ns
    left = 1 - min(count * node_ns, _MOST * every) / max(every, 1.0)
    return replaced(case, leaves, (leaves.table["dur_ns"] * left).to_list())
