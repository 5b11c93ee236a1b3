"""Long kernels with fewer blocks than the GPU has multiprocessors leave the rest of it idle."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import GEOMETRY, KERNELS, healthy, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.sourced import JUDGEMENT, Nanoseconds, Share

LEAST_SHARE = Share(0.10, "GPU time", JUDGEMENT)
LONG_NS = Nanoseconds(10_000, "a kernel; shorter ones are a matter of launches", JUDGEMENT)
FEW_BLOCKS = Share(0.5, "the multiprocessors, given a block", JUDGEMENT)
_FEW_BY_DESIGN = ("attention", "communication")


@needs(KERNELS, GEOMETRY)
@healthy("overview", "{occupancy_pct:.0f} %, estimated")
@rule("Kernels have too few blocks for this GPU", "Occupancy", see="kernels")
def low_occupancy(case: Case) -> Iterator[Finding]:
    """Kernels of {LONG_NS} and more whose blocks fill less than half of the GPU.

    Finds kernels of {LONG_NS} and more with blocks for less than {FEW_BLOCKS} of the multiprocessors, where they take
    at least {LEAST_SHARE} of GPU time. Few warps on each multiprocessor are no fault by themselves: fused attention runs
    at 13 % occupancy by design, and is left out, as is communication.

    Slow
        for batch in batches:
            losses.append(model(batch))

    Fast
        losses = model(torch.cat(batches))

    Why
    A block runs on one multiprocessor. Multiprocessors without a block do nothing until the kernel ends.

    How the worth is predicted
    It is not: how long a kernel with more blocks would take depends on how the work can be split.

    When not
    The work cannot be split further, or kernels on other streams fill the rest of the GPU.
    """
    geometry = case.trace.kernels.select(pl.col("span_id").alias("id"), "blocks_per_sm")
    kernels = case.tasks.join(geometry, on="id", maintain_order="left")
    few = (pl.col("blocks_per_sm") < FEW_BLOCKS) & (pl.col("blocks_per_sm") > 0)
    work = DeviceWork(case, kernels).where(pl.col("dur_ns") >= LONG_NS, few)
    names = work.rows["name"].unique().cast(pl.String)
    by_design = [name for name in names if decode(name).role in _FEW_BY_DESIGN]
    work = work.where(~pl.col("name").cast(pl.String).is_in(by_design))
    if too_little(case, "kernels with too few blocks for this GPU", work.gpu_share, LEAST_SHARE):
        return
    by_name = work.rows.group_by(pl.col("name").cast(pl.String)).agg(
        pl.col("dur_ns").sum(), pl.col("blocks_per_sm").mean()
    )
    name, _, blocks = by_name.sort("dur_ns", descending=True).row(0)
    yield Finding(
        says=f"{work.per_step_count:.0f} kernels a step with too few blocks for this GPU take {work.gpu_pct:.0f} % of "
        "GPU time.",
        why=f"The longest, {name[:60]}, has {blocks:.2g} blocks for each multiprocessor: most of them idle.",
        fix=Fix(
            "Give each launch more work: a larger batch, or one call for several tensors.",
            "x = torch.cat(batches)  # one launch over more elements",
        ),
        evidence=work.evidence("kernels", kernel=name, blocks_per_sm_count=blocks),
        where=work.places(),
        unless="the work cannot be split further, or other streams fill the rest.",
    )
