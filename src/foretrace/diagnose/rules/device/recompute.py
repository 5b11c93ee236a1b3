"""Activation checkpointing runs the forward pass again in the backward: memory bought with time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device.phases import BACKWARD, FORWARD, PHASES, RECOMPUTE
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import Healthy, rule
from foretrace.intervals import Intervals
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_LEAST_SHARE = 0.03
_NODE = re.compile(r"^autograd::|Backward\d*$")
# checkpoint(use_reentrant=False) calls this operator, and Python for every tensor that autograd saves, and again as it is
# needed: 7 to 16 µs in all with torch 2.13, by what is saved. Other checkpoints save nothing.
_HOOKED = "_NoopSaveInputs"
_HOOK_NS = {FORWARD: 6_000, BACKWARD: 4_000}
_SAVED, _SAVED_ENDS = 2, (1, 3)  # tensors for each launch: a linear layer saves two, a norm four, a sum none
_MOST_OF_GAP = 0.5  # of the host's time between launches, what the hooks take at most
_ENTERING_NS = 250_000  # recorded, of one call of checkpoint() itself, at most


def _no_issue(values: Mapping[str, Any]) -> str | None:
    share = values.get("recompute_pct")
    if share is None:
        return None
    return f"{share:.0f} % of GPU time" if share else "none"


@rule(
    title="The forward pass is computed twice",
    topic="Recomputation",
    see="roles",
    healthy=Healthy("roles", _no_issue),
)
def recompute(case: Case) -> Iterator[Finding]:
    """What activation checkpointing costs.

    What it does
    Looks for operators of the forward pass, by name and shapes, that run again inside the backward pass and take at
    least 3 % of the GPU's time. The prediction is the step without them, and on the host without what checkpoint() does in
    Python: once for each call, and 10 µs for each tensor that it saves in place of autograd. How many those are is not
    recorded; it is taken to be two for each launch that is repeated, one and three at the ends of the range.

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
    mine = mine.filter(_repeats(case, mine))
    spent = int(mine["dur_ns"].sum())
    if spent < _LEAST_SHARE * device_ns:
        return
    yield Finding(
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
        change=_change(case, work, mine),
        unless="the activations do not fit without it.",
    )


def _change(case: Case, work: pl.DataFrame, mine: pl.DataFrame) -> Change:
    again, tasks = _host(case, mine), mine["task"].to_numpy()
    entered = _entering(case)
    plain = Edit(removed_host=again, removed_tasks=tasks)
    if not len(entered.start):
        return Change("nothing computed again", plain)
    hooked, *ends = (
        replace(plain, removed_host=_together(again, entered, _hooks(case, work, mine, times=times)))
        for times in (_SAVED, *_SAVED_ENDS)
    )
    return Change("nothing computed again", hooked, others=tuple(ends))


def _together(*every: Intervals) -> Intervals:
    return intervals.union(
        np.concatenate([each.start for each in every]), np.concatenate([each.end for each in every])
    )


def _entering(case: Case) -> Intervals:
    """When the host was in checkpoint() itself: from the last launch to the operator by which it keeps its inputs."""
    program, spans = case.program, case.trace.spans
    kept = spans.filter((spans["kind"] == "op") & (spans["name"].cast(pl.String) == _HOOKED))
    start = (kept["start_ns"] - program.start_ns).to_numpy()
    launched = np.sort(program.call_end_ns[np.diff(program.task_from) > 0])
    before = np.searchsorted(launched, start, side="right")
    since = np.where(before > 0, launched[np.maximum(before - 1, 0)], start)
    return intervals.union(
        np.maximum(since, start - _ENTERING_NS), start + kept["dur_ns"].fill_null(0).to_numpy()
    )


def _hooks(case: Case, work: pl.DataFrame, mine: pl.DataFrame, *, times: int) -> Intervals:
    """Of the host's time between launches, forward and backward, what calls of Python for saved tensors take."""
    program = case.program
    before = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1]))
    recorded = np.maximum(program.call_start_ns - before, 0)
    saved = mine["call"].n_unique()
    starts, ends = [], []
    for phase, each_ns in _HOOK_NS.items():
        calls = work.filter(pl.col("phase") == PHASES.index(phase))["call"].unique().to_numpy()
        if not len(calls):
            continue
        share = times * each_ns * saved / max(int(program.gap_ns[calls].sum()), 1)
        ends.append(program.call_start_ns[calls])
        starts.append(ends[-1] - (recorded[calls] * min(share, _MOST_OF_GAP)).astype(np.int64))
    return intervals.union(np.concatenate(starts), np.concatenate(ends)) if starts else intervals.EMPTY


def _repeats(case: Case, mine: pl.DataFrame) -> pl.Series:
    """Whether the forward pass called the same before: what a backward that is differentiated calls, it did not."""
    names = case.names
    forward = case.keep("calls of the forward", lambda: _forward_calls(case))
    outermost: dict[int, bool] = {}
    for op in mine["op_id"].drop_nulls().unique():
        inside = list(takewhile(lambda each: not _NODE.search(names[each]), case.callers(op)))
        outermost[op] = bool(inside) and (names[inside[-1]], case.argument(inside[-1], "shapes")) in forward
    return pl.Series([outermost.get(op, True) for op in mine["op_id"]], dtype=pl.Boolean)


def _forward_calls(case: Case) -> set[tuple[str, str]]:
    """Name and shapes of the operators that no other operator of torch calls, nor a node of autograd."""
    spans = case.trace.spans
    above = spans["name"].gather(spans["parent_id"]).cast(pl.String)
    is_op = (spans["kind"].gather(spans["parent_id"]) == "op").fill_null(value=False)
    called = is_op & above.str.contains(f"^aten::|{_NODE.pattern}").fill_null(value=False)
    outer = spans.filter((spans["kind"] == "op") & ~called).select("id", pl.col("name").cast(pl.String))
    ops = case.trace.ops.filter(pl.col("forward_id").is_null() & (pl.col("forward_thread").fill_null(0) == 0))
    ops = ops.select("span_id", pl.col("shapes").cast(pl.String).fill_null(""))
    told = outer.join(ops, left_on="id", right_on="span_id")
    return set(told.select("name", "shapes").iter_rows())


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
