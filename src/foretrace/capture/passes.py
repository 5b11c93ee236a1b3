"""The Pass: a few steps under a profiler, from its warm-up to the file it leaves."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any

from foretrace.capture import callers, external
from foretrace.capture.core_use import CoreUse
from foretrace.capture.device_pass import DeviceTime, device_time
from foretrace.capture.hidden_files import hidden_file
from foretrace.capture.labels import ModuleLabels
from foretrace.capture.options import DEVICE, LIGHT, CaptureOptions, Switches
from foretrace.capture.plan import PlannedPass
from foretrace.whole_files import check_end

ours = threading.local()  # `ours.profiler` is set while the profiler that is started or stopped is ours


def open_pass(
    planned: PlannedPass,
    options: CaptureOptions,
    path: Path,
    count: int,
    facts: str,
    *,
    switches: Switches | None = None,
    lead: bool = True,
) -> Pass:
    """The pass that was planned, its warm-up begun; with other switches than the options' where they are given."""
    if planned.kind == DEVICE:
        return DevicePass(planned, options.switches(DEVICE), path, count, facts)
    labels = ModuleLabels() if options.labels and planned.kind != LIGHT else None
    if planned.kind in external.TOOLS:
        return ExternalPass(planned, path, labels)
    chosen = switches or options.switches(planned.kind)
    return ProfilerPass(planned, chosen, path, count, facts, labels, lead=lead)


class Pass(ABC):
    """What all passes share: when they open, and what they cost."""

    def __init__(self, planned: PlannedPass, path: Path, labels: ModuleLabels | None = None) -> None:
        self.planned, self.path = planned, path
        self._labels = labels
        self.recording = False
        self.steps_recorded = 0
        self._began_ns = time.perf_counter_ns()
        self._opened_ns = self._closed_ns = self._began_ns
        self._lead = 0  # the last steps of the warm-up that are recorded too, but not marked as steps
        self._start_s = self._write_s = 0.0
        self._begun_at = -1
        self._first_step = 0
        self._steps_open = 0  # steps between its opening and its end, the lead included
        self.device_time: DeviceTime | None = None
        self._core_use = CoreUse()
        self._cores: dict[str, Any] | None = None
        self.note: str | None = None  # what its file does not hold

    def warmed(self, count: int) -> bool:
        """Whether the warm-up is over; a pass that began late warms up all the same."""
        if self._begun_at < 0:
            self._begun_at = count
        return count - self._begun_at >= self.planned.warm - self._lead

    @property
    def recorded_s(self) -> float:
        """How long it has been recording."""
        return (time.perf_counter_ns() - self._opened_ns) / 1e9

    def open(self, count: int) -> None:
        """Recording begins, with the device idle: what earlier steps launched is not of this pass."""
        if self._labels is not None:
            self._labels.start()
        synchronize()
        self._first_step = count + self._lead + 1
        self._steps_open = self._lead
        self._core_use.begin()
        self._open(count)
        self.recording = True
        self._opened_ns = time.perf_counter_ns()

    def step(self, count: int) -> bool:
        """A step was recorded; whether it was the last one."""
        if self._lead:
            self._lead -= 1
            self._begin_steps(count)
            return False
        self.steps_recorded += 1
        self._steps_open += 1
        if self.steps_recorded >= self.planned.active:
            return True
        self._step(count)
        return False

    def close(self) -> bool:
        """Ends recording and writes the file; whether one stays."""
        synchronize()  # so that its length is the device's too
        self._closed_ns = time.perf_counter_ns()
        self._cores = self._core_use.facts()
        self._unlabel()
        return self._close()

    @property
    def step_ns(self) -> float:
        """How long a step took in the pass that was closed."""
        return (self._closed_ns - self._opened_ns) / max(self._steps_open, 1)

    def abandon(self) -> None:
        """Ends it without a file."""
        self._unlabel()
        self._abandon()

    def _unlabel(self) -> None:
        if self._labels is not None:
            self._labels.stop()

    def facts(self) -> dict[str, Any]:
        """What a closed pass took."""
        return {
            "kind": self.planned.kind,
            "file": self.path.name,
            "steps": self.steps_recorded,
            "first_step": self._first_step,
            "switches": self._switches(),
            "start_s": round(self._start_s, 4),
            "warmup_s": round((self._opened_ns - self._began_ns) / 1e9, 4),
            "warmup_steps": self._first_step - self._begun_at - 1,
            "step_ns": round(self.step_ns),
            "record_s": round((self._closed_ns - self._opened_ns) / 1e9, 4),
            "write_s": round(self._write_s, 4),
            "file_bytes": self.path.stat().st_size if self.path.exists() else 0,
            "peak_host_bytes": peak_host_bytes(),
            "cores": self._cores,
        }

    def _switches(self) -> dict[str, Any]:
        return {}

    @abstractmethod
    def _open(self, count: int) -> None: ...

    def _step(self, count: int) -> None:  # noqa: B027  most passes have nothing to do there
        """At a boundary within the pass."""

    def _begin_steps(self, count: int) -> None:  # noqa: B027
        """After the lead: from here on steps are marked."""

    @abstractmethod
    def _close(self) -> bool: ...

    @abstractmethod
    def _abandon(self) -> None: ...


