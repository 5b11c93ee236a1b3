"""Memory is taken from the driver and given back in every step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import SHOWN_SPANS
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import rule
from foretrace.diagnose.seen import too_little
from foretrace.errors import MissingDataError
from foretrace.predict.builder import QUIET_NS
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Calls, ProgramTime
from foretrace.runtime_names import Effect, calls_that
from foretrace.sourced import JUDGEMENT, Nanoseconds, Share

LEAST_SHARE = Share(0.02, "host time", JUDGEMENT)
COLLECTING_NS = Nanoseconds(
    QUIET_NS,
    "a stretch without any event right before memory is given back",
    "more than Python takes between two operators",
)


_FIX = Fix(
    "Let torch keep its memory.",
    "# no gc.collect() and torch.cuda.empty_cache() in the loop\n"
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
)


@rule("GPU memory is allocated and freed in the step", "Allocator", see="idle")
def allocator_churn(case: Case) -> Iterator[Finding]:
    """cudaMalloc, cudaFree and their like within steps that have run before.

    Finds calls that take memory from the driver or give it back, after the first recorded step, where they take at least
    {LEAST_SHARE} of the host's time.

    Slow
        for batch in loader:
            train_step(batch)
            gc.collect()
            torch.cuda.empty_cache()

    Fast
        for batch in loader:
            train_step(batch)

    Why
    torch keeps what it has once allocated, so a settled program makes no such calls. cudaFree waits for the whole device,
    cudaMalloc takes 0.1 to 1 ms. They come from torch.cuda.empty_cache(), from memory that is nearly full, from
    fragmentation, and from sizes that change from step to step. Besides leaving out empty_cache(),
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and fixed or padded sizes help.

    How the worth is predicted
    The replay leaves the calls out, with waits for the device between them. Where memory is given back right after at
    least {COLLECTING_NS} in which nothing was called, that time goes too: it is most likely gc.collect(), which people write
    before empty_cache(). The range includes that it stays.

    When not
    The recorded steps are the program's first, or memory is so scarce that it must be given back.
    """
    case.trace.require("spans", "nothing recorded")
    program = case.program
    names = case.op_names(program.call_span)
    every = _allocating(names)
    if not len(every):
        return
    if len(case.trace.steps) < 2:
        raise MissingDataError(
            f"{case.trace.path.name}: memory is allocated, but fewer than two steps are marked (prof.step()), so it may be warm-up"
        )
    calls = Calls(every[program.step[every] > 0])
    spent_ns = int((program.call_end_ns - program.call_start_ns)[calls].sum())
    spent_ns += _collecting(case, names, calls).total_ns
    window_ns = case.trace.steps[-1].end_ns - case.trace.steps[1].start_ns
    if not len(calls) or too_little(case, "memory is allocated anew", spent_ns / window_ns, LEAST_SHARE):
        return
    yield _finding(case, names, calls, spent_ns, window_ns)


def _finding(case: Case, names: pl.Series, calls: Calls, spent_ns: int, window_ns: int) -> Finding:
    steps = case.step_count - 1
    shown = names.gather(calls).value_counts(sort=True).to_series(0)
    ids = case.program.call_span[calls]
    return Finding(
        says=f"{len(calls) / steps:.3g} calls a step take memory from the driver or give it back "
        f"({', '.join(shown[:3])}): {spent_ns / steps / 1e6:.3g} ms.",
        why="A settled program makes no such calls; giving memory back waits for the whole device.",
        fix=_FIX,
        evidence={
            "calls_per_step_count": len(calls) / steps,
            "spent_ns": spent_ns // steps,
            "spent_pct": 100 * spent_ns / max(window_ns, 1),
            "spans": ids[:SHOWN_SPANS].tolist(),
        },
        where=case.places(case.trace.spans["op_id"].gather(ids).drop_nulls().to_list()),
        change=_change(case, names, _allocating(names)),
        unless="the recorded steps are the program's first, or memory is so scarce that it must be given back.",
    )


def _allocating(names: pl.Series) -> Calls:
    """The calls that take memory from the driver or give it back."""
    memory, in_stream = (
        calls_that(names, Effect.ALLOCATE, Effect.FREE),
        calls_that(names, Effect.STREAM_ORDERED),
    )
    return Calls(np.flatnonzero(memory & ~in_stream))


def _change(case: Case, names: pl.Series, calls: Calls) -> Change:
    """The calls left out, with waits among them and what came right before; or without the latter."""
    collecting = _collecting(case, names, calls)
    waits = np.flatnonzero(calls_that(names, Effect.SYNC))
    among = waits[np.isin(waits - 1, calls) & np.isin(waits + 1, calls)]
    removed = Calls(np.union1d(calls, among))
    return Change(
        "no memory taken from the driver",
        Edit(removed_calls=removed, removed_host=collecting),
        others=(Edit(removed_calls=removed),) if collecting.total_ns else (),
    )


def _collecting(case: Case, names: pl.Series, calls: Calls) -> ProgramTime:
    """Long stretches without any event right before memory is given back."""
    program = case.program
    frees = calls[calls_that(names.gather(calls), Effect.FREE | Effect.BLOCKS)]
    quiet = frees[(program.gap_ns > dense_ns(program))[frees] & (program.gap_ops[frees] == 0)]
    reach = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)))
    return ProgramTime(intervals.union(reach[quiet], program.call_start_ns[quiet]))
