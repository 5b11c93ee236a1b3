"""Batch parts: forward and backward passes over parts of a batch before one update, and how far kernels fill the GPU."""

from __future__ import annotations

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.patterns import repeated_passes
from foretrace.diagnose.patterns.repeated_passes import Repeat
from foretrace.sourced import JUDGEMENT, Count, Share

FILLED_BELOW = Share(
    0.5,
    "the multiprocessors, on average over the kernels' time: then twice the work may take the same time",
    JUDGEMENT,
)
LEAST_PARTS = Count(2, "parts of a batch", JUDGEMENT)


def kernels(case: Case) -> DeviceWork:
    """The kernels with their `blocks_per_sm`, where that is known."""
    sizes = case.trace.kernels.select(pl.col("span_id").alias("id"), "blocks_per_sm").drop_nulls()
    rows = case.tasks.filter(pl.col("kind") == "kernel").join(sizes, on="id", maintain_order="left")
    return DeviceWork(case, rows)


def filled_share(kernels: DeviceWork) -> float:
    """The part of the multiprocessors that has a block, on average over the kernels' time; 1 where there are none."""
    if not kernels.dur_ns:
        return 1.0
    filled = kernels.rows["blocks_per_sm"].clip(0, 1) * kernels.rows["dur_ns"]
    return float(filled.sum()) / kernels.dur_ns


def find(case: Case) -> list[Repeat]:
    """Loops of forward and backward passes before one update."""
    return repeated_passes.apart(
        tuple(
            loop
            for loop in repeated_passes.find(case, least=LEAST_PARTS, shapes=True)
            if repeated_passes.of_backward(case, loop)
            and repeated_passes.differentiated(case, loop)
            and not repeated_passes.updates(case, loop)
        )
    )
