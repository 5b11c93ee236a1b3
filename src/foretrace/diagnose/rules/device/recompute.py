"""Activation checkpointing runs the forward pass again in the backward: memory bought with time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device.phases import BACKWARD, FORWARD, PHASES, RECOMPUTE
from foretrace.analyze.concepts.names.named_spans import named_like, of_kind, operator_rows
from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.launch_runs import launch_runs
from foretrace.diagnose.rule import KERNELS, healthy, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs import checkpointing
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import NO_TIME, ProgramTime, joined
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.03, "GPU time", JUDGEMENT)
_NODE = re.compile(r"^autograd::|Backward\d*$")
_KEEPS_INPUTS = "_NoopSaveInputs"  # checkpoint(use_reentrant=False) calls this operator once
_HOOK_NS = {FORWARD: checkpointing.PACK_NS, BACKWARD: checkpointing.UNPACK_NS}


@needs(KERNELS)
@healthy("roles", "{recompute_pct:.0f} % of GPU time", none="none")
@rule("The forward pass is computed twice", "Recomputation", see="roles")
def recompute(case: Case) -> Iterator[Finding]:
    """Activation checkpointing that runs the forward pass again inside the backward pass.

    Finds operators of the forward pass, by name and shapes, that run again inside the backward pass and take at least
    {LEAST_SHARE} of GPU time.

    Slow
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)

    Fast
        for i, block in enumerate(blocks):
            x = checkpoint(block, x, use_reentrant=False) if i % 2 else block(x)

    Why
    Checkpointing trades time for memory: activations are not kept but computed again, about a third more work. Where the
    memory would suffice, that time is spent for nothing. Checkpoint fewer blocks, or only attention's and the largest
    activations.

    How the worth is predicted
    The step without what is computed again. On the host, what checkpoint() does in Python goes too: once for each call, and
    {checkpointing.PACK_NS} forward and {checkpointing.UNPACK_NS} backward for each tensor that it saves in place of autograd.
    How many those are is not recorded; it is taken to be {checkpointing.SAVED} for each launch that is repeated,
    {checkpointing.SAVED_LEAST} and {checkpointing.SAVED_MOST} at the ends of the range.

    When not
    The activations do not fit into memory without it. Then this is no fault.
    """
    work = DeviceWork(case, case.tasks_with("phase"))
    again = work.where(pl.col("phase") == PHASES.index(RECOMPUTE))
    again = DeviceWork(case, again.rows.filter(_repeats(again)))
    if too_little(case, "checkpointing computes forward work again", again.gpu_share, LEAST_SHARE):
        return
    yield again.finding(
        "recomputed",
        counted="kernels",
        says=f"Checkpointing computes {again.per_step_ms:.3g} ms of forward work a step again: {again.gpu_pct:.0f} % of "
        "GPU time.",
        why="It trades time for memory: worth it only where the activations would not fit.",
        fix=Fix(
            "If memory allows, checkpoint fewer blocks.",
            "for i, block in enumerate(blocks):\n"
            "    x = checkpoint(block, x, use_reentrant=False) if i % 2 else block(x)",
        ),
        change=_change(work, again),
        unless="the activations do not fit without it.",
    )


def _change(work: DeviceWork, again: DeviceWork) -> Change:
    """The step without what is computed again, and without checkpoint() itself where it was recorded."""
    host, entered = _host_time(again), _entering(work.case)
    plain = Edit(removed_host=host, removed_tasks=again.tasks)
    if not len(entered.start):
        return Change("nothing computed again", plain)
    saved_counts = (checkpointing.SAVED, checkpointing.SAVED_LEAST, checkpointing.SAVED_MOST)
    hooked, *ends = (
        replace(plain, removed_host=joined(host, entered, _hooks(work, again, saved=saved)))
        for saved in saved_counts
    )
    return Change("nothing computed again", hooked, others=tuple(ends))


def _entering(case: Case) -> ProgramTime:
    """When the host was in checkpoint() itself: from the last launch to the operator by which it keeps its inputs."""
    program, spans = case.program, case.trace.spans
    keeping = spans.filter((spans["kind"] == "op") & (spans["name"].cast(pl.String) == _KEEPS_INPUTS))
    start = (keeping["start_ns"] - program.start_ns).to_numpy()
    launched = np.sort(program.call_end_ns[np.diff(program.task_from) > 0])
    before = np.searchsorted(launched, start, side="right")
    since = np.where(before > 0, launched[np.maximum(before - 1, 0)], start)
    begin = np.maximum(since, start - checkpointing.ENTERING_NS)
    return ProgramTime(intervals.union(begin, start + keeping["dur_ns"].fill_null(0).to_numpy()))


def _hooks(work: DeviceWork, again: DeviceWork, *, saved: int) -> ProgramTime:
    """Of the host's time between launches, forward and backward, what calls of Python for saved tensors take."""
    program = work.case.program
    before = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1]))
    recorded = np.maximum(program.call_start_ns - before, 0)
    launches = again.rows["call"].n_unique()
    stretches = [NO_TIME]
    for phase, hook_ns in _HOOK_NS.items():
        calls = work.rows.filter(pl.col("phase") == PHASES.index(phase))["call"].unique().to_numpy()
        share = saved * hook_ns * launches / max(int(program.gap_ns[calls].sum()), 1)
        end = program.call_start_ns[calls]
        start = end - (recorded[calls] * min(share, checkpointing.MOST_OF_GAPS)).astype(np.int64)
        stretches.append(ProgramTime(intervals.union(start, end)))
    return joined(*stretches)


