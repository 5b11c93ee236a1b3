"""The Recorder: told at each step's end, it times steps without a profiler and then records passes of them.

settle -> time unprofiled steps -> device pass (how long the device works) -> light pass (used for timing) ->
rich pass (used for names and lines) -> memory -> time again -> watch.
The order matters: once a profiler has run, the host of that process may stay slower. Where steps are clearly shorter
after the passes, the program had not settled, and what depends on it is recorded anew. What was measured is written
after each part, so a program that dies leaves what came before. No fault in here may reach the program.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from foretrace.capture import environment, process_groups
from foretrace.capture.early import EarlyPasses
from foretrace.capture.first_timing import FirstTiming
from foretrace.capture.kept_passes import KeptPasses
from foretrace.capture.line_marks import LineMarks
from foretrace.capture.options import RICH, CaptureOptions
from foretrace.capture.out_of_memory import OutOfMemory
from foretrace.capture.passes import peak_host_bytes
from foretrace.capture.plan import Plan, make_plan, read_plan, timed_again, write_plan
from foretrace.capture.recording import Recording, has_cuda
from foretrace.capture.run_folder import RunFolder
from foretrace.capture.watch import Watch

COMPLETE, PARTIAL = "complete", "partial"
_LOOK_EVERY_NS = 50_000_000
_LET_GO_S = 0.2  # for torch's threads, before a rank is stopped
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
        early: bool = False,
        oom: OutOfMemory | None = None,
    ) -> None:
        self.options, self.rank = options, rank
        self.finished = False
        self.status, self.reason = PARTIAL, ""
        self.step_source = step_source
        self.notes: list[str] = []
        self._folder = folder
        self._world_size = world_size if world_size is not None else environment.rank_of_process()[1]
        self._wants_early = early  # records some of the first steps, in case the program soon ends
        self._watches = watch  # goes on looking at the steps when all is recorded
        self._silent = silent  # follows the plan, to stop where the others do, and writes nothing
        self._thread: int | None = None
        self._count = -1  # boundaries passed; the first one begins step 1
        self._timing = FirstTiming(options)
        self._watch: Watch | None = None
        self._looks = 0
        self._looked_ns = 0
        self._kept = KeptPasses(folder, rank)
        self._recording = Recording(
            options,
            self._kept,
            ranks=self._world_size,
            silent=silent,
            notes=self.notes,
            facts=self._facts_in_trace,
            save=self._save,
            rich=options.wants_rich(rank),
        )
        own = (
            options
            if options.wants_rich(rank)
            else replace(options, passes=tuple(kind for kind in options.passes if kind != RICH))
        )
        self._early = EarlyPasses(
            own, self._kept, notes=self.notes, facts=self._facts_in_trace, save=self._save
        )
        self._timings = self._recording.timings
        self._cost_ns = 0
        self._lines = LineMarks(wanted=options.lines)
        self._closed = False
        self._foreign: Callable[[], bool] = bool
        self._foreign_steps = 0  # steps in which the program's own profiler ran
        self._phase: Callable[[], None] = self._time
        self._process: dict[str, Any] = {}
        self._described: list[dict[str, Any]] | None = None
        self._oom = oom
        if oom is not None:
            oom.join(step=lambda: None if self.done else max(self._count, 0) + 1, save=self._save)

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
        self._lines.boundary()
        self._count += 1
        try:
            if not self._foreign():
                self._phase()
            elif not self.finished:
                self._stand_back()
        except Exception as error:
            self._fail(error)
        self._lines.passed(self._recording.open_kind or self._early.open_kind)
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
        self._count = -1
        self._early.forget()
        self._timing.forget()
        self._phase = self._time

    def close(self, reason: str = "") -> None:
        """Ends the capture and writes what there is."""
        self._closed = True
        if self.finished:
            self._end_watch(reason)
            return
        try:
            self._interrupt_pass(reason or "the program ended")
            if self._phase in (self._time, self._record_early):
                times = self._timing.times(reason or "the program ended")
                self._timings.begin(times or self._early.times)
        except Exception as error:
            reason = f"{reason}; {type(error).__name__}: {error}"
        if self._plan is not None and all(each.extra for each in self._recording.left):
            self._finish_all()
        else:
            self._finish(PARTIAL, self._why_partial(reason or "the program ended"))

    def yield_to_program(self) -> None:
        """The program starts its own profiler: ours makes way."""
        self._interrupt_pass("the program started its own profiler")

    def _stand_back(self) -> None:
        """The program's own profiler runs. What is timed must be unprofiled, so timing begins again after it."""
        if not self._foreign_steps:
            self.notes.append("the program's own profiler ran before: its host may have stayed slower since")
            self._prepare()
        self._foreign_steps += 1
        if self._plan is None:
            self._timing.begin()
            self._phase = self._time

    def _time(self) -> None:
        """Until steps are alike, and then what they take."""
        if self._count == 0:
            self._timing.begin()
            self._prepare()
            if self.options.wait == 0:
                self._make_plan()
        elif self._follower and self._plan_is_due():
            return
        elif self._wants_early and self._alone and self._early.due(self._count, self._timing):
            if self._early.begin(self._count, self._timing):
                self._phase = self._record_early
        elif self._timing.step(self._count, profiled=self._foreign_steps > 0) and not self._follower:
            self._make_plan()

    def _record_early(self) -> None:
        """A few steps at once; then the program is timed as if there had been none."""
        if not self._early.step(self._count):
            self._timing.resume()
            self._phase = self._time

    def _interrupt_pass(self, why: str) -> None:
        own_thread = threading.get_ident() == self._thread
        self._early.interrupt(why, own_thread=own_thread)
        self._recording.interrupt(why, own_thread=own_thread)

    # --- plan ------------------------------------------------------------------------------------------------

    @property
    def _plan(self) -> Plan | None:
        return self._recording.plan

    @property
    def _follower(self) -> bool:
        """Whether another rank decides in which steps to record; with a given schedule, nobody has to."""
        leader = min(self.options.ranks) if self.options.ranks else 0
        return not self._alone and self.rank != leader and self.options.wait is None

    @property
    def _alone(self) -> bool:
        return self._world_size <= 1 and not self._silent

    def _make_plan(self) -> None:
        self._timings.begin(self._timing.times(""))
        step_ns = self._timings.used.median_ns if self._timings.used else None
        plan = self._recording.plan = make_plan(
            self.options, at=self._count, step_ns=step_ns, ranks=self._world_size, device=has_cuda()
        )
        if self._world_size > 1 and self.options.wait is None:
            write_plan(self._folder.path, plan)
        self._save()
        self._begin_plan()

    def _plan_is_due(self) -> bool:
        """Looks for the leader's plan, seldom, and whether its first step has come."""
        now = time.perf_counter_ns()
        if self._plan is None and now - self._looked_ns > _LOOK_EVERY_NS:
            self._looked_ns = now
            self._recording.plan = read_plan(self._folder.path)
        if self._plan is None or not self._plan.passes or self._count < self._plan.passes[0].start:
            return False
        late = self._count - self._plan.passes[0].start
        if late:
            self.notes.append(f"saw the plan {late} steps late")
        self._timings.begin(self._timing.times("the first rank began to record"))
        self._save()
        self._begin_plan()
        return True

    def _begin_plan(self) -> None:
        assert self._plan is not None
        self._phase = self._record
        self._recording.until_ns = self._timing.began_ns + self.options.total_s * 1e9
        if not self._plan.passes:
            self._finish(COMPLETE, "")
            return
        self._phase()

    # --- passes ----------------------------------------------------------------------------------------------

    def _record(self) -> None:
        assert self._plan is not None
        self._recording.step(self._count)
        if self._recording.left:
            return
        if self.finished:
            self._phase = self._look
        elif self._world_size <= 1 or self._count >= self._plan.end:  # ranks end at the same step
            self._finish_all()

    # --- watch -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """All is recorded: does the program become faster?"""
        assert self._watch is not None
        now, times = time.perf_counter_ns(), self._timings.used
        if self._watch.over(now) or times is None:
            self._end_watch("")
        elif self._watch.step(now):
            self._looks += 1
            self._recording.add(timed_again(self.options, at=self._count, step_ns=times.median_ns))
            self._phase = self._record

    def _begin_watch(self) -> None:
        """A program may warm up for longer than a capture takes."""
        alone = self._world_size <= 1 and not self.options.stop_after_capture and self.options.wait is None
        times = self._timings.used
        if not self._watches or not alone or times is None or self._looks == _MOST_LOOKS:
            return
        now = time.perf_counter_ns()
        until_ns = min(now + _WATCH_S * 1e9, self._recording.until_ns)
        self._watch = Watch(low_ns=times.low_ns, began_ns=now, until_ns=until_ns)
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

    def _groups(self) -> list[dict[str, Any]] | None:
        """As they were when last there were any: a program may take them down before it ends."""
        self._described = process_groups.describe() or self._described
        return self._described

    def _facts_in_trace(self) -> str:
        times = self._timings.to_dict()["unprofiled"]
        return json.dumps({"rank": self.rank, "step_source": self.step_source, "unprofiled": times})

    def _why_partial(self, reason: str) -> str:
        if self._foreign_steps and not self._kept.passes:
            return (
                f"{reason}; its own profiler ran in {self._foreign_steps} of {self._count} steps, and there can be "
                "only one: read that recording with foretrace, or let the program run longer after it"
            )
        if self._plan is None and self._kept.passes:
            return (
                f"{reason} after {max(self._count, 0)} steps: what was recorded and timed are its first steps"
            )
        if self._timings.used is None and not self._kept.passes:
            return (
                f"{reason} after {max(self._count, 0)} steps, before anything was measured: let it run longer, "
                "or name a short schedule: --wait 2 --warmup 1 --active 3"
            )
        return reason

    def _finish_all(self) -> None:
        missing = self._recording.missing
        said = "" if self._silent else self._timings.judge_once(self._kept.light_ns)
        self.notes += [said] if said else []
        if missing and not self._silent:
            reason = "; ".join(self.notes) or f"{', '.join(sorted(missing))} not recorded"
            self._finish(PARTIAL, reason)
        else:
            self._finish(COMPLETE, "")
            self._begin_watch()

    def _finish(self, status: str, reason: str) -> None:
        self.finished, self.status, self.reason = True, status, reason
        self._timing.end()
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
        device_time = self._recording.device_time
        facts = {
            **self._process,
            "world_size": self._world_size,
            "groups": self._groups(),
            "clock": process_groups.clock(),
            "step_source": self.step_source,
            **self._timings.to_dict(),
            "device_time": device_time.to_dict() if device_time else None,
            "passes": self._kept.passes,
            "lines": self._lines.facts(over=self.finished and not self._closed),
            "out_of_memory": self._oom.facts if self._oom else None,
            "cost_s": round(
                self._cost_ns / 1e9 + self._recording.slowed_s, 3
            ),  # in here, and what steps took longer
            "peak_host_bytes": peak_host_bytes(),
            "steps_seen": max(self._count, 0),
            "notes": self.notes,
            "status": self.status,
            "reason": reason,
        }
        self._folder.write_rank(self.rank, facts)

    def _fail(self, error: Exception) -> None:
        if os.environ.get("FORETRACE_DEBUG"):
            import traceback

            traceback.print_exc()
        self._recording.abandon()
        if self.finished:  # all is recorded, and the program was only watched
            self.notes.append(f"not watched any longer: {type(error).__name__}: {error}")
            self._end_watch("")
            return
        self._finish(PARTIAL, f"recording failed, the program went on: {type(error).__name__}: {error}")

    def _stop_the_program(self) -> None:
        if (
            self.finished
            and self.options.stop_after_capture
            and (self.status == COMPLETE or self._kept.passes)
        ):
            if self._world_size > 1:
                # A thread of the process group still drops the last collective. If Python shuts down while that
                # thread waits for the GIL, torch aborts the process: it gets the GIL now.
                time.sleep(_LET_GO_S)
            raise SystemExit(0)
