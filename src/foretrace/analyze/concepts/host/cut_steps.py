"""Steps that were not recorded completely, and the runtime calls that tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.names.named_spans import of_kind
from foretrace.runtime_names import Effect, calls_that
from foretrace.schema import DEVICE_KINDS
from foretrace.sourced import JUDGEMENT, Share
from foretrace.trace import Trace, once_per_trace

if TYPE_CHECKING:
    from foretrace.analyze.steps import StepWindow

LOST = Share(0.01, "a step's launches, without GPU work, from which it counts as cut", JUDGEMENT)
# A step of gradient accumulation lacks only the optimizer's launches.
FEWER = Share(0.5, "the launches of other steps, below which a first or last step counts as cut", JUDGEMENT)


@once_per_trace
def runtime_calls(trace: Trace) -> pl.DataFrame:
    """Runtime calls: whether one launches a kernel or a copy, whether GPU work links to it, whether it was captured."""
    spans = trace.spans
    calls = spans.select("id", "name", "start_ns", "step")[np.flatnonzero(of_kind(trace, "runtime"))]
    # Every GPU row counts here, even one with an impossible duration: its launch was not lost.
    used = spans["launch_id"].gather(np.flatnonzero(of_kind(trace, DEVICE_KINDS))).drop_nulls()
    has_work = np.zeros(spans.height, bool)
    has_work[used.to_numpy()] = True
    return calls.with_columns(
        kernel=pl.Series(calls_that(calls["name"], Effect.KERNEL, Effect.GRAPH)),
        copy=pl.Series(calls_that(calls["name"], Effect.COPY, Effect.FILL)),
        has_work=pl.Series(has_work[calls["id"].to_numpy()]),
        captured=_captured(calls),
    )


def _captured(calls: pl.DataFrame) -> pl.Series:
    """For each call, whether a stream capture was open: it records launches instead of executing them."""
    start = calls["start_ns"].to_numpy()
    begins, ends = (
        start[calls_that(calls["name"], wanted)] for wanted in (Effect.BEGIN_CAPTURE, Effect.END_CAPTURE)
    )
    following = np.searchsorted(ends, begins)
    known = following < len(ends)
    captures = intervals.union(begins[known], ends[following[known]])
    return pl.Series(intervals.covered_ns(captures, start, start + 1) > 0, dtype=pl.Boolean)


def launch_calls(trace: Trace) -> pl.DataFrame:
    """Calls that must lead to GPU work: kernel and graph launches, except those captured into a graph."""
    return runtime_calls(trace).filter(pl.col("kernel") & ~pl.col("captured"))


def cut_steps(trace: Trace, windows: Sequence[StepWindow]) -> dict[int, str]:
    """Number of each step that was not recorded completely -> why."""
    launches = launch_calls(trace)
    noun, calls = _calls_per_step(trace, launches, windows)
    missing = launches.filter(~pl.col("has_work")).group_by("step").len()
    lost = dict(missing.iter_rows()) if trace.has_device else {}
    latest = _latest_end(trace)
    late = {step.number for step in trace.steps if latest is not None and step.end_ns > latest}
    reasons: dict[int, str] = {}
    for place, window in enumerate(windows):
        number, count = window.number, int(lost.get(window.number, 0))
        others = _usual(windows, calls, place) if place in (0, len(calls) - 1) else 0.0
        if number in late:
            reasons[number] = "its annotation ends after the recording"
        elif count and count >= calls[place] * LOST:
            reasons[number] = f"{count:,} of {calls[place]:,} launches without GPU work"
        elif calls[place] < others * FEWER:
            reasons[number] = f"{calls[place]:,} {noun}, the others {others:,.0f}"
        elif not window.whole:
            reasons[number] = f"GPU work of {window.launched_count:,} launches, less than the step before"
    return reasons


def _usual(windows: Sequence[StepWindow], calls: list[int], place: int) -> float:
    """The median of the other steps of the same kind."""
    kind = windows[place].kind
    alike = [count for other, count in enumerate(calls) if other != place and windows[other].kind == kind]
    return float(np.median(alike or [0]))


def _calls_per_step(
    trace: Trace, launches: pl.DataFrame, windows: Sequence[StepWindow]
) -> tuple[str, list[int]]:
    """What is counted (launches, or operators if there are none), and the count for each step."""
    noun, calls = "launches", launches
    if not calls.height:
        noun, calls = "operators", trace.spans.filter(pl.col("kind") == "op")
    count = dict(calls.group_by("step").len().iter_rows())
    return noun, [int(count.get(window.number, 0)) for window in windows]


def _latest_end(trace: Trace) -> int | None:
    """When a step's annotation may end: beyond, the profiler had stopped, and its duration is not a step time."""
    end, windows = trace.meta.get("window_end_ns"), trace.meta.get("windows") or ()
    if end is None:
        return None
    first = min((int(window[1]) for window in windows), default=0)
    return int(end) + max(int(end) - first, 0) // 100
