"""The Recording: carries out a Plan, pass by pass, and keeps what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from foretrace.capture.device_pass import DeviceTime
from foretrace.capture.kept_passes import KeptPasses, slowed_s
from foretrace.capture.memory_pass import MemoryPass, history_is_on
from foretrace.capture.options import AGAIN, DEVICE, LIGHT, MEMORY, RICH, CaptureOptions
from foretrace.capture.passes import Pass, open_pass
from foretrace.capture.plan import Plan, PlannedPass, recorded_anew
from foretrace.capture.rich_size import size_of, too_large
from foretrace.capture.timing import Pace, StepTimes, unlike
from foretrace.capture.timing_pass import TimingPass
from foretrace.capture.timings import Timings

_TOO_LONG = 5  # times record_s: a pass that holds a validation or a checkpoint is closed early
_CALM_LIMIT_S = 2.0  # beyond warm_s, for steps to take what was measured
_MOST_AGAIN = 2  # times that a light pass is recorded anew


class Recording:
    """Of one rank: `step` at each boundary once there is a plan, until it is `over`."""

    def __init__(
        self,
        options: CaptureOptions,
        kept: KeptPasses,
        *,
        ranks: int,
        silent: bool,
        notes: list[str],
        facts: Callable[[], str],
        save: Callable[[], None],
        rich: bool = True,
    ) -> None:
        self.plan: Plan | None = None
        self.timings, self.kept = Timings(), kept
        self.until_ns = float("inf")  # no pass begins later
        self.device_time: DeviceTime | None = None
        self.slowed_s = 0.0  # how much longer the steps under a profiler took
        self._options, self._ranks, self._silent, self._notes = options, ranks, silent, notes
        self._facts, self._save = (
            facts,
            save,
        )  # what a trace says of the rank; writes down what there is so far
        self._leaves_out: frozenset[str] = (
            frozenset() if rich else frozenset({RICH})
        )  # other ranks record these
        self._count = 0
        self._next = 0  # the planned pass that comes, or is open
        self._pass: Pass | None = None
        self._pace: Pace | None = None
        self._again = 0  # times that the light pass was recorded anew, since the device's clock had moved

    @property
    def open_kind(self) -> str | None:
        """Of the pass that warms up or records."""
        return self._pass.planned.kind if self._pass is not None else None

    @property
    def left(self) -> tuple[PlannedPass, ...]:
        """The passes that are not over."""
        return self.plan.passes[self._next :] if self.plan is not None else ()

    @property
    def missing(self) -> set[str]:
        """Kinds that were to be recorded and were not."""
        planned = self.plan.passes if self.plan is not None else ()
        return {wanted.kind for wanted in planned if not wanted.extra} - self.kept.kinds - self._leaves_out

    def add(self, *more: PlannedPass) -> None:
        """Further passes, behind those of the plan."""
        assert self.plan is not None
        self.plan = self.plan.then(*more)

    def step(self, count: int) -> None:
        """At a boundary."""
        self._count = count
        if self._pass is not None:
            self._within(self.left[0])
        if self._pass is None and self.left:
            self._maybe_begin(self.left[0])

    def interrupt(self, why: str, *, own_thread: bool) -> None:
        """Ends the pass that is open; what it holds is kept, if this is the thread that opened it."""
        if self._pass is None:
            return
        kind = self._pass.planned.kind
        complete_steps = self._pass.steps_recorded
        spare = self._again or self._pass.planned.extra
        self._go_on()
        if spare:
            lost, self._pass = self._pass, None
            lost.abandon()
            if isinstance(lost, TimingPass):
                self._judge(lost.result(why))
            return
        if complete_steps < 1 or not own_thread:
            lost, self._pass = self._pass, None
            lost.abandon()
            self._notes.append(f"{kind} pass lost: {why} before one step was recorded")
            return
        self._keep_pass()
        self._notes.append(f"{kind} pass cut to {complete_steps} steps: {why}")

    def abandon(self) -> None:
        """Ends the pass that is open, without its file."""
        lost, self._pass = self._pass, None
        if lost is None:
            return
        try:
            lost.abandon()
        except Exception as second:
            self._notes.append(f"{type(second).__name__}: {second}")

    def _maybe_begin(self, planned: PlannedPass) -> None:
        passed_by = self._silent or planned.kind in self._leaves_out
        if self._count < planned.start or passed_by:
            if passed_by and self._count >= planned.closes:
                self._next += 1
                if self.left:  # what follows begins where it does on ranks that recorded this one
                    self._maybe_begin(self.left[0])
            return
        skipped = self._why_not(planned)
        if skipped:
            if not planned.extra and not self._again:
                self._notes.append(f"{planned.kind} pass left out: {skipped}")
            self._go_on()
            return
        self._pass = self._opened(planned)
        self._pace = self._pace_of(planned)
        if self._pass.warmed(self._count):
            self._pass.open(self._count)

    def _opened(self, planned: PlannedPass) -> Pass:
        path = self.kept.path(planned, beside=self._again > 0 or self.kept.holds(planned))
        if planned.kind == AGAIN:
            assert self.timings.used is not None
            return TimingPass(
                planned,
                path,
                self._options,
                first=self.timings.used,
                light_ns=self.kept.light_ns,
                counted=self._ranks > 1,
            )
        if planned.kind == MEMORY:
            return MemoryPass(planned, path, self._notes)
        size = size_of(planned, self._options, self.kept.passes)
        if size.left_out:
            self._notes.append(f"{planned.kind} pass of {size.left_out}")
        return open_pass(
            replace(planned, active=size.steps),
            self._options,
            path,
            self._count,
            self._facts(),
            switches=size.switches,
            lead=size.lead,
        )

    def _within(self, planned: PlannedPass) -> None:
        assert self._pass is not None
        if not self._pass.recording:
            at_pace = self._pace is None or self._pace.step(time.perf_counter_ns())
            if self._pass.warmed(self._count) and at_pace:
                self._pass.open(self._count)
            return
        too_long = self._pass.recorded_s > _TOO_LONG * self._options.record_s
        if not self._pass.step(self._count) and not too_long:
            return
        if too_long and planned.kind != AGAIN:
            self._notes.append(f"{planned.kind} pass closed early: it took longer than planned")
        self._keep_pass()
        if not too_long and self._clock_moved(planned):
            self._again += 1
        else:
            self._go_on()
        self._save()

    def _go_on(self) -> None:
        self._next, self._again = self._next + 1, 0

    def _clock_moved(self, planned: PlannedPass) -> bool:
        """Whether the light pass shows a device that was not as fast as while it was timed; then, once more."""
        times = self.timings.used
        if planned.kind != LIGHT or self._pace is None or times is None or self._again == _MOST_AGAIN:
            return False
        return times.wander and unlike(self.kept.step_ns(planned), times.median_ns)

    def _pace_of(self, planned: PlannedPass) -> Pace | None:
        """What the opening of a pass waits for; ranks count steps and do not wait."""
        given = self._ranks > 1 or self._options.warmup is not None
        times = self.timings.used
        if planned.kind != LIGHT or given or times is None or not has_cuda():
            return None
        return Pace(step_ns=times.median_ns, limit_s=self._options.warm_s + _CALM_LIMIT_S)

    def _keep_pass(self) -> None:
        done, self._pass = self._pass, None
        assert done is not None
        stays = done.close()
        if isinstance(done, TimingPass):
            self._judge(done.times)
            return
        facts = done.facts()
        self.slowed_s += slowed_s(facts, self.timings.used)
        self.device_time = done.device_time or self.device_time
        if stays:
            self._keep_file(done, facts)

    def _keep_file(self, done: Pass, facts: dict[str, Any]) -> None:
        times = self.timings.used
        nearest_to_ns = (times.median_ns if times else 0) if self._again else None
        self.kept.keep(done, facts, nearest_to_ns=nearest_to_ns)
        if done.planned.anew:
            self.timings.recorded_settled()
        if done.note:
            self._notes.append(done.note)
        large = too_large(facts, self._options.file_bytes)
        if large:
            self._notes.append(large)

    def _why_not(self, planned: PlannedPass) -> str:
        if time.perf_counter_ns() > self.until_ns:
            return f"the limit of {self._options.total_s:g} s was reached"
        if planned.kind == MEMORY and not has_cuda():
            return "there is no CUDA allocator in this program, which has used no GPU so far"
        if planned.kind == MEMORY and history_is_on():
            return "the program records the allocator's history itself, and is left alone"
        if planned.kind == AGAIN and self.timings.used is None:
            return "nothing was timed before"
        return ""

    def _judge(self, again: StepTimes | None) -> None:
        """Steps were timed once more: what follows if they have become shorter."""
        assert self.plan is not None
        said = self.timings.judge(again, self.kept.light_ns)
        if said:
            self._notes.append(said)
        times, settling = self.timings.used, self.timings.settling
        if said is None or not self.timings.fell or times is None or settling is None:
            return
        if self._ranks > 1:  # they count steps
            return
        kinds = (DEVICE,) if settling.light_settled else (DEVICE, LIGHT)
        anew = recorded_anew(self._options, self.plan, at=self._count, step_ns=times.median_ns, kinds=kinds)
        self.add(*anew)


def has_cuda() -> bool:
    """Whether the program uses a CUDA device."""
    import torch

    return bool(torch.cuda.is_initialized())
