"""Layers run in fp32 within a model of half precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import fp32_islands
from foretrace.diagnose.patterns.casts import passing_copies, time_share
from foretrace.diagnose.removal import without_work
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs.gemm import PEAK_SHARE  # noqa: F401  # named on the page
from foretrace.predict.costs.precision import HALF_BYTES_TIME  # noqa: F401  # named on the page
from foretrace.predict.numbers import Calls
from foretrace.sourced import JUDGEMENT, Count, Share

LEAST_SHARE = Share(
    0.10, "GPU time that would go, or of host time where the step follows the host", JUDGEMENT
)


WIDEST = Count(
    24, "kernels between a cast up and the one back: a layer or two, and their gradients", JUDGEMENT
)


@needs(KERNELS)
@rule("Layers run in fp32 within a half-precision model", "Islands of fp32", see="roles")
def fp32_island(case: Case) -> Iterator[Finding]:
    """Casts to fp32 and back around matrix products, as of layers kept in fp32 within a bf16 model.

    Finds casts that the program asks for, from half precision to fp32 and back, with at most {WIDEST} kernels between
    them that compute in fp32 and multiply matrices, and the same in the backward pass. What would go must be at least
    {LEAST_SHARE} of GPU time, or of the host's where the step follows the host.

    Slow
        y = layer(x.float()).to(x.dtype)  # layer is kept in fp32

    Fast
        layer = layer.to(torch.bfloat16)
        y = layer(x)

    Why
    The products run without the tensor cores' half precision, and the casts read and write whole tensors and compute
    nothing.

    How the worth is predicted
    The casts go, forward and backward. Products take the time of their size in bf16 at {PEAK_SHARE} of the peak, other
    kernels {HALF_BYTES_TIME} of theirs. Nothing is promised, for the wider type may be needed.

    When not
    These layers need fp32: an optimizer that adds small steps to their weights may, and so may large sums.
    """
    islands = fp32_islands.islands(case, widest=WIDEST)
    if all(island.backward for island in islands):
        return
    casts = passing_copies(case).where(
        pl.col("task").is_in([task for island in islands for task in island.casts])
    )
    durations = fp32_islands.in_half(case, [task for island in islands for task in island.between])
    edit = without_work(casts)
    saved_ns = casts.dur_ns + sum(
        int(case.program.task_dur_ns[task]) - new for task, new in durations.items()
    )
    share = time_share(case, edit, saved_ns / case.device_ns)
    if too_little(case, "products in fp32 between casts", share, LEAST_SHARE):
        return
    half = next(dtype for dtype in (*casts.rows["source"], *casts.rows["target"]) if dtype != "fp32")
    yield casts.finding(
        "casts",
        says=f"{casts.per_step_count:.0f} casts a step between {half} and fp32 lie around matrix products in fp32: "
        f"{100 * saved_ns / case.device_ns:.0f} % of GPU time would go with both.",
        why=f"The products run without the tensor cores' {half}, and the casts read and write whole tensors.",
        fix=Fix(
            "Keep these layers in the model's type too.",
            "layer = layer.to(torch.bfloat16)   # not layer(x.float()).to(x.dtype) with a layer in fp32",
        ),
        change=Change(
            "casts removed, and what lies between in half precision",
            replace(edit, durations_ns=durations, modelled=frozenset(durations)),
            doubt="what comes after the cast may need the wider type",
        ),
        unless="these layers need fp32: an optimizer that adds small steps to their weights may.",
        claims=Calls(casts.rows["call"].to_numpy()),
    )
