"""The Excerpt: some whole steps of a long recording, as a recording of their own.

It is what a profiler that ran for these steps alone would have recorded: their spans, the device work that they
launched, and what was still running when they began. Span ids are row numbers, so an excerpt has ids of its own;
`whole_ids` leads back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import schema
from foretrace.analyze.concepts.names.named_spans import of_kind
from foretrace.analyze.steps import step_windows
from foretrace.trace import Step, Trace

# Four times the largest recording of the corpus, so that those stay as they are; the rules then take most of a second.
MOST_SPANS = 200_000
LEAST_STEPS = 8
# Some of the work is once a step: more steps than this say the same again, and take the rules more than two seconds.
MOST_STEPS = 2_000

# Columns that hold ids of spans.
_REFERENCES: Mapping[str, tuple[str, ...]] = {
    "spans": ("parent_id", "launch_id", "op_id"),
    "ops": ("forward_id",),
    "python": ("caller_id",),
    "allocations": ("op_id",),
}


@dataclass(frozen=True)
class Excerpt:
    """A shorter trace, and where its spans are in the whole one."""

    trace: Trace
    span_ids: NDArray[np.uint32]  # for each span, its id in the whole recording


def chosen_steps(
    trace: Trace, *, most_spans: int = MOST_SPANS, most_steps: int = MOST_STEPS
) -> tuple[Step, ...]:
    """The steps that are looked at: the settled ones that follow one another, or some from the middle of too many."""
    steps = _in_a_row(trace)
    # A span of a step that is left out is not looked at either.
    spans = trace.spans.height * len(steps) // max(len(trace.steps), 1)
    fitting = len(steps) * most_spans // max(spans, most_spans)
    count = min(max(fitting, LEAST_STEPS), most_steps)
    if count >= len(steps):
        return steps
    # The last one may be cut off.
    first = (len(steps) - count) // 2
    return steps[first : first + count]


def _in_a_row(trace: Trace) -> tuple[Step, ...]:
    """The longest run of settled steps; all steps where none is."""
    settled = {window.number for window in step_windows(trace) if window.averaged}
    runs = [
        tuple(run) for of_them, run in groupby(trace.steps, lambda step: step.number in settled) if of_them
    ]
    return max(runs, key=len, default=trace.steps)


def excerpt(trace: Trace, steps: tuple[Step, ...]) -> Excerpt:
    """The trace of these steps alone, which follow one another."""
    start, end = steps[0].start_ns, steps[-1].end_ns
    rows = _rows(trace, start, end)
    place = np.full(trace.spans.height, -1, np.int32)
    place[rows] = np.arange(len(rows), dtype=np.int32)
    frames: dict[str, pl.DataFrame] = {}

    def load(name: str) -> pl.DataFrame:
        if name not in frames:
            frames[name] = _cut(trace, name, rows, place, start, end)
        return frames[name]

    told = [(step.number, step.start_ns, step.end_ns, step.kind) for step in steps]
    meta = {**trace.meta, "steps": told}
    return Excerpt(Trace(trace.path, trace.format, meta, trace.repairs, load, trace.profile), rows)


def _rows(trace: Trace, start: int, end: int) -> NDArray[np.uint32]:
    """Ids of the spans of the window: what overlaps it, and the device work that was launched in it."""
    begin = trace.spans["start_ns"].to_numpy()
    first, behind = np.searchsorted(begin, (start, end))  # spans are in order of start
    kept = np.zeros(len(begin), bool)
    kept[first:behind] = True
    earlier = trace.spans["dur_ns"].head(int(first)).fill_null(0).to_numpy()
    kept[:first] = begin[:first] + earlier > start
    kept[behind:] = False  # of a window that ends before it begins
    device = np.flatnonzero(of_kind(trace, schema.DEVICE_KINDS))
    launch = trace.spans["launch_id"].gather(device)
    called = begin[launch.fill_null(0).to_numpy()]
    known = launch.is_not_null().to_numpy() & (called >= start)
    kept[device] = np.where(known, called < end, kept[device])
    return np.flatnonzero(kept).astype(np.uint32)


def _cut(
    trace: Trace, name: str, rows: NDArray[np.uint32], place: NDArray[np.int32], start: int, end: int
) -> pl.DataFrame:
    """One table of the window, with the ids of the excerpt."""
    frame = trace.table(name)
    if name == "spans":
        frame = frame[rows].with_columns(id=pl.int_range(pl.len(), dtype=pl.UInt32))
    elif "span_id" in frame.columns:
        there = place[frame["span_id"].to_numpy()]
        frame = frame.filter(pl.Series(there >= 0))
        frame = frame.with_columns(pl.Series("span_id", there[there >= 0], pl.UInt32))
    elif name == "allocations":
        began = pl.col("start_ns").is_null() | (pl.col("start_ns") < end)
        frame = frame.filter(began & (pl.col("end_ns").is_null() | (pl.col("end_ns") > start)))
    elif name == "counters":
        frame = frame.filter(pl.col("at_ns").is_between(start, end))
    return frame.with_columns(_moved(frame[column], place) for column in _REFERENCES.get(name, ()))


def _moved(ids: pl.Series, place: NDArray[np.int32]) -> pl.Series:
    """Ids of the whole recording as those of the excerpt; null where the span is not in it."""
    there = place[ids.fill_null(0).to_numpy()] if len(place) else np.empty(0, np.int32)
    found = ids.is_not_null() & pl.Series(there >= 0)
    return (
        pl.select(pl.when(found).then(pl.Series(np.maximum(there, 0))))
        .to_series()
        .cast(pl.UInt32)
        .alias(ids.name)
    )
