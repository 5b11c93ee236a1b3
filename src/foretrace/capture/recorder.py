"""The Recorder: told at each step's end, it times steps without a profiler and then records passes of them.

settle -> time unprofiled steps -> device pass (how long the device works) -> light pass (used for timing) ->
rich pass (used for names and lines) -> memory.
The order matters: once a profiler has run, the host of that process may stay slower. What was measured is written
after each part, so a program that dies leaves what came before. No fault in here may reach the program.
One class in one file: its phases are one state machine over one set of facts.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from foretrace.capture import environment
from foretrace.capture.device_pass import DeviceTime
from foretrace.capture.loader_waits import LoaderWaits
from foretrace.capture.options import DEVICE, LIGHT, MEMORY, CaptureOptions
from foretrace.capture.passes import Pass, open_pass, peak_host_bytes, synchronize
from foretrace.capture.plan import Plan, PlannedPass, make_plan, read_plan, write_plan
from foretrace.capture.run_folder import RunFolder
from foretrace.capture.timing import BlockTimer, Pace, StepTimes, summarise, unlike

COMPLETE, PARTIAL = "complete", "partial"
_SETTLED_RATIO = 1.5  # a step this much longer than its neighbours still belongs to the program's start
_SETTLE_LIMIT = 15  # times settle_s: some programs never settle
_LOOK_EVERY_NS = 50_000_000
_RICH_TO_LIGHT = 12  # bytes of a rich file for each of a light one, generously
_TOO_LONG = 5  # times record_s: a pass that holds a validation or a checkpoint is closed early
_LET_GO_S = 0.2  # for torch's threads, before a rank is stopped
_CALM_LIMIT_S = 2.0  # beyond warm_s, for steps to take what was measured
_MOST_AGAIN = 2  # times that a light pass is recorded anew


class Recorder:
    """The capture of one rank; call `step` at each boundary and `close` at the end."""

    def __init__(
        self,
        options: CaptureOptions,
        folder: RunFolder,
        rank: int,
        *,
        step_source: str = "p.step()",
        world_size: int | None = None,
        silent: bool = False,
    ) -> None:
        self.options, self.rank = options, rank
        self.finished = False
        self.status, self.reason = PARTIAL, ""
        self.step_source = step_source
        self.notes: list[str] = []
        self._folder = folder
        self._world_size = world_size if world_size is not None else environment.rank_of_process()[1]
        self._silent = silent  # follows the plan, to stop where the others do, and writes nothing
        self._thread: int | None = None
        self._count = -1  # boundaries passed; the first one begins step 1
        self._began_ns = self._last_ns = time.perf_counter_ns()
        self._intervals: list[int] = []
        self._timer: BlockTimer | None = None
        self._times: StepTimes | None = None
        self._waits = LoaderWaits()
        self._loader: dict[str, Any] | None = None  # how long the timed steps waited for their data
        self._plan: Plan | None = None
        self._looked_ns = 0
        self._next = 0  # the planned pass that comes, or is open
        self._pass: Pass | None = None
        self._passes: list[dict[str, Any]] = []
        self._profiled: list[dict[str, Any]] = []  # those, and what did not stay
        self._pace: Pace | None = None
        self._again = 0  # times that the light pass was recorded anew, since the device's clock had moved
        self._device_time: DeviceTime | None = None
        self._cost_ns = 0
        self._foreign: Callable[[], bool] = bool
        self._foreign_steps = 0  # steps in which the program's own profiler ran
        self._phase: Callable[[], None] = self._settle
        self._process: dict[str, Any] = {}

    @property
    def timing(self) -> bool:
        """Whether the boundary may still be moved: no pass has begun."""
        return not self.finished and self._plan is None

    def watch_foreign(self, running: Callable[[], bool]) -> None:
        """Passes wait while this says that the program's own profiler runs: there can be only one."""
        self._foreign = running

    def step(self) -> None:
        """A step of the program ended here."""
        if self.finished:
            return
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        if here != self._thread:
            return
        began = time.perf_counter_ns()
        self._count += 1
        try:
            if self._foreign():
                self._stand_back()
            else:
                self._phase()
        except Exception as error:
            self._fail(error)
        self._cost_ns += time.perf_counter_ns() - began
        self._stop_the_program()

    def take(self, fixed: Callable[[], None]) -> None:
        """A step that a finder found; `fixed` is called once when the boundary can no longer be moved."""
        was_timing = self.timing
        try:
            self.step()
        finally:
            if was_timing and not self.timing:
                fixed()

    def restart(self, step_source: str) -> None:
        """Begins again from the next boundary, which is another kind of boundary."""
        self.step_source = step_source
        self._count, self._intervals, self._timer, self._times = -1, [], None, None
        self._phase = self._settle

    def close(self, reason: str = "") -> None:
        """Ends the capture and writes what there is."""
        if self.finished:
            return
        try:
            self._interrupt_pass(reason or "the program ended")
            if self._timer is not None and self._times is None:
                self._keep_waits()
                self._times = self._timer.result(reason or "the program ended")
        except Exception as error:
            reason = f"{reason}; {type(error).__name__}: {error}"
        self._finish(PARTIAL, self._why_partial(reason or "the program ended"))

    def yield_to_program(self) -> None:
        """The program starts its own profiler: ours makes way."""
        if self._pass is not None:
            self._interrupt_pass("the program started its own profiler")

    def _stand_back(self) -> None:
        """The program's own profiler runs. What is timed must be unprofiled, so timing begins again after it."""
        if not self._foreign_steps:
            self.notes.append("the program's own profiler ran before: its host may have stayed slower since")
            self._prepare()
        self._foreign_steps += 1
        if self._plan is None:
            self._intervals, self._timer = [], None
            self._began_ns = self._last_ns = time.perf_counter_ns()
            self._phase = self._settle

    # --- settle and time -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        now = time.perf_counter_ns()
        if self._count == 0:
            self._began_ns = self._last_ns = now
            self._prepare()
            if self.options.wait == 0:
                self._make_plan()
            return
        self._intervals.append(now - self._last_ns)
        self._last_ns = now
        if self._follower and self._plan_is_due():
            return
        if self.options.wait is not None:
            self._count_wait()
        elif self._settled(now):
            expected = median(self._intervals[-3:])
            self._timer = BlockTimer(
                expected_ns=expected,
                limit_s=self.options.time_s,
                synchronize=synchronize,
                unsure=lambda: self._waits.uneven,
            )
            self._phase = self._time
            self._waits.begin()
            self._timer.step(time.perf_counter_ns)

    def _settled(self, now: int) -> bool:
        elapsed = (now - self._began_ns) / 1e9
        if elapsed > _SETTLE_LIMIT * self.options.settle_s and len(self._intervals) >= 2:
            return True
        recent = self._intervals[-4:]
        enough = len(self._intervals) >= self.options.settle_steps and elapsed >= self.options.settle_s
        return enough and max(recent[-2:]) <= _SETTLED_RATIO * min(recent)

    def _count_wait(self) -> None:
        """The schedule was given in steps: the second half of the waiting ones is what can be timed."""
        wait = self.options.wait or 0
        if self._count == wait // 2:
            synchronize()
            self._looked_ns = time.perf_counter_ns()
        if self._count < wait:
            return
        steps = wait - wait // 2
        synchronize()
        if steps >= 1 and self._looked_ns and not self._foreign_steps:
            each = (time.perf_counter_ns() - self._looked_ns) // steps
            self._times = summarise([(each, steps)], f"the {wait} steps of --wait")
        self._make_plan()

    def _time(self) -> None:
        assert self._timer is not None
        if self._follower and self._plan_is_due():
            return
        if self._timer.stopped_because:
            return  # a follower that waits for the plan
        self._waits.step()
        if self._timer.step(time.perf_counter_ns):
            self._times = self._timer.result()
            if not self._follower:
                self._make_plan()

    # --- plan ------------------------------------------------------------------------------------------------

    @property
    def _follower(self) -> bool:
        """Whether another rank decides in which steps to record; with a given schedule, nobody has to."""
        leader = min(self.options.ranks) if self.options.ranks else 0
        alone = self._world_size <= 1 and not self._silent
        return not alone and self.rank != leader and self.options.wait is None

    def _keep_waits(self) -> None:
        """What the timed steps waited for their data; nothing more is written down."""
        self._waits.end()
        self._loader = self._waits.facts() or self._loader

    def _make_plan(self) -> None:
        self._keep_waits()
        step_ns = self._times.median_ns if self._times else None
        self._plan = make_plan(
            self.options, at=self._count, step_ns=step_ns, ranks=self._world_size, device=_has_cuda()
        )
        if self._world_size > 1 and self.options.wait is None:
            write_plan(self._folder.path, self._plan)
        self._save()
        self._begin_plan()

    def _plan_is_due(self) -> bool:
        """Looks for the leader's plan, seldom, and whether its first step has come."""
        now = time.perf_counter_ns()
        if self._plan is None and now - self._looked_ns > _LOOK_EVERY_NS:
            self._looked_ns = now
            self._plan = read_plan(self._folder.path)
        if self._plan is None or not self._plan.passes or self._count < self._plan.passes[0].start:
            return False
        late = self._count - self._plan.passes[0].start
        if late:
            self.notes.append(f"saw the plan {late} steps late")
        if self._timer is not None:
            self._times = self._timer.result("the first rank began to record")
            self._keep_waits()
        self._save()
        self._begin_plan()
        return True

    def _begin_plan(self) -> None:
        assert self._plan is not None
        self._phase = self._record
        if not self._plan.passes:
            self._finish(COMPLETE, "")
            return
        self._phase()

    # --- passes ----------------------------------------------------------------------------------------------

    def _record(self) -> None:
        assert self._plan is not None
        if self._pass is not None:
            self._within(self._plan.passes[self._next])
        if self._pass is None and self._next < len(self._plan.passes):
            self._maybe_begin(self._plan.passes[self._next])
        if self._pass is None and self._next >= len(self._plan.passes) and not self.finished:
            self._finish_all()

    def _maybe_begin(self, planned: PlannedPass) -> None:
        if self._count < planned.start or self._silent:
            if self._silent and self._count >= planned.closes:
                self._next += 1
            return
        skipped = self._why_not(planned)
        if skipped:
            if planned.kind != DEVICE and not self._again:
                self.notes.append(f"{planned.kind} pass left out: {skipped}")
            self._go_on()
            return
        path = self._path(planned)
        if self._again:
            path = path.with_name(f".{path.name}")
        self._pass = open_pass(planned, self.options, path, self._count, self._facts_in_trace())
        self._pace = self._pace_of(planned)
        if self._pass.warmed(self._count):
            self._pass.open(self._count)

    def _within(self, planned: PlannedPass) -> None:
        assert self._pass is not None
        if not self._pass.recording:
            at_pace = self._pace is None or self._pace.step(time.perf_counter_ns())
            if self._pass.warmed(self._count) and at_pace:
                self._pass.open(self._count)
            return
        too_long = self._pass.recorded_s > _TOO_LONG * self.options.record_s
        if not self._pass.step(self._count) and not too_long:
            return
        if too_long:
            self.notes.append(f"{planned.kind} pass closed early: it took longer than planned")
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
        if planned.kind != LIGHT or self._pace is None or self._times is None or self._again == _MOST_AGAIN:
            return False
        return self._times.wander and unlike(self._passes[-1]["step_ns"], self._times.median_ns)

    def _pace_of(self, planned: PlannedPass) -> Pace | None:
        """What the opening of a pass waits for; ranks count steps and do not wait."""
        given = self._world_size > 1 or self.options.warmup is not None
        if planned.kind != LIGHT or given or self._times is None or not _has_cuda():
            return None
        return Pace(step_ns=self._times.median_ns, limit_s=self.options.warm_s + _CALM_LIMIT_S)

    def _keep_pass(self) -> None:
        done, self._pass = self._pass, None
        assert done is not None
        stays, facts = done.close(), done.facts()
        self._profiled.append(facts)
        self._device_time = done.device_time or self._device_time
        if not stays:
            return
        if not self._again:
            self._passes.append(facts)
        elif self._nearer(facts, self._passes[-1]):
            kept = self._path(done.planned)
            done.path.replace(kept)
            self._passes[-1] = {**facts, "file": kept.name}
        else:
            done.path.unlink()

    def _nearer(self, one: dict[str, Any], two: dict[str, Any]) -> bool:
        """Whether the steps of one pass are nearer to what was measured than those of the other."""
        measured = self._times.median_ns if self._times else 0
        return bool(abs(one["step_ns"] - measured) < abs(two["step_ns"] - measured))

    def _interrupt_pass(self, why: str) -> None:
        if self._pass is None:
            return
        kind = self._pass.planned.kind
        complete_steps = self._pass.steps_recorded
        spare = self._again or kind == DEVICE
        self._go_on()
        if spare:
            lost, self._pass = self._pass, None
            lost.abandon()
            return
        if complete_steps < 1 or threading.get_ident() != self._thread:
            lost, self._pass = self._pass, None
            lost.abandon()
            self.notes.append(f"{kind} pass lost: {why} before one step was recorded")
            return
        self._keep_pass()
        self.notes.append(f"{kind} pass cut to {complete_steps} steps: {why}")

    def _why_not(self, planned: PlannedPass) -> str:
        elapsed = (time.perf_counter_ns() - self._began_ns) / 1e9
        if elapsed > self.options.total_s:
            return f"the limit of {self.options.total_s:g} s was reached"
        if planned.kind == MEMORY and not _has_cuda():
            return "memory history needs CUDA"
        sizes = [
            each["file_bytes"] / max(each["steps"], 1) for each in self._passes if each["kind"] == "light"
        ]
        if planned.kind == "rich" and sizes:
            expected = sizes[-1] * planned.active * _RICH_TO_LIGHT
            if expected > self.options.file_bytes:
                return (
                    f"its file would be about {expected / 2**20:.0f} MiB, the limit is "
                    f"{self.options.file_bytes / 2**20:.0f} MiB: record fewer steps (--active)"
                )
        return ""

    def _path(self, planned: PlannedPass) -> Path:
        suffix = "pickle" if planned.kind == MEMORY else "json"
        number = f"-{planned.number + 1}" if planned.number else ""
        return self._folder.rank_folder(self.rank) / f"{planned.kind}{number}.{suffix}"

    # --- writing ---------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if not self._silent:
            self._process = environment.describe_process()
            self._save()

    def _facts_in_trace(self) -> str:
        times = self._times.to_dict() if self._times else None
        return json.dumps({"rank": self.rank, "step_source": self.step_source, "unprofiled": times})

    def _why_partial(self, reason: str) -> str:
        if self._foreign_steps and not self._passes:
            return (
                f"{reason}; its own profiler ran in {self._foreign_steps} of {self._count} steps, and there can be "
                "only one: read that recording with foretrace, or let the program run longer after it"
            )
        if self._times is None and not self._passes:
            return (
                f"{reason} after {max(self._count, 0)} steps, before anything was measured: let it run longer, "
                "or name a short schedule: --wait 2 --warmup 1 --active 3"
            )
        return reason

    def _finish_all(self) -> None:
        wanted = {each.kind for each in self._plan.passes} - {DEVICE} if self._plan else set()
        missing = wanted - {each["kind"] for each in self._passes}
        if missing and not self._silent:
            reason = "; ".join(self.notes) or f"{', '.join(sorted(missing))} not recorded"
            self._finish(PARTIAL, reason)
        else:
            self._finish(COMPLETE, "")

    def _finish(self, status: str, reason: str) -> None:
        self.finished, self.status, self.reason = True, status, reason
        try:
            self._save()
        except OSError as error:
            sys.stderr.write(f"foretrace: cannot write the Run: {error}\n")

    def _save(self) -> None:
        if self._silent:
            return
        reason = self.reason
        if not self.finished:
            reason = "the program ended without notice (killed, or os._exit) before the capture was complete"
        facts = {
            **self._process,
            "world_size": self._world_size,
            "step_source": self.step_source,
            "unprofiled": self._times.to_dict() if self._times else None,
            "loader": self._loader,
            "device_time": self._device_time.to_dict() if self._device_time else None,
            "passes": self._passes,
            "cost_s": round(self._cost_s(), 3),
            "peak_host_bytes": peak_host_bytes(),
            "steps_seen": max(self._count, 0),
            "notes": self.notes,
            "status": self.status,
            "reason": reason,
        }
        self._folder.write_rank(self.rank, facts)

    def _cost_s(self) -> float:
        """Time in here, and how much longer the profiled steps took than unprofiled ones."""
        cost = self._cost_ns / 1e9
        for each in self._profiled if self._times else ():
            assert self._times is not None
            steps = each["steps"] + each["warmup_steps"]
            cost += max(0.0, each["warmup_s"] + each["record_s"] - steps * self._times.median_ns / 1e9)
        return cost

    def _fail(self, error: Exception) -> None:
        if os.environ.get("FORETRACE_DEBUG"):
            import traceback

            traceback.print_exc()
        lost, self._pass = self._pass, None
        if lost is not None:
            try:
                lost.abandon()
            except Exception as second:
                self.notes.append(f"{type(second).__name__}: {second}")
        self._finish(PARTIAL, f"recording failed, the program went on: {type(error).__name__}: {error}")

    def _stop_the_program(self) -> None:
        if self.finished and self.options.stop_after_capture and (self.status == COMPLETE or self._passes):
            if self._world_size > 1:
                # A thread of the process group still drops the last collective. If Python shuts down while that
                # thread waits for the GIL, torch aborts the process: it gets the GIL now.
                time.sleep(_LET_GO_S)
            raise SystemExit(0)


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())
