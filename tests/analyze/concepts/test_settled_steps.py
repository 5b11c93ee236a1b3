"""Which steps are averaged: neither warm-up nor those that the profiler lengthened."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.analyze.concepts.host.settled_steps import slow_count
from foretrace.analyze.steps import recorded_step_ns, step_windows
from foretrace.diagnose.case import Case
from foretrace.diagnose.step_times import step_times
from foretrace.trace import Trace
from tests.builders import Recording

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ([100, 10, 10, 10], 1),
        ([100, 50, 10, 10, 10], 2),
        ([100, 50, 10, 10], 2),
        ([100, 50, 10], 1),  # two steps stay
        ([12, 10, 10, 10], 0),  # less than a quarter more
        ([30, 10, 30, 10], 0),  # steps that are long now and then
        ([14, 10, 10, 15], 0),
        ([15, 10], 0),  # either may be the odd one
        ([30, 10], 1),
        ([10], 0),
        ([], 0),
    ],
)
def test_slow_steps_at_the_beginning(times: list[int], count: int) -> None:
    assert slow_count(times) == count


def stepping(folder: Path, lengths: list[float], waits: list[float] | None = None) -> Trace:
    """Steps in which the host waits for input, works, launches a kernel of 20 µs and waits for it."""
    recording, at = Recording(), 0.0
    for number, (length, wait) in enumerate(zip(lengths, waits or [0.0] * len(lengths), strict=True)):
        end = at + wait + length
        recording.step(number, at, end)
        if wait:
            recording.annotation(LOADER, at, at + wait)
        recording.op("aten::mm", end - 50, end - 40).launch(end - 45, "gemm", end - 38, end - 18, call=4)
        recording.wait(end - 36)
        at = end
    return recording.open(folder)


def averaged(trace: Trace) -> list[int]:
    return [window.number for window in step_windows(trace) if window.averaged]


def test_estimates_and_tables_leave_warm_up_out(tmp_path: Path) -> None:
    """A second of warm-up before steps of 10 ms: the estimate is that of a step, not of the mean of 340 ms."""
    trace = stepping(tmp_path, [1e6, 10_000, 10_000])
    assert averaged(trace) == [1, 2]
    times = step_times(Case(trace))
    assert times.recorded_ns == pytest.approx(10e6, rel=0.01)
    assert times.estimated_ns is not None
    assert times.estimated_ns <= 10e6
    assert Case(trace).looked_at == "steps 1 to 2, 2 of the 3 recorded"


def test_an_estimate_is_never_longer_than_the_recorded_step(tmp_path: Path) -> None:
    """One of five steps takes 41 ms, the others 1: the mean is 9 ms, but no step of 9 ms was recorded."""
    times = step_times(Case(stepping(tmp_path, [1_000, 1_000, 41_000, 1_000, 1_000])))
    assert times.recorded_ns == pytest.approx(1e6, rel=0.01)
    assert times.recorded_ns is not None
    assert times.estimated_ns is not None
    assert times.estimated_ns <= times.recorded_ns


def test_waits_for_input_are_no_warm_up_and_count_with_their_mean(tmp_path: Path) -> None:
    """10 ms of work in each step, and 50, 0, 0 and 10 ms of waiting: 15 ms on average, where the median is 10."""
    trace = stepping(tmp_path, [10_000] * 4, [50_000, 0, 0, 10_000])
    assert averaged(trace) == [0, 1, 2, 3]
    assert recorded_step_ns(trace) == pytest.approx(25e6, rel=0.01)


def buffered(folder: Path, place: int) -> Trace:
    """Five steps of 1 ms; in one of them the host stands still for 2 ms while the profiler allocates a buffer."""
    recording, at = Recording(), 0.0
    for number in range(5):
        request = 2_000.0 if number == place else 0.0
        end = at + request + 1_000
        recording.step(number, at, end)
        if request:
            recording.add("overhead", "Activity Buffer Request", at + 100, request, -1, 0)
        recording.op("aten::mm", end - 500, end - 40).launch(end - 45, "gemm", end - 38, end - 18, call=4)
        recording.wait(end - 36)
        at = end
    return recording.open(folder)


def test_a_step_that_the_profiler_lengthened_is_not_averaged(tmp_path: Path) -> None:
    trace = buffered(tmp_path, 2)
    assert averaged(trace) == [0, 1, 3, 4]
    assert recorded_step_ns(trace) == pytest.approx(1e6, rel=0.01)


def test_the_profilers_buffers_are_no_time_of_the_program(tmp_path: Path) -> None:
    """Without steps the whole recording is estimated: 5 ms of the program, and none of the profiler's 2 ms."""
    trace = buffered(tmp_path, 2)
    trace.meta = {**trace.meta, "steps": ()}
    with_requests = Case(trace).step_ns
    assert with_requests <= 5e6