def _repeats(work: DeviceWork) -> pl.Series:
    """Whether the forward pass called the same before: what a backward that is differentiated calls, it did not."""
    case = work.case
    forward = case.keep("calls of the forward", lambda: _forward_calls(case))
    repeated: dict[int, bool] = {}
    for op in work.rows["op_id"].drop_nulls().unique():
        in_node = list(takewhile(lambda caller: not _NODE.search(case.name(caller)), case.callers(op)))
        repeated[op] = (
            bool(in_node) and (case.name(in_node[-1]), case.argument(in_node[-1], "shapes")) in forward
        )
    return pl.Series([repeated.get(op, True) for op in work.rows["op_id"]], dtype=pl.Boolean)


def _forward_calls(case: Case) -> set[tuple[str, str]]:
    """Name and shapes of the operators that no other operator of torch calls, nor a node of autograd."""
    trace = case.trace
    parent, is_op = attribution.parents(trace), of_kind(trace, "op")
    calls = is_op & named_like(trace, f"^aten::|{_NODE.pattern}")
    ids = np.flatnonzero(is_op & ~((parent != NOBODY) & calls[parent]))
    rows = operator_rows(trace, ids)
    ids, rows = ids[rows >= 0], rows[rows >= 0]
    ops = trace.ops.select("shapes", "forward_id", "forward_thread")[rows]
    ops = ops.with_columns(name=trace.spans["name"].gather(ids))
    ops = ops.filter(pl.col("forward_id").is_null() & (pl.col("forward_thread").fill_null(0) == 0))
    told = ops.select("name", "shapes").unique().with_columns(pl.all().cast(pl.String))
    return set(told.with_columns(pl.col("shapes").fill_null("")).iter_rows())


def _host_time(again: DeviceWork) -> ProgramTime:
    """The host's time for each run of recomputed work: its calls, and the node's Python around them.

    Checkpointing starts in a node of autograd, before the node's own operators: it restores the state of the random
    numbers, calls the module, and unpacks what it saved.
    """
    case, program = again.case, again.case.program
    launching, first, last = launch_runs(case, again.rows["call"].to_numpy())
    starts = program.call_start_ns[launching[first]].copy()
    ends = program.call_end_ns[launching[last]].copy()
    for run, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        before = int(program.call_end_ns[launching[begin - 1]]) if begin else 0
        around = [start for start in _starts_around(case, int(launching[begin])) if start >= before]
        starts[run] = min([*around, int(starts[run])])
        if end + 1 < len(launching):
            after = _starts_around(case, int(launching[end + 1]))
            ends[run] = min((start for start in after if start >= ends[run]), default=int(ends[run]))
    return ProgramTime(intervals.union(starts, ends))


def _starts_around(case: Case, call: int) -> list[int]:
    """When the operators around a call began, since the program's start."""
    spans = case.trace.spans
    parents, kinds, starts = spans["parent_id"], spans["kind"], spans["start_ns"]
    around, span = [], parents[int(case.program.call_span[call])]
    while span is not None:
        if kinds[span] == "op":  # where Python was recorded, its frames stand between operators
            around.append(int(starts[span]) - case.program.start_ns)
        span = parents[span]
    return around
