"""The Recorder: told at each step's end, it times steps without a profiler and then records passes of them.

settle -> time unprofiled steps -> device pass (how long the device works) -> light pass (used for timing) ->
rich pass (used for names and lines) -> memory -> time again -> watch.
The order matters: once a profiler has run, the host of that process may stay slower. Where steps are clearly shorter
after the passes, the program had not settled, and what depends on it is recorded anew. What was measured is written
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
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from foretrace.capture import environment, settled
from foretrace.capture.device_pass import DeviceTime
from foretrace.capture.loader_waits import LoaderWaits
from foretrace.capture.options import AGAIN, DEVICE, LIGHT, MEMORY, RICH, CaptureOptions
from foretrace.capture.passes import Pass, open_pass, peak_host_bytes, synchronize
from foretrace.capture.plan import (
    AGAIN_S,
    Plan,
    PlannedPass,
    make_plan,
    read_plan,
    recorded_anew,
    timed_again,
    write_plan,
)
from foretrace.capture.rich_size import RichSize, fitting
from foretrace.capture.run_folder import RunFolder
from foretrace.capture.settled import Settling
from foretrace.capture.timing import BlockTimer, Pace, StepTimes, summarise, unlike
from foretrace.capture.timing_pass import TimingPass
from foretrace.capture.watch import Watch

COMPLETE, PARTIAL = "complete", "partial"
_SETTLED_RATIO = 1.5  # a step this much longer than its neighbours still belongs to the program's start
_SETTLE_LIMIT = 15  # times settle_s: some programs never settle
_LOOK_EVERY_NS = 50_000_000
_TOO_LONG = 5  # times record_s: a pass that holds a validation or a checkpoint is closed early
_LET_GO_S = 0.2  # for torch's threads, before a rank is stopped
_CALM_LIMIT_S = 2.0  # beyond warm_s, for steps to take what was measured
_MOST_AGAIN = 2  # times that a light pass is recorded anew
_WATCH_S = 60.0  # after the capture, in a program that goes on
_MOST_LOOKS = 2  # times that a program which seems to have become faster is timed once more


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
        watch: bool = False,
    ) -> None:
        self.options, self.rank = options, rank
        self.finished = False
        self.status, self.reason = PARTIAL, ""
        self.step_source = step_source
        self.notes: list[str] = []
        self._folder = folder
        self._world_size = world_size if world_size is not None else environment.rank_of_process()[1]
        self._watches = watch  # goes on looking at the steps when all is recorded
        self._silent = silent  # follows the plan, to stop where the others do, and writes nothing
        self._thread: int | None = None
        self._count = -1  # boundaries passed; the first one begins step 1
        self._began_ns = self._last_ns = time.perf_counter_ns()
        self._intervals: list[int] = []
        self._timer: BlockTimer | None = None
        self._waits = LoaderWaits()
        self._times: StepTimes | None = None  # those to use
        self._first_times: StepTimes | None = None
        self._later_times: StepTimes | None = None
        self._settling: Settling | None = None
        self._watch: Watch | None = None
        self._looks = 0
        self._plan: Plan | None = None
        self._looked_ns = 0
        self._next = 0  # the planned pass that comes, or is open
        self._pass: Pass | None = None
        self._passes: list[dict[str, Any]] = []
        self._slowed_s = 0.0  # how much longer the steps under a profiler took
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

    @property
    def done(self) -> bool:
        """Whether nothing more is looked at."""
        return self.finished and self._watch is None

    def watch_foreign(self, running: Callable[[], bool]) -> None:
        """Passes wait while this says that the program's own profiler runs: there can be only one."""
        self._foreign = running

    def step(self) -> None:
        """A step of the program ended here."""
        if self.done:
            return
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        if here != self._thread:
            return
        began = time.perf_counter_ns()
        self._count += 1
        try:
            if not self._foreign():
                self._phase()
            elif not self.finished:
                self._stand_back()
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
            self._end_watch(reason)
            return
        try:
            self._interrupt_pass(reason or "the program ended")
            self._keep_times(reason or "the program ended")
        except Exception as error:
            reason = f"{reason}; {type(error).__name__}: {error}"
        if self._plan is not None and all(each.extra for each in self._plan.passes[self._next :]):
            self._finish_all()
        else:
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
            expected, self._times = median(self._intervals[-3:]), None
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
            self._keep_times("")
            if not self._follower:
                self._make_plan()

    def _keep_times(self, because: str) -> None:
        """What was timed so far, and how long those steps waited for their data."""
        if self._timer is not None and self._times is None:
            self._times = self._waits.told(self._timer.result(because))
            self._waits.end()

    # --- plan ------------------------------------------------------------------------------------------------

    @property
    def _follower(self) -> bool:
        """Whether another rank decides in which steps to record; with a given schedule, nobody has to."""
        leader = min(self.options.ranks) if self.options.ranks else 0
        alone = self._world_size <= 1 and not self._silent
        return not alone and self.rank != leader and self.options.wait is None

    def _make_plan(self) -> None:
        step_ns = self._times.median_ns if self._times else None
        self._first_times = self._times
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
        self._keep_times("the first rank began to record")
        self._first_times = self._times
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
        if self._pass is not None or self._next < len(self._plan.passes):
            return
        if self.finished:
            self._phase = self._look
        elif self._world_size <= 1 or self._count >= self._plan.end:  # ranks end at the same step
            self._finish_all()

    def _maybe_begin(self, planned: PlannedPass) -> None:
        if self._count < planned.start or self._silent:
            if self._silent and self._count >= planned.closes:
                self._next += 1
            return
        skipped = self._why_not(planned)
        if skipped:
            if not planned.extra and not self._again:
                self.notes.append(f"{planned.kind} pass left out: {skipped}")
            self._go_on()
            return
        self._pass = self._opened(planned)
        self._pace = self._pace_of(planned)
        if self._pass.warmed(self._count):
            self._pass.open(self._count)

    def _opened(self, planned: PlannedPass) -> Pass:
        path = self._path(planned)
        if self._again or planned.anew:
            path = path.with_name(f".{path.name}")
        if planned.kind == AGAIN:
            assert self._times is not None
            light_ns, limit_s = self._light_ns, self.options.time_s
            doubtful = settled.doubtful(self._times, light_ns)
            brief_s = limit_s if doubtful else min(AGAIN_S, limit_s)
            counted = self._world_size > 1
            return TimingPass(
                planned, path, first=self._times, brief_s=brief_s, limit_s=limit_s, counted=counted
            )
        size = self._size_of(planned)
        return open_pass(
            replace(planned, active=size.steps),
            self.options,
            path,
            self._count,
            self._facts_in_trace(),
            switches=size.switches,
            lead=size.lead,
        )

    def _size_of(self, planned: PlannedPass) -> RichSize:
        """What to record in a pass: all that was asked for, but for a rich pass whose file would be too large."""
        switches = self.options.switches(planned.kind)
        if planned.kind != RICH:
            return RichSize(planned.active, switches)
        size = fitting(
            steps=planned.active, switches=switches, passes=self._passes, limit_bytes=self.options.file_bytes
        )
        if size.left_out:
            self.notes.append(f"rich pass of {size.left_out}")
        return size

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
        if too_long and planned.kind != AGAIN:
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
        place = self._place(planned)
        recorded = self._passes[-1 if place is None else place]
        return self._times.wander and unlike(recorded["step_ns"], self._times.median_ns)

    def _pace_of(self, planned: PlannedPass) -> Pace | None:
        """What the opening of a pass waits for; ranks count steps and do not wait."""
        given = self._world_size > 1 or self.options.warmup is not None
        if planned.kind != LIGHT or given or self._times is None or not _has_cuda():
            return None
        return Pace(step_ns=self._times.median_ns, limit_s=self.options.warm_s + _CALM_LIMIT_S)

    def _keep_pass(self) -> None:
        done, self._pass = self._pass, None
        assert done is not None
        stays = done.close()
        if isinstance(done, TimingPass):
            self._judge(done.times)
            return
        facts = done.facts()
        self._slowed_s += self._slowed_by(facts)
        self._device_time = done.device_time or self._device_time
        if stays:
            self._keep_file(done, facts)

    def _keep_file(self, done: Pass, facts: dict[str, Any]) -> None:
        place, kept = self._place(done.planned), self._path(done.planned)
        if place is None:
            self._passes.append(facts)
        elif self._again and not self._nearer(facts, self._passes[place]):
            done.path.unlink()
        else:
            done.path.replace(kept)
            self._passes[place] = {**facts, "file": kept.name}
        if done.planned.anew and self._settling is not None:
            self._settling = replace(self._settling, light_settled=True)
        if done.planned.kind == RICH and facts["file_bytes"] > self.options.file_bytes:
            self.notes.append(
                f"the rich pass's file of {facts['file_bytes'] / 2**20:.3g} MiB stays: the limit of "
                f"{self.options.file_bytes / 2**20:.3g} MiB did not hold"
            )

    def _place(self, planned: PlannedPass) -> int | None:
        """Where this pass stands among those that were kept."""
        files = [each["file"] for each in self._passes]
        name = self._path(planned).name
        return files.index(name) if name in files else None

    def _nearer(self, one: dict[str, Any], two: dict[str, Any]) -> bool:
        """Whether the steps of one pass are nearer to what was measured than those of the other."""
        measured = self._times.median_ns if self._times else 0
        return bool(abs(one["step_ns"] - measured) < abs(two["step_ns"] - measured))

    def _interrupt_pass(self, why: str) -> None:
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
        if planned.kind == AGAIN and self._times is None:
            return "nothing was timed before"
        return ""

    def _path(self, planned: PlannedPass) -> Path:
        suffix = "pickle" if planned.kind == MEMORY else "json"
        number = f"-{planned.number + 1}" if planned.number else ""
        return self._folder.rank_folder(self.rank) / f"{planned.kind}{number}.{suffix}"

    # --- settled or not --------------------------------------------------------------------------------------

    @property
    def _light_ns(self) -> float | None:
        """What a step took in the light pass."""
        return next((each["step_ns"] for each in reversed(self._passes) if each["kind"] == LIGHT), None)

    def _judge(self, again: StepTimes | None) -> None:
        """Steps were timed once more: what follows if they have become shorter."""
        assert self._plan is not None
        if again is None or self._times is None:
            return
        found = settled.compare(self._times, again, light_ns=self._light_ns)
        fell = found.verdict == settled.FASTER
        if self._settling is not None and not fell:
            return  # what was found before the watch stands
        self._later_times, self._settling = again, found
        if found.says:
            self.notes.append(found.says)
        if not fell:
            return
        self._times = again
        unsettled = self._recorded_unsettled(again)
        self._settling = replace(found, light_settled=not unsettled)
        if self._world_size > 1:  # they count steps
            return
        kinds = (DEVICE, LIGHT) if unsettled else (DEVICE,)
        anew = recorded_anew(self.options, self._plan, at=self._count, step_ns=again.median_ns, kinds=kinds)
        self._plan = self._plan.then(*anew)

    def _recorded_unsettled(self, now: StepTimes) -> bool:
        """Whether the light pass is of steps that were longer than they are now."""
        return self._light_ns is not None and self._light_ns > (1 + settled.CLEARLY) * now.median_ns

    def _look(self) -> None:
        """All is recorded: does the program become faster?"""
        assert self._watch is not None
        assert self._plan is not None
        now = time.perf_counter_ns()
        if self._watch.over(now) or self._times is None:
            self._end_watch("")
        elif self._watch.step(now):
            self._looks += 1
            self._plan = self._plan.then(
                timed_again(self.options, at=self._count, step_ns=self._times.median_ns)
            )
            self._phase = self._record

    def _begin_watch(self) -> None:
        """A program may warm up for longer than a capture takes."""
        alone = self._world_size <= 1 and not self.options.stop_after_capture and self.options.wait is None
        if not self._watches or not alone or self._times is None or self._looks == _MOST_LOOKS:
            return
        now = time.perf_counter_ns()
        until_ns = min(now + _WATCH_S * 1e9, self._began_ns + self.options.total_s * 1e9)
        self._watch = Watch(low_ns=self._times.low_ns, began_ns=now, until_ns=until_ns)
        self._phase = self._look

    def _end_watch(self, reason: str) -> None:
        if self._watch is None:
            return
        self._watch = None
        try:
            self._interrupt_pass(reason or "the program ended")
            self._save()
        except Exception as error:
            sys.stderr.write(f"foretrace: the last steps were not looked at: {error!r}\n")

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
        wanted = {each.kind for each in self._plan.passes if not each.extra} if self._plan else set()
        missing = wanted - {each["kind"] for each in self._passes}
        if self._settling is None and self._first_times is not None and not self._silent:
            self._settling = settled.compare(self._first_times, None, light_ns=self._light_ns)
            self.notes += [self._settling.says] if self._settling.says else []
        if missing and not self._silent:
            reason = "; ".join(self.notes) or f"{', '.join(sorted(missing))} not recorded"
            self._finish(PARTIAL, reason)
        else:
            self._finish(COMPLETE, "")
            self._begin_watch()

    def _finish(self, status: str, reason: str) -> None:
        self.finished, self.status, self.reason = True, status, reason
        self._waits.end()
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
            "unprofiled": _figures(self._times),
            "timed_first": _figures(self._first_times or self._times),
            "timed_again": _figures(self._later_times),
            "settling": self._settling.to_dict() if self._settling else None,
            "loader": self._times.loader if self._times else None,
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
        return self._cost_ns / 1e9 + self._slowed_s

    def _slowed_by(self, facts: dict[str, Any]) -> float:
        if self._times is None:
            return 0.0
        unprofiled_s = (facts["steps"] + facts["warmup_steps"]) * self._times.median_ns / 1e9
        return float(max(0.0, facts["warmup_s"] + facts["record_s"] - unprofiled_s))

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
        if self.finished:  # all is recorded, and the program was only watched
            self.notes.append(f"not watched any longer: {type(error).__name__}: {error}")
            self._end_watch("")
            return
        self._finish(PARTIAL, f"recording failed, the program went on: {type(error).__name__}: {error}")

    def _stop_the_program(self) -> None:
        if self.finished and self.options.stop_after_capture and (self.status == COMPLETE or self._passes):
            if self._world_size > 1:
                # A thread of the process group still drops the last collective. If Python shuts down while that
                # thread waits for the GIL, torch aborts the process: it gets the GIL now.
                time.sleep(_LET_GO_S)
            raise SystemExit(0)


def _figures(times: StepTimes | None) -> dict[str, Any] | None:
    return times.to_dict() if times else None


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())
