"""Leaks: memory that every step allocates at one source line and that stays.

Not a leak: what is made once (a cache, the optimizer's state), what is replaced (gradients, batches fetched ahead), what has
a fixed length (the last ten losses) and what is cleared now and then. The first three stop growing; of the last, earlier blocks
were freed at an age that those held now have not reached.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots.origins import Origins
from foretrace.analyze.snapshots.steps import LEAST_STEPS, Steps, since_first_ns
from foretrace.sourced import JUDGEMENT, Bytes

LEAST_BYTES = Bytes(4096, "growth per step at one line, below which nobody runs out of memory", JUDGEMENT)


@dataclass(frozen=True)
class Repetition:
    """A step in which a line's memory grew; its events are rows of the device's history."""

    step: int
    start_ns: int | None  # since the first event; None in a history without times
    first_event: int
    last_event: int
    kept_bytes: int  # allocated there in the step and never freed


@dataclass(frozen=True)
class Leak:
    """A source line whose memory grows with every step."""

    where: str
    bytes_per_step: int
    repetitions: tuple[Repetition, ...]  # one after the other up to the last step
    category: str  # what most of it held
    stack: int  # an example

    @property
    def kept_bytes(self) -> int:
        """Allocated there in these steps and never freed."""
        return sum(repetition.kept_bytes for repetition in self.repetitions)


def find(origins: Origins, steps: Steps | None) -> list[Leak]:
    """The leaks, the largest first; none where fewer than three whole steps are known."""
    if steps is None or len(steps) < LEAST_STEPS:
        return []
    memory = origins.memory
    lives, never = memory.lives, memory.events.height
    kept = lives.asked == never
    rows = pl.DataFrame(
        {
            "where": origins.lines,
            "category": origins.categories,
            "stack": lives.stack,
            "size": lives.size,
            "kept": kept,
            "made": _step_of(lives.start, steps),
            "gone": _step_of(np.where(kept, -1, lives.asked), steps),
            "age": np.where(kept, len(steps), _reached(lives.asked, steps)) - _reached(lives.start, steps),
        }
    )
    changes = _changes(rows)
    leaks = []
    for (where,), grown in changes.group_by("where", maintain_order=True):
        run = _trailing(grown["step"].to_list(), len(steps))
        per_step = int(grown["growth"].tail(run).median() or 0)  # type: ignore[arg-type]
        if run < LEAST_STEPS or per_step < LEAST_BYTES:
            continue
        of_line = rows.filter(pl.col("where") == where)
        held = of_line.filter(pl.col("kept") & (pl.col("made") >= len(steps) - run))
        if _cleared_at_that_age(held, of_line.filter(~pl.col("kept"))):
            continue
        most = (
            held.group_by("category", "stack")
            .agg(pl.col("size").sum())
            .sort("size", "stack", descending=True)
        )
        repetitions = _repetitions(origins, steps, held)
        leaks.append(Leak(str(where), per_step, repetitions, str(most["category"][0]), int(most["stack"][0])))
    return sorted(leaks, key=lambda leak: -leak.bytes_per_step)


def _cleared_at_that_age(held: pl.DataFrame, freed: pl.DataFrame) -> bool:
    """Whether blocks of the line that were freed had lived for as many steps as the oldest held now."""
    longest = int(freed["age"].max() or 0)  # type: ignore[arg-type]
    return longest > 1 and longest >= int(held["age"].max() or 0)  # type: ignore[arg-type]


def _repetitions(origins: Origins, steps: Steps, held: pl.DataFrame) -> tuple[Repetition, ...]:
    """The steps that keep these blocks, with what each keeps."""
    by_step = held.group_by("made").agg(pl.col("size").sum()).sort("made")
    places = by_step["made"].to_numpy()
    starts = since_first_ns(origins.memory, steps.first[places])
    return tuple(
        Repetition(
            int(steps.numbers[place]), start_ns, int(steps.first[place]), int(steps.stop[place]) - 1, size
        )
        for place, start_ns, size in zip(places, starts, by_step["size"], strict=True)
    )


def _reached(event: Array, steps: Steps) -> Array:
    """How many steps had begun at each event."""
    begun: Array = np.searchsorted(steps.first, event, side="right")
    return begun


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
