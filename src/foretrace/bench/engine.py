"""The engine: calls a function until its time is known, and keeps every sample."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from foretrace.bench.clocks import Clock, Function
from foretrace.bench.measurement import Measurement
from foretrace.bench.stopping import Stopping
from foretrace.bench.timing import Timing
from foretrace.sourced import JUDGEMENT, Count, Factor, Nanoseconds

ROUND_NS = Nanoseconds(50_000_000, "samples taken together before the rule is asked, at most", JUDGEMENT)
_GROWTH = Factor(10, "the calls of a sample, from one trial to the next, at most", JUDGEMENT)
_MOST_CALLS = Count(1_000_000, "calls in one sample, at most: more only where a call does nothing", JUDGEMENT)


def measure(
    function: Function, clock: Clock, timing: Timing, *, between: Callable[[], None] | None = None
) -> Measurement:
    """Samples of the function, after a warm-up unless it is timed cold; `between` is called between rounds of samples, and may raise to end it."""
    check = between or _go_on
    if timing.cold:
        first = [clock.samples(function, calls=1, count=1)[0] for _ in range(timing.least_samples)]
        return Measurement(tuple(first), 1, "cold", clock.says)
    warm_up(function, clock, timing.warmup_s, check)
    calls, call_ms = calls_per_sample(function, clock, check)
    count = max(1, min(clock.most_together, int(ROUND_NS / 1e6 / max(calls * call_ms, 1e-9))))
    stopping = Stopping(timing)
    samples: list[float] = []
    sampling_s = clock.now_s()
    while True:
        samples += clock.samples(function, calls=calls, count=count)
        reason = stopping.reason(samples, clock.now_s() - sampling_s)
        if reason:
            return Measurement(tuple(samples), calls, reason, clock.says)
        check()


def _go_on() -> None:
    return


def warm_up(function: Function, clock: Clock, warmup_s: float, check: Callable[[], None]) -> None:
    """Calls for so long after the first one, which may compile or allocate, is done; in a row as soon as samples are, so that the
    device is under the load under which it is timed."""
    clock.samples(function, calls=1, count=1)
    check()
    calls, began_s = 1, clock.now_s()
    while clock.now_s() - began_s < warmup_s:
        (call_ms,) = clock.samples(function, calls=calls, count=1)
        check()
        calls = more_calls(calls, call_ms, clock)


def calls_per_sample(function: Function, clock: Clock, check: Callable[[], None]) -> tuple[int, float]:
    """How many calls make a sample long enough for the clock, and what one takes."""
    calls = 1
    while True:
        call_ms = min(clock.samples(function, calls=calls, count=3))
        check()
        more = more_calls(calls, call_ms, clock)
        if more == calls:
            return calls, call_ms
        calls = more


def more_calls(calls: int, call_ms: float, clock: Clock) -> int:
    """The calls of the next trial; as many as before where they make a sample already."""
    if calls * call_ms >= clock.least_sample_ms or calls >= _MOST_CALLS:
        return calls
    needed = ceil(clock.least_sample_ms / call_ms) if call_ms > 0 else calls * int(_GROWTH)
    return min(max(needed, calls + 1), calls * int(_GROWTH), int(_MOST_CALLS))
