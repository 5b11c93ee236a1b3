"""Most kernels are too small to fill the GPU."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.errors import MissingDataError

_REACHED_BELOW = (
    0.5  # of the SMs, on average over the kernels' time: then twice the work may take the same time
)


@rule
def small_batch(case: Case) -> Iterator[Finding]:
    """The GPU is busy with kernels that have fewer blocks than it has multiprocessors.

    What it does
    Looks for programs whose kernels, weighted by their time, have blocks for less than half of the SMs. It predicts nothing: more items a step are other work, and a step would take longer; what falls is the time
    per item.

    Why it matters
    A kernel that leaves SMs empty takes nearly as long as one that fills them: more items cost little.

    Use instead
    A larger batch or longer sequences; for serving, requests batched together.
    """
    kernels = case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    if kernels["blocks_per_sm"].null_count() == kernels.height:
        raise MissingDataError(
            f"{case.trace.path.name}: the kernels' grids or the number of SMs were not recorded"
        )
    sizes = kernels.select(pl.col("span_id").alias("id"), "blocks_per_sm").drop_nulls()
    mine = case.tasks.filter(pl.col("kind") == "kernel").join(sizes, on="id", maintain_order="left")
    total = int(mine["dur_ns"].sum())
    filled = float((mine["blocks_per_sm"].clip(0, 1) * mine["dur_ns"]).sum()) / max(total, 1)
    if not total or filled >= _REACHED_BELOW:
        return
    small = mine.filter(pl.col("blocks_per_sm") < 1)
    spent = int(small["dur_ns"].sum())
    longest = small.sort("dur_ns", descending=True)
    yield Finding(
        rule="small-batch",
        says=f"Kernels reach only {100 * filled:.0f} % of the GPU's multiprocessors, averaged over their time; "
        f"{100 * spent / total:.0f} % of it goes to kernels with fewer blocks than there are multiprocessors.",
        why="A kernel that leaves multiprocessors empty takes nearly as long as one that fills them.",
        fix=Fix(
            "Give each step more items, if memory and the task allow it: compare time per item, not per step.",
            "loader = DataLoader(dataset, batch_size=4 * batch_size)",
        ),
        evidence={
            "small_ns": spent // case.step_count,
            "small_pct": 100 * spent / total,
            "filled_pct": 100 * filled,
            "spans": longest["id"].head(5).to_list(),
        },
        where=case.places(small["op_id"].drop_nulls().to_list()),
        unless="the batch is given by the task, or these kernels take many threads per block and long loops by design.",
    )
