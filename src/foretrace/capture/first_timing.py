"""The FirstTiming: waits until a program's steps are alike, and times them before any profiler has run."""

from __future__ import annotations

import time
from statistics import median

from foretrace.capture.core_use import CoreUse
from foretrace.capture.loader_waits import LoaderWaits
from foretrace.capture.options import CaptureOptions
from foretrace.capture.passes import synchronize
from foretrace.capture.timing import BlockTimer, StepTimes, summarise

_SETTLED_RATIO = 1.5  # a step this much longer than its neighbours still belongs to the program's start
_SETTLE_LIMIT = 15  # times settle_s: some programs never settle


class FirstTiming:
    """`begin` at a boundary, `step` at each that follows, `times` at the end."""

    def __init__(self, options: CaptureOptions) -> None:
        self._options = options
        self._waits = LoaderWaits()
        self._cores = CoreUse()
        self._cores.begin()
        self._times: StepTimes | None = None
        self.begin()

    def begin(self) -> None:
        """From here on; what was timed so far stays until there are steps to time."""
        self._intervals: list[int] = []
        self._timer: BlockTimer | None = None
        self._half_ns = 0  # when the second half of the waiting steps began
        self.began_ns = self._last_ns = time.perf_counter_ns()

    def resume(self) -> None:
        """Steps in between were recorded: how long they took says nothing."""
        self._last_ns = time.perf_counter_ns()

    def forget(self) -> None:
        """Steps are of another kind from here on."""
        self.begin()
        self._times = None

    def end(self) -> None:
        """Nothing more is written down."""
        self._waits.end()

    def step(self, count: int, *, profiled: bool) -> bool:
        """At a boundary: whether all was timed. `profiled`: the program's own profiler ran before."""
        now = time.perf_counter_ns()
        if self._options.wait is not None:
            return self._count_wait(count, self._options.wait, profiled=profiled)
        if self._timer is not None:
            return self._time(self._timer)
        self._intervals.append(now - self._last_ns)
        self._last_ns = now
        if self._settled(now):
            self._begin_blocks(median(self._intervals[-3:]))
        return False

    def times(self, because: str) -> StepTimes | None:
        """What was timed so far, and how long those steps waited for their data."""
        if self._timer is not None and self._times is None:
            self._times = self._cores.told(self._waits.told(self._timer.result(because)))
        self._waits.end()
        return self._times

    @property
    def settling(self) -> bool:
        """Whether nothing is timed yet."""
        return self._timer is None and self._times is None

    def first(self) -> StepTimes | None:
        """What the steps took that were let go by so far, without the slower ones at the very beginning."""
        later = self._intervals[len(self._intervals) // 2 :]
        times = summarise([(step_ns, 1) for step_ns in later], "the first steps of a short program")
        return self._cores.told(times)

    def _begin_blocks(self, expected_ns: float) -> None:
        self._times = None
        self._timer = BlockTimer(
            expected_ns=expected_ns,
            limit_s=self._options.time_s,
            synchronize=synchronize,
            unsure=lambda: self._waits.uneven,
            waited_ns=lambda: self._waits.last_ns,
        )
        self._waits.begin()
        self._cores.begin()
        self._timer.step(time.perf_counter_ns)

    def _settled(self, now: int) -> bool:
        elapsed = (now - self.began_ns) / 1e9
        if elapsed > _SETTLE_LIMIT * self._options.settle_s and len(self._intervals) >= 2:
            return True
        recent = self._intervals[-4:]
        enough = len(self._intervals) >= self._options.settle_steps and elapsed >= self._options.settle_s
        return enough and max(recent[-2:]) <= _SETTLED_RATIO * min(recent)

    def _time(self, timer: BlockTimer) -> bool:
        if timer.stopped_because:
            return True  # a follower that waits for the plan
        self._waits.step()
        return timer.step(time.perf_counter_ns)

    def _count_wait(self, count: int, wait: int, *, profiled: bool) -> bool:
        """The schedule was given in steps: the second half of the waiting ones is what can be timed."""
        if count == wait // 2:
            synchronize()
            self._cores.begin()
            self._half_ns = time.perf_counter_ns()
        if count < wait:
            return False
        steps = wait - wait // 2
        synchronize()
        if steps >= 1 and self._half_ns and not profiled:
            step_ns = (time.perf_counter_ns() - self._half_ns) // steps
            self._times = self._cores.told(summarise([(step_ns, steps)], f"the {wait} steps of --wait"))
        return True
