"""The steps of a program as its memory's history shows them, and what is held at the end of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots.lifetimes import BEFORE, DeviceMemory
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
    """The steps: those given as times, else annotated, else ended by the optimizer, zero_grad or backward passes.

    Without any of these, as in inference, the rounds of the program's loop: from one run of a repeated allocation to the next.
    """
    if given:
        spans = np.array(given, np.int64)
        numbers = first_step + np.arange(len(spans))
        return _timed(origins, spans[:, 0], spans[:, 1], numbers, "the times that were measured")
    if (annotated := _annotated(origins, snapshot)) is not None:
        return annotated
    optimizer = _distinct(_optimizer_ends(origins, snapshot))
    ends = {
        "the optimizer's steps": optimizer,
        "zero_grad, which frees the gradients": _distinct(_cleared(origins)),
        "backward passes": _of_whole_steps(_distinct(origins.backward.last), optimizer),
    }
    # An optimizer that works in place allocates in its first step only: several of what comes next say more than one of it.
    for fewest in (2, 1):
        for told_by, last in ends.items():
            if len(last) >= fewest:
                return Steps(np.arange(len(last)), np.append(0, last[:-1] + 1), last + 1, told_by)
    return _rounds(origins)


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
            "start_ns": since_first_ns(memory, steps.first),
            "end_ns": since_first_ns(memory, steps.stop - 1),
            "peak_bytes": peaks,
            "end_bytes": ends,
            "growth_bytes": np.append(ends[:1] * 0, np.diff(ends)),
        }
    )


def since_first_ns(memory: DeviceMemory, events: Array) -> pl.Series:
    """When events happened, counted from the first; null in a history without times."""
    if not memory.timed:
        return pl.Series([None] * len(events), dtype=pl.Int64)
    return pl.Series(memory.time_ns[events] - memory.time_ns[0], dtype=pl.Int64)


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
    if not origins.memory.timed:
        return None
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
    if named.is_empty() or not origins.memory.timed:
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


def _distinct(ends: Array) -> Array:
    """The events that end a step, in order; what comes after the last is no whole step."""
    return np.unique(ends[ends != BEFORE])


def _of_whole_steps(backward: Array, optimizer: Array) -> Array:
    """Backward passes as ends of steps: several before the first step of the optimizer belong to that one step."""
    if not len(optimizer):
        return backward
    return np.append(optimizer[:1], backward[backward > optimizer[0]])


def _rounds(origins: Origins) -> Steps | None:
    """Rounds of the program's loop, by the allocation that begins one: of the repeated ones, the first of the rarest.

    None where the rounds may be parts of one step: layers of a forward pass, tokens of one generation.
    """
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
    of_round = np.searchsorted(begins, rows, side="right")
    usual = pl.DataFrame({"stack": stack, "round": of_round}).unique().group_by("stack").len()
    # What only some of the rounds allocate lies between two passes over layers, for example.
    usual = usual.filter((pl.col("stack") >= 0) & (2 * pl.col("len") > len(begins)))
    if not places.loops_over_steps(usual["stack"].to_numpy()):
        return None
    # The last round is whole where the history ends with its loop; nobody knows.
    return Steps(
        np.arange(len(begins) - 1), begins[:-1], begins[1:], f"rounds that begin at {places.lines[head]}"
    )
