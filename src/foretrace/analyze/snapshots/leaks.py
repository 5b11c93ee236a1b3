"""Leaks: memory that every step allocates at one source line and that stays.

Not a leak: what is made once (a cache, the optimizer's state), what is replaced (gradients, batches fetched ahead) and what has
a fixed length (the last ten losses). All of these stop growing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots.origins import Origins
from foretrace.analyze.snapshots.steps import LEAST_STEPS, Steps
from foretrace.sourced import JUDGEMENT, Bytes

LEAST_BYTES = Bytes(4096, "growth per step at one line, below which nobody runs out of memory", JUDGEMENT)


@dataclass(frozen=True)
class Leak:
    """A source line whose memory grows with every step."""

    where: str
    bytes_per_step: int
    kept_bytes: int  # allocated there in the steps and never freed
    steps: int  # in how many, one after the other up to the last
    category: str  # what most of it held
    stack: int  # an example


def find(origins: Origins, steps: Steps | None) -> list[Leak]:
    """The leaks, the largest first; none where fewer than three whole steps are known."""
    if steps is None or len(steps) < LEAST_STEPS:
        return []
    memory = origins.memory
    lives, never = memory.lives, memory.events.height
    rows = pl.DataFrame(
        {
            "where": origins.lines,
            "category": origins.categories,
            "stack": lives.stack,
            "size": lives.size,
            "kept": lives.asked == never,
            "made": _step_of(lives.start, steps),
            "gone": _step_of(np.where(lives.asked == never, -1, lives.asked), steps),
        }
    )
    changes = _changes(rows)
    leaks = []
    for (where,), of_line in changes.group_by("where", maintain_order=True):
        grown = of_line.sort("step")
        run = _trailing(grown["step"].to_list(), len(steps))
        if run < LEAST_STEPS:
            continue
        last = grown.tail(run)
        kept = rows.filter((pl.col("where") == where) & pl.col("kept") & (pl.col("made") >= len(steps) - run))
        per_step = int(last["growth"].median() or 0)  # type: ignore[arg-type]
        if per_step < LEAST_BYTES:
            continue
        most = (
            kept.group_by("category", "stack")
            .agg(pl.col("size").sum())
            .sort("size", "stack", descending=True)
        )
        leaks.append(
            Leak(
                str(where),
                per_step,
                int(kept["size"].sum()),
                run,
                str(most["category"][0]),
                int(most["stack"][0]),
            )
        )
    return sorted(leaks, key=lambda leak: -leak.bytes_per_step)


def _step_of(event: Array, steps: Steps) -> Array:
    """The place of the step that each event lies in; -1 outside all."""
    place = np.searchsorted(steps.first, event, side="right") - 1
    inside: Array = np.where(
        (place >= 0) & (event < np.append(steps.stop, 0)[place]) & (event >= 0), place, -1
    )
    return inside


def _changes(rows: pl.DataFrame) -> pl.DataFrame:
    """Steps and lines in which memory and the number of blocks grew, and something stayed of it: where, step, growth.

    A buffer of fixed length whose entries get larger has as many blocks as before.
    """
    made = rows.group_by("where", pl.col("made").alias("step")).agg(
        pl.col("size").sum().alias("more"),
        pl.col("size").filter(pl.col("kept")).sum().alias("stays"),
        pl.len().cast(pl.Int64).alias("new"),
    )
    gone = rows.group_by("where", pl.col("gone").alias("step")).agg(
        pl.col("size").sum().alias("less"), pl.len().cast(pl.Int64).alias("old")
    )
    both = made.join(gone, on=["where", "step"], how="left").with_columns(pl.col("less", "old").fill_null(0))
    grown = both.with_columns(growth=pl.col("more") - pl.col("less"))
    return grown.filter(
        (pl.col("step") >= 0)
        & (pl.col("growth") > 0)
        & (pl.col("stays") > 0)
        & (pl.col("new") > pl.col("old"))
    ).sort("where", "step")


def _trailing(found: list[int], count: int) -> int:
    """How many of the last steps are among those found, without a gap."""
    present = set(found)
    run = 0
    while count - 1 - run in present:
        run += 1
    return run
