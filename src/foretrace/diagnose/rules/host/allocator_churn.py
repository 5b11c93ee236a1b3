"""Memory is taken from the driver and given back in every step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import rule
from foretrace.errors import MissingDataError
from foretrace.intervals import Intervals
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_LEAST_SHARE = 0.02  # of the host's time


@rule(
    title="GPU memory is allocated and freed in the step",
    topic="Allocator",
    see="idle",
)
def allocator_churn(case: Case) -> Iterator[Finding]:
    """cudaMalloc, cudaFree and their like within steps that have run before.

    What it does
    Looks for calls that take memory from the driver or give it back, after the first recorded step, that
    take at least 2 % of the host's time. The replay leaves them out, with waits for the device between them. Where memory
    is given back right behind at least 200 µs in which nothing was called, that goes too: it is most likely gc.collect(),
    which people write before empty_cache(). The range includes that it stays.

    Why it matters
    torch keeps what it has once allocated, so a settled program makes none. cudaFree waits for the whole device,
    cudaMalloc takes 0.1 to 1 ms. They come from torch.cuda.empty_cache(), from memory that is nearly full,
    from fragmentation, and from sizes that change from step to step.

    Use instead
    No empty_cache() and no gc.collect() in the loop; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; fixed or padded sizes.
    """
    case.trace.require("spans", "nothing recorded")
    program = case.program
    names = case.names.gather(program.call_span)
    allocates = (
        names.str.contains(runtime_calls.ALLOCATE) & ~names.str.contains(runtime_calls.ASYNC)
    ).to_numpy()
    if not allocates.any():
        return
    if len(case.trace.steps) < 2:
        raise MissingDataError(
            f"{case.trace.path.name}: memory is allocated, but fewer than two steps are marked (prof.step()), so it may be warm-up"
        )
    calls = np.flatnonzero(allocates & (program.step > 0))
    steps = case.step_count - 1
    spent = int((program.call_end_ns - program.call_start_ns)[calls].sum())
    spent += _collecting(case, names, calls).total_ns
    window_ns = case.trace.steps[-1].end_ns - case.trace.steps[1].start_ns
    if not len(calls) or spent < _LEAST_SHARE * window_ns:
        return
    shown = names.gather(calls).value_counts(sort=True)
    ids = program.call_span[calls]
    yield Finding(
        says=f"{len(calls) / steps:.3g} calls a step take memory from the driver or give it back "
        f"({', '.join(shown.to_series(0).head(3))}): {spent / steps / 1e6:.3g} ms.",
        why="A settled program makes none; to give memory back waits for the whole device.",
        fix=Fix(
            "Let torch keep its memory.",
            "# no gc.collect() and torch.cuda.empty_cache() in the loop\n"
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
        ),
        evidence={
            "calls_per_step_count": len(calls) / steps,
            "spent_ns": spent // steps,
            "spent_pct": 100 * spent / max(window_ns, 1),
            "spans": ids[:5].tolist(),
        },
        where=case.places(case.trace.spans["op_id"].gather(ids).drop_nulls().to_list()),
        change=_change(case, names, np.flatnonzero(allocates)),
        unless="the recorded steps are the program's first, or memory is so scarce that it must be given back.",
    )


def _change(case: Case, names: pl.Series, calls: NDArray[np.int64]) -> Change:
    """The calls left out, with waits among them and what came right before; or without the latter."""
    collecting = _collecting(case, names, calls)
    waits = np.flatnonzero(names.str.contains(runtime_calls.SYNCHRONIZE).to_numpy())
    among = waits[np.isin(waits - 1, calls) & np.isin(waits + 1, calls)]
    gone = np.union1d(calls, among)
    return Change(
        "no memory taken from the driver",
        Edit(removed_calls=gone, removed_host=collecting),
        others=(Edit(removed_calls=gone),) if collecting.total_ns else (),
    )


def _collecting(case: Case, names: pl.Series, calls: NDArray[np.int64]) -> Intervals:
    """Long stretches without any event right before memory is given back."""
    program = case.program
    frees = calls[names.gather(calls).str.contains(runtime_calls.FREE).to_numpy()]
    quiet = frees[(program.gap_ns > dense_ns(program))[frees] & (program.gap_ops[frees] == 0)]
    reach = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)))
    return intervals.union(reach[quiet], program.call_start_ns[quiet])
