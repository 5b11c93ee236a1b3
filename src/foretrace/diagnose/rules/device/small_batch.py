"""Most kernels are too small to fill the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import repeated_passes
from foretrace.diagnose.rule import Healthy, rule
from foretrace.errors import MissingDataError
from foretrace.predict.changes import Change

_REACHED_BELOW = (
    0.5  # of the SMs, on average over the kernels' time: then twice the work may take the same time
)

_LEAST_PARTS = 2  # of a batch


def _no_issue(values: Mapping[str, Any]) -> str | None:
    share, busy = values.get("sm_efficiency_pct"), values.get("gpu_busy_pct")
    return f"kernels fill {100 * share / busy:.0f} % of the multiprocessors" if share and busy else None


@rule(
    title="The batch is too small for this GPU",
    topic="Batch size",
    see="roofline",
    healthy=Healthy("overview", _no_issue),
)
def small_batch(case: Case) -> Iterator[Finding]:
    """The GPU is busy with kernels that have fewer blocks than it has multiprocessors.

    What it does
    Looks for programs whose kernels, weighted by their time, have blocks for less than half of the SMs. It predicts
    nothing: more items a step are other work, and a step would take longer; what falls is the time per item. Where a step
    runs forward and backward several times before one update, and the host or small kernels hold it back, one pass over
    the whole batch is replayed. Nothing is promised of it: memory is not looked at.

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
    if not total:
        return
    parts = _parts(case) if case.calibration.host_bound or filled < _REACHED_BELOW else []
    if parts:
        yield _accumulated(case, parts, filled)
    elif filled < _REACHED_BELOW:
        yield _small(case, mine, filled)


def _parts(case: Case) -> list[repeated_passes.Repeat]:
    """Loops of forward and backward passes before one update."""
    found = repeated_passes.find(case, least=_LEAST_PARTS, shapes=True)
    return repeated_passes.apart(
        tuple(
            each
            for each in found
            if repeated_passes.of_backward(case, each)
            and repeated_passes.differentiated(case, each)
            and not repeated_passes.updates(case, each)
        )
    )


def _accumulated(case: Case, parts: list[repeated_passes.Repeat], filled: float) -> Finding:
    passes = max(each.passes for each in parts)
    ops = np.concatenate([each.ops() for each in parts])
    at_once = repeated_passes.at_once(case, parts)
    return Finding(
        says=f"{passes} times a step the same {len(parts[0].ops(0, 1))} operators run forward and backward, on a part "
        f"of the batch each; kernels reach {100 * filled:.0f} % of the GPU's multiprocessors.",
        why="Each part costs the host as much as the whole batch, and its kernels leave the GPU partly empty.",
        fix=Fix(
            "Run larger parts, all at once if memory allows it; scale the loss accordingly.",
            "loss = model(batch).mean(); loss.backward()   # not: for part in batch.chunk(8)",
        ),
        evidence={
            "parts_count": passes,
            "filled_pct": 100 * filled,
            "spans": ops[:5].tolist(),
        },
        where=case.places(ops.tolist()),
        change=Change(
            f"{passes} parts of the batch as one",
            at_once.edit,
            others=at_once.others,
            upside=repeated_passes.UPSIDE,
            doubt="whether memory holds the whole batch is not looked at",
        ),
        unless="memory holds no larger part, or what the passes compute is not alike.",
    )


def _small(case: Case, mine: pl.DataFrame, filled: float) -> Finding:
    total = int(mine["dur_ns"].sum())
    small = mine.filter(pl.col("blocks_per_sm") < 1)
    spent = int(small["dur_ns"].sum())
    longest = small.sort("dur_ns", descending=True)
    return Finding(
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
