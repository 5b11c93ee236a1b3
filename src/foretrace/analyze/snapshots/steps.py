"""The steps of a program as its memory's history shows them, and what is held at the end of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots.lifetimes import BEFORE
from foretrace.analyze.snapshots.origins import Origins
from foretrace.snapshot import Snapshot
from foretrace.sourced import Count

LEAST_STEPS = Count(3, "steps that show a pattern", "two differences that agree")
_STEP_MARK = r"^ProfilerStep#(\d+)"
_OPTIMIZER_MARK = r"^Optimizer\.step#"


@dataclass(frozen=True)
class Steps:
    """Whole steps in order: their numbers, their first event and the one after their last; and how they were told."""

    numbers: Array
    first: Array
    stop: Array
    told_by: str

    def __len__(self) -> int:
        return len(self.numbers)

    def of(self, event: int) -> int | None:
        """The number of the step that an event lies in."""
        place = int(np.searchsorted(self.first, event, side="right")) - 1
        return int(self.numbers[place]) if place >= 0 and event < self.stop[place] else None


def find(
    origins: Origins,
    snapshot: Snapshot,
    given: Sequence[tuple[int, int]] | None = None,
    *,
    first_step: int = 0,
) -> Steps | None:
    """The steps: those that are given as times, else annotated, else told by the optimizer, zero_grad or backward passes.

    Where none of these is there, as in inference, the program's rounds: from one run of an allocation that comes again to the next.
    """
    if given:
        spans = np.array(given, np.int64)
        numbers = first_step + np.arange(len(spans))
        return _timed(origins, spans[:, 0], spans[:, 1], numbers, "the times that were measured")
    return (
        _annotated(origins, snapshot)
        or _after(origins, _optimizer_ends(origins, snapshot), "the optimizer's steps")
        or _after(origins, _cleared(origins), "zero_grad, which frees the gradients")
        or _after(origins, origins.backward.last, "backward passes")
        or _rounds(origins)
    )


def levels(origins: Origins, steps: Steps) -> pl.DataFrame:
    """For each step when it was, from the first event on, the most that was held in it, and what was held at its end."""
    memory = origins.memory
    allocated = memory.allocated
    peaks = [
        int(allocated[first:stop].max(initial=0)) for first, stop in zip(steps.first, steps.stop, strict=True)
    ]
    ends = allocated[steps.stop - 1]
    return pl.DataFrame(
        {
            "step": steps.numbers,
            "start_ns": memory.time_ns[steps.first] - memory.time_ns[0],
            "end_ns": memory.time_ns[steps.stop - 1] - memory.time_ns[0],
            "peak_bytes": peaks,
            "end_bytes": ends,
            "growth_bytes": np.append(ends[:1] * 0, np.diff(ends)),
        }
    )


def _annotated(origins: Origins, snapshot: Snapshot) -> Steps | None:
    """Steps that the profiler's schedule named."""
    marks = snapshot.annotations.with_columns(
        number=pl.col("name").str.extract(_STEP_MARK).cast(pl.Int64, strict=False)
    ).drop_nulls("number")
    times = marks.group_by("number").agg(
        pl.col("time_ns").filter(pl.col("stage") == "START").min().alias("start"),
        pl.col("time_ns").filter(pl.col("stage") == "END").max().alias("end"),
    )
    whole = times.drop_nulls().sort("start")
    if whole.is_empty():
        return None
    start, end, numbers = (whole[name].to_numpy() for name in ("start", "end", "number"))
    return _timed(origins, start, end, numbers, "the profiler's annotations")


def _timed(origins: Origins, start: Array, end: Array, numbers: Array, told_by: str) -> Steps | None:
    """Steps by time; those in which nothing happened on the device are left out."""
    time = np.maximum.accumulate(origins.memory.time_ns)
    first, stop = np.searchsorted(time, start, side="left"), np.searchsorted(time, end, side="right")
    kept = stop > first
    if not kept.any():
        return None
    return Steps(numbers[kept], first[kept], stop[kept], told_by)


def _optimizer_ends(origins: Origins, snapshot: Snapshot) -> Array:
    """The last event of each step of the optimizer: by its annotations, or by frames of its code."""
    named = snapshot.annotations.filter(
        (pl.col("stage") == "END") & pl.col("name").str.contains(_OPTIMIZER_MARK)
    )
    if named.is_empty():
        return origins.optimizer.last
    ends = np.sort(named["time_ns"].to_numpy())
    time = np.maximum.accumulate(origins.memory.time_ns)
    return np.unique(np.searchsorted(time, ends, side="right") - 1)


def _cleared(origins: Origins) -> Array:
    """The last free of each run of frees by zero_grad, between which something is allocated."""
    events = origins.memory.events
    stack = events["stack"].to_numpy()
    allocates = (events["action"] == "alloc").to_numpy()
    cleared = np.flatnonzero(origins.places.clears_gradients[stack] & (stack >= 0) & ~allocates)
    part = np.cumsum(allocates)[cleared] if len(cleared) else cleared
    last = np.append(part[1:] != part[:-1], True) if len(part) else np.zeros(0, bool)
    ends: Array = cleared[last]
    return ends


def _after(origins: Origins, ends: Array, told_by: str) -> Steps | None:
    """Steps that end with these events; what comes after the last is no whole step."""
    ends = np.unique(ends[ends != BEFORE])
    if len(ends) < 2:
        return None
    first = np.append(0, ends[:-1] + 1)
    return Steps(np.arange(len(ends)), first, ends + 1, told_by)


def _rounds(origins: Origins) -> Steps | None:
    """Rounds of a loop, by the allocation that begins one: of those that come again, the first that comes least often."""
    memory, places = origins.memory, origins.places
    rows = np.flatnonzero((memory.events["action"] == "alloc").to_numpy())
    stack = memory.events["stack"].to_numpy()[rows]
    starts = np.append(True, stack[1:] != stack[:-1]) if len(stack) else np.zeros(0, bool)
    starts &= (stack >= 0) & ~places.parameters[stack]
    runs = pl.DataFrame({"row": rows[starts], "stack": stack[starts]})
    counts = runs.group_by("stack").agg(pl.len().alias("runs"), pl.col("row").min().alias("first"))
    again = counts.filter(pl.col("runs") > LEAST_STEPS).sort("runs", "first")
    if again.is_empty():
        return None
    head = int(again["stack"][0])
    begins = runs.filter(pl.col("stack") == head)["row"].sort().to_numpy()
    # The last round is whole where the history ends with its loop; nobody knows.
    return Steps(
        np.arange(len(begins) - 1), begins[:-1], begins[1:], f"rounds that begin at {places.lines[head]}"
    )
