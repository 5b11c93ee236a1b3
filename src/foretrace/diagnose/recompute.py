"""Activation checkpointing runs the forward pass again in the backward: memory bought with time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.phases import PHASES, RECOMPUTE
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.intervals import Intervals
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_LEAST_SHARE = 0.03


@rule
def recompute(case: Case) -> Iterator[Finding]:
    """What activation checkpointing costs.

    What it does
    Looks for forward operators that run inside the backward pass and take at least 3 % of the GPU's time. The
    prediction is the step without them.

    Why it matters
    Checkpointing trades time for memory: activations are not kept but computed again, about a third more work.
    Where the memory would suffice, that time is spent for nothing. Where it would not, this is no fault.

    Use instead
    Nothing, if memory is short. Else checkpoint fewer blocks, or only attention's and the largest activations.
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    device_ns = max(int(case.program.task_dur_ns.sum()), 1)
    phases = case.roles.select("id", "phase")
    work = case.tasks.join(phases, on="id", how="left", maintain_order="left")
    mine = work.filter(pl.col("phase") == PHASES.index(RECOMPUTE))
    spent = int(mine["dur_ns"].sum())
    if spent < _LEAST_SHARE * device_ns:
        return
    yield Finding(
        rule="recompute",
        says=f"Checkpointing computes {spent / case.step_count / 1e6:.3g} ms of forward work a step again: "
        f"{100 * spent / device_ns:.0f} % of the GPU's time.",
        why="It trades time for memory: worth it only where the activations would not fit.",
        fix=Fix(
            "If memory allows, checkpoint fewer blocks.",
            "for i, block in enumerate(blocks):\n"
            "    x = checkpoint(block, x, use_reentrant=False) if i % 2 else block(x)",
        ),
        evidence={
            "recomputed_ns": spent // case.step_count,
            "recomputed_pct": 100 * spent / device_ns,
            "kernels_per_step_count": mine.height / case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().to_list()),
        change=Change(
            "nothing computed again",
            Edit(removed_host=_host(case, mine), removed_tasks=mine["task"].to_numpy()),
        ),
        unless="the activations do not fit without it; or the backward itself is differentiated (create_graph=True), "
        "which looks the same.",
    )


def _host(case: Case, mine: pl.DataFrame) -> Intervals:
    """The host's time for each run of recomputed work: its calls, and the node's Python around them.

    Checkpointing starts in a node of autograd, before the node's own operators: it restores the state of the random
    numbers, calls the module, and unpacks what it saved.
    """
    program = case.program
    call = np.unique(mine["call"].to_numpy())
    launching = np.flatnonzero(np.diff(program.task_from) > 0)
    place = np.searchsorted(launching, call)
    first = np.concatenate(([True], np.diff(place) > 1))
    last = np.concatenate((first[1:], [True]))
    starts, ends = program.call_start_ns[call[first]].copy(), program.call_end_ns[call[last]].copy()
    for run, (begin, end) in enumerate(zip(place[first].tolist(), place[last].tolist(), strict=True)):
        before = int(program.call_end_ns[launching[begin - 1]]) if begin else 0
        around = [start for start in _starts_around(case, int(launching[begin])) if start >= before]
        starts[run] = min([*around, int(starts[run])])
        if end + 1 < len(launching):
            behind = _starts_around(case, int(launching[end + 1]))
            ends[run] = min((start for start in behind if start >= ends[run]), default=int(ends[run]))
    return intervals.union(starts, ends)


def _starts_around(case: Case, call: int) -> list[int]:
    """When the operators around a call began, since the program's start."""
    spans = case.trace.spans
    parents, kinds, starts = spans["parent_id"], spans["kind"], spans["start_ns"]
    found, at = [], parents[int(case.program.call_span[call])]
    while at is not None:
        if kinds[at] == "op":  # where Python was recorded, its frames stand between operators
            found.append(int(starts[at]) - case.program.start_ns)
        at = parents[at]
    return found
