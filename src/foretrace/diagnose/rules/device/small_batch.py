"""Most kernels are too small to fill the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import batch_parts
from foretrace.diagnose.patterns.batch_parts import FILLED_BELOW
from foretrace.diagnose.rule import GEOMETRY, KERNELS, healthy, needs, rule


def _no_issue(values: Mapping[str, Any]) -> str | None:
    share, busy = values.get("sm_efficiency_pct"), values.get("gpu_busy_pct")
    return f"kernels fill {100 * share / busy:.0f} % of the multiprocessors" if share and busy else None


@needs(KERNELS, GEOMETRY)
@healthy("overview", _no_issue)
@rule("The batch is too small for this GPU", "Batch size", see="roofline")
def small_batch(case: Case) -> Iterator[Finding]:
    """Kernels that have fewer blocks than the GPU has multiprocessors, most of the time.

    Finds programs whose kernels, weighted by their time, have blocks for less than {FILLED_BELOW} of the multiprocessors.
    Where a step runs forward and backward over several parts of a batch, gradient-accumulation speaks instead.

    Slow
        loader = DataLoader(dataset, batch_size=4)

    Fast
        loader = DataLoader(dataset, batch_size=16)  # or longer sequences; for serving, requests batched together

    Why
    A kernel that leaves multiprocessors without a block takes nearly as long as one that fills them: more items cost little.

    How the worth is predicted
    It is not: more items a step are other work, and a step would take longer. What falls is the time per item. `foretrace
    predict` with `scale batch` tells what a larger batch takes.

    When not
    The batch is given by the task, or these kernels take many threads per block and long loops by design.
    """
    kernels = batch_parts.kernels(case)
    filled = batch_parts.filled_share(kernels)
    if filled >= FILLED_BELOW or batch_parts.find(case):
        return
    small = kernels.where(pl.col("blocks_per_sm") < 1)
    longest = DeviceWork(case, small.rows.sort("dur_ns", descending=True))
    small_pct = 100 * small.dur_ns / kernels.dur_ns
    yield Finding(
        says=f"Kernels fill only {100 * filled:.0f} % of the GPU's multiprocessors, averaged over their time; "
        f"{small_pct:.0f} % of it goes to kernels with fewer blocks than there are multiprocessors.",
        why="A kernel that leaves multiprocessors empty takes nearly as long as one that fills them.",
        fix=Fix(
            "Give each step more items, if memory and the task allow it: compare time per item, not per step.",
            "loader = DataLoader(dataset, batch_size=4 * batch_size)   # in training, check the learning rate too",
        ),
        evidence={
            "small_ns": small.dur_ns // case.step_count,
            "small_pct": small_pct,
            "filled_pct": 100 * filled,
            "spans": longest.spans(),
        },
        where=small.places(),
        unless="the batch is given by the task, or these kernels take many threads per block and long loops by design.",
    )