class ProfilerPass(Pass):
    """Steps under torch.profiler."""

    def __init__(
        self,
        planned: PlannedPass,
        switches: Switches,
        path: Path,
        count: int,
        facts: str,
        labels: ModuleLabels | None = None,
        *,
        lead: bool = True,
    ) -> None:
        super().__init__(planned, path, labels)
        import torch

        self._chosen = switches
        actions = torch.profiler.ProfilerAction
        self._record = actions.RECORD
        self._action = actions.WARMUP if planned.warm else actions.RECORD
        if not planned.warm:
            synchronize()
        self._facts_text = facts
        quiet = {"acc_events": True} if "acc_events" in signature(torch.profiler.profile).parameters else {}
        self._profiler: Any = torch.profiler.profile(
            activities=_activities(switches),
            schedule=lambda _: self._action,
            record_shapes=switches.record_shapes,
            profile_memory=switches.profile_memory,
            with_stack=switches.with_stack,
            with_flops=switches.with_flops,
            with_modules=switches.with_modules,
            **quiet,
        )
        # A recording's first step pays for its beginning: it is in the file, but not among the steps.
        self._lead = 1 if lead and planned.warm > 1 else 0
        self._profiler.record_steps = not self._lead
        self._profiler.step_num = count  # so that the recording names steps as the program counts them
        with _Ours(), _quiet_kineto():
            self._profiler.start()
        # Wanted only so that torch does not warn of its absence; it would work through all events at the end.
        self._profiler.acc_events = self._profiler.profiler.acc_events = False
        began, self._began_ns = self._began_ns, time.perf_counter_ns()
        self._start_s = (self._began_ns - began) / 1e9

    def _open(self, count: int) -> None:
        if self._action != self._record:
            self._action = self._record
            with _unknown_block_told(self._chosen.profile_memory):
                self._step(count)
        self._profiler.add_metadata_json("foretrace", self._facts_text)

    def _begin_steps(self, count: int) -> None:
        self._profiler.record_steps = True
        self._step(count)

    def _step(self, count: int) -> None:
        self._profiler.step_num = count
        with _Ours():
            self._profiler.step()

    def _close(self) -> bool:
        began = time.perf_counter_ns()
        with hidden_file(self.path) as file:
            self._export(file.path)
            file.publish()
        self._write_s = (time.perf_counter_ns() - began) / 1e9
        return True

    def _export(self, path: Path) -> None:
        with _Ours():
            self._profiler.stop()
        profiler, self._profiler = self._profiler, None
        profiler.export_chrome_trace(str(path))
        check_end(path, b"}")  # where a disk is full, Kineto says nothing
        if self._chosen.with_stack:
            self.note = callers.add_to(path, profiler)

    def _abandon(self) -> None:
        with _Ours():
            self._profiler.stop()
        self._profiler = None

    def _switches(self) -> dict[str, Any]:
        return asdict(self._chosen)


class DevicePass(ProfilerPass):
    """Steps under a torch.profiler that records the device alone: how long it works in a step. No file stays."""

    def _close(self) -> bool:
        with hidden_file(self.path) as file:
            self._export(file.path)
            self.device_time = device_time(file.path, self._steps_open)
        return False


class ExternalPass(Pass):
    """The range that nsys or ncu waits for; they write the file."""

    def __init__(self, planned: PlannedPass, path: Path, labels: ModuleLabels | None = None) -> None:
        super().__init__(planned, path, labels)
        self._range = external.NvtxRange(planned.kind)

    def _open(self, count: int) -> None:
        self._range.open()

    def _close(self) -> bool:
        self._range.close()
        return True

    def _abandon(self) -> None:
        self._range.close()


class _Ours:
    """Marks that the profiler started or stopped within is Foretrace's, not the program's."""

    def __enter__(self) -> None:
        ours.profiler = True

    def __exit__(self, *_: object) -> None:
        ours.profiler = False


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Kineto reads how much to print on the program's stderr when it is first used."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    if before is None:
        os.environ["KINETO_LOG_LEVEL"] = "6"
    try:
        yield
    finally:
        if before is None:
            del os.environ["KINETO_LOG_LEVEL"]


@contextmanager
def _unknown_block_told(recording_memory: bool) -> Iterator[None]:
    """Torch warns on stderr of the first freed block that is older than the recording: here it is one of ours."""
    if not recording_memory:
        yield
        return
    import torch

    block = torch.empty(1)
    yield
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            del block
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        captured.seek(0)
        for line in captured:  # what another thread wrote in that moment
            if b"Memory block of unknown size" not in line:
                os.write(2, line)


def synchronize() -> None:
    """Waits until every device that this process uses is idle; starts no device by itself."""
    import torch

    if not torch.cuda.is_initialized():
        return
    used = {torch.cuda.current_device()}
    used.update(each for each in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(each))
    for device in used:
        torch.cuda.synchronize(device)


def peak_host_bytes() -> int | None:
    """The most memory this process ever had."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _activities(switches: Switches) -> list[Any]:
    import torch

    possible = torch.profiler.supported_activities()
    activity = torch.profiler.ProfilerActivity
    chosen = [activity.CPU] if switches.cpu else []
    if switches.cuda:
        chosen += [each for each in possible if each != activity.CPU]
    return [each for each in chosen if each in possible] or [activity.CPU]
