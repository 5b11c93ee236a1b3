"""Activation checkpointing runs the forward pass again in the backward: memory bought with time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.device_roles import classified
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
    phases = classified(case.trace).select("id", "phase")
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
    """The host's time from the first to the last call of each run of recomputed work, where nothing else is launched."""
    call = np.unique(mine["call"].to_numpy())
    launching = np.flatnonzero(np.diff(case.program.task_from) > 0)
    place = np.searchsorted(launching, call)
    first = np.concatenate(([True], np.diff(place) > 1))
    last = np.concatenate((first[1:], [True]))
    start = case.program.call_start_ns[call[first]]
    end = case.program.call_end_ns[call[last]]
    return intervals.union(start, end)
