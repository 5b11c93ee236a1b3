"""Settled steps: those that show how the program runs once it is warm and the profiler has started.

Every estimate, finding, table and page averages these steps and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host.device_feed import gpu_bound
from foretrace.analyze.concepts.host.input_waits import input_waits
from foretrace.analyze.concepts.names.named_spans import ids_where
from foretrace.intervals import Intervals
from foretrace.sourced import JUDGEMENT, Factor, Share
from foretrace.trace import Trace

if TYPE_CHECKING:
    from foretrace.analyze.steps import StepWindow

SLOW_START = Factor(
    1.25, "times the median of the steps after it, from which a first step is warm-up", JUDGEMENT
)
ONE_OF_TWO = Factor(2.0, "times the second of two steps, from which the first is warm-up", JUDGEMENT)
LENGTHENED = Share(
    0.05, "the step, spent on the profiler's buffers, from which the step is left out", JUDGEMENT
)
BUFFER_REQUEST = "Activity Buffer Request"


def settled(trace: Trace, windows: Sequence[StepWindow]) -> frozenset[int]:
    """Numbers of the steps that are neither warm-up nor lengthened by the profiler, of complete steps of one kind."""
    clocks = own_clocks_ns(trace, windows)
    count = warm_up_count(clocks)
    warm, times = windows[count:], clocks[0][count:]
    requests = buffer_requests(trace)
    calm = [
        window
        for window, spent, time in zip(warm, _covered_ns(requests, warm), times, strict=True)
        # Where the GPU had work queued, the step is no longer for it.
        if spent <= LENGTHENED * time or time <= (1 + LENGTHENED) * float(np.median(times))
    ]
    # A recording whose steps are mostly lengthened says more with all of them.
    return frozenset(
        window.number for window in (calm if len(calm) > len(warm) / 2 and len(calm) > 1 else warm)
    )


def warm_up_count(clocks: Sequence[Sequence[int]]) -> int:
    """How many steps at the beginning are warm-up: as many as are slow on every clock that counts."""
    return min((slow_count(times_ns) for times_ns in clocks), default=0)


def slow_count(times_ns: Sequence[int]) -> int:
    """How many steps at the beginning are slow.

    Each takes clearly longer than the median of the steps after them, and none of those is as long: steps that are long
    now and then are no warm-up. Two steps are left where there are three or more; of two, either may be the odd one.
    """
    times = np.asarray(times_ns, np.int64)
    if len(times) == 2:
        return int(times[0] > ONE_OF_TWO * times[1])
    for count in range(len(times) - 2, 0, -1):
        first, rest = times[:count], times[count:]
        if first.min() > max(SLOW_START * float(np.median(rest)), float(rest.max())):
            return count
    return 0


def own_clocks_ns(trace: Trace, windows: Sequence[StepWindow]) -> list[list[int]]:
    """How long each step took without its waits for input, on the host's clock, or first on that of a limiting GPU.

    The GPU's clock alone tells no warm-up: its first step includes the time until the first work arrives.
    """
    waits = input_wait_ns(trace, windows)
    clocks = [[window.host_ns for window in windows]]
    on_gpu = [window.gpu_ns for window in windows if window.gpu_ns is not None]
    if on_gpu and len(on_gpu) == len(windows) and gpu_bound(trace):
        clocks.insert(0, on_gpu)
    return [np.maximum(np.array(times, np.int64) - waits, 0).tolist() for times in clocks]


def input_wait_ns(trace: Trace, windows: Sequence[StepWindow]) -> NDArray[np.int64]:
    """How long each step waits for its input."""
    waits = input_waits(trace)
    if not len(waits.start) or not windows:
        return np.zeros(len(windows), np.int64)
    marks = {step.number: step for step in trace.steps}
    steps = [marks[window.number] for window in windows]
    return intervals.covered_ns(waits, [step.start_ns for step in steps], [step.end_ns for step in steps])


def buffer_requests(trace: Trace) -> Intervals:
    """When the profiler allocated its own buffers, which does not happen without it."""
    ids = ids_where(trace, "overhead", lambda names: (names == BUFFER_REQUEST).to_numpy())
    spans = trace.spans.select("start_ns", "dur_ns")[ids].filter(pl.col("dur_ns") > 0)
    start = spans["start_ns"].to_numpy()
    return intervals.union(start, start + spans["dur_ns"].to_numpy())


def _covered_ns(cover: Intervals, windows: Sequence[StepWindow]) -> list[int]:
    start, end = ([getattr(window, name) for window in windows] for name in ("start_ns", "end_ns"))
    covered: list[int] = intervals.covered_ns(cover, start, end).tolist()
    return covered
