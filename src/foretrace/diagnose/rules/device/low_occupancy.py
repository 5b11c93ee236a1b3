"""Long kernels with fewer blocks than the GPU has multiprocessors leave the rest of it idle."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.errors import MissingDataError

_LEAST_SHARE = 0.10
_LONG_NS = 10_000  # shorter kernels are a matter of launches
_FEW = 0.5  # of the multiprocessors
_EXPECTED = ("attention", "communication")  # few large blocks on purpose


@rule
def low_occupancy(case: Case) -> Iterator[Finding]:
    """Kernels of 10 µs and more whose blocks fill less than half of the GPU.

    What it does
    Compares the grid of each kernel with the number of multiprocessors. Kernels of 10 µs and more with fewer
    blocks than half of them must take 10 % of the GPU's time. Few warps on each multiprocessor are no fault by
    themselves: fused attention runs at 13 % occupancy by design, and is left out, as is communication.

    Why it matters
    A block runs on one multiprocessor. Those that get none do nothing until the kernel ends.

    Use instead
    A larger batch, several such kernels on streams of their own, or a kernel that splits its sums over more blocks.
    """
    kernels = case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    if kernels["blocks_per_sm"].null_count() == kernels.height:
        raise MissingDataError(f"{case.trace.path.name}: no launch geometry recorded")
    device_ns = max(int(case.program.task_dur_ns.sum()), 1)
    geometry = kernels.select(pl.col("span_id").alias("id"), "blocks_per_sm", "occupancy_pct")
    work = case.tasks.join(geometry, on="id", maintain_order="left")
    mine = work.filter(
        (pl.col("dur_ns") >= _LONG_NS) & (pl.col("blocks_per_sm") < _FEW) & (pl.col("blocks_per_sm") > 0)
    )
    names = mine["name"].unique().cast(pl.String)
    expected = [name for name in names if decode(name).role in _EXPECTED]
    mine = mine.filter(~pl.col("name").cast(pl.String).is_in(expected))
    spent = int(mine["dur_ns"].sum())
    if spent < _LEAST_SHARE * device_ns:
        return
    yield _finding(case, mine, spent / device_ns)


def _finding(case: Case, mine: pl.DataFrame, share: float) -> Finding:
    by_name = mine.group_by(pl.col("name").cast(pl.String)).agg(
        pl.col("dur_ns").sum(), pl.col("blocks_per_sm").mean()
    )
    name, _, blocks = by_name.sort("dur_ns", descending=True).row(0)
    return Finding(
        rule="low-occupancy",
        says=f"{mine.height / case.step_count:.0f} kernels a step with too few blocks for this GPU take "
        f"{100 * share:.0f} % of its time.",
        why=f"The longest, {name[:60]}, has {blocks:.2g} blocks for each multiprocessor: most of them idle.",
        fix=Fix(
            "Give each launch more work: a larger batch, or one call for several tensors.",
            "x = torch.cat(batches)  # one launch over more elements",
        ),
        evidence={
            "kernels_ns": int(mine["dur_ns"].sum()) // case.step_count,
            "kernels_pct": 100 * share,
            "kernel": name,
            "blocks_per_sm_count": blocks,
            "kernels_per_step_count": mine.height / case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().to_list()),
        unless="the work cannot be split further, or other streams fill the rest.",
    )
