"""The MemoryPass: the history of CUDA's allocator over whole steps, as torch's snapshot, and what its counters say of them.

Times are of the Unix clock, in nanoseconds. So are a snapshot's: torch reads the processor's counter at each event, and
converts it with pairs of that counter and CLOCK_REALTIME (c10/util/ApproximateClock.h), so steps and events can be joined.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretrace.capture.hidden_files import hidden_file
from foretrace.capture.passes import Pass
from foretrace.capture.plan import PlannedPass

# Stacks of Python alone, and of allocations alone: about 2 us each, by torch's documentation. C++ frames would have to be
# looked up by address, all of them, when the snapshot is written.
_MOST_ENTRIES = 1_000_000  # torch forgets the oldest beyond these
WHOLE = {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": _MOST_ENTRIES}
STACKS = {
    "enabled": "state",
    "context": "state",
    "stacks": "python",
}  # of blocks that are held, and no events
_LEAST_STEPS = 4  # growth over three steps needs the ends of four
_ENOUGH_ENTRIES = (
    250_000  # with so many, and the least steps, the pass ends; viewers fail at 600,000 (pytorch#158364)
)
_ENTRIES_PER_BLOCK = 3  # alloc, free_requested, free_completed


class MemoryPass(Pass):
    """Steps with the allocator's history switched on; off afterwards, unless it is the program's own by then."""

    def __init__(self, planned: PlannedPass, path: Path, notes: list[str]) -> None:
        super().__init__(planned, path)
        self._history, self._notes = History(WHOLE), notes
        self._boundaries_ns: list[int] = []
        self._before: dict[int, dict[str, int]] = {}
        self._first: dict[int, int] = {}  # allocations of each device before the pass
        self._devices: list[dict[str, Any]] = []

    def _open(self, count: int) -> None:
        import torch

        for device in used_devices():
            self._before[device] = torch.cuda.memory_stats(device)
            self._first[device] = _allocations(device)
            torch.cuda.reset_peak_memory_stats(device)
        self._history.begin()
        self._boundaries_ns = [time.time_ns()]

    def step(self, count: int) -> bool:
        self._boundaries_ns.append(time.time_ns())
        over = super().step(count)
        return over or self._full()

    def _full(self) -> bool:
        """Whether another step might be one too many: for the file, or for torch, which would forget the first ones."""
        allocations = max(
            (_allocations(device) - self._first.get(device, 0) for device in used_devices()), default=0
        )
        after_next = (
            _ENTRIES_PER_BLOCK * allocations * (self.steps_recorded + 1) / max(self.steps_recorded, 1)
        )
        return after_next > (_MOST_ENTRIES if self.steps_recorded < _LEAST_STEPS else _ENOUGH_ENTRIES)

    def _close(self) -> bool:
        import torch

        began = time.perf_counter_ns()
        try:
            self._devices = [self._described(device) for device in used_devices()]
            if not history_is_on():
                self._notes.append(
                    "memory pass lost: the program switched the allocator's history off meanwhile"
                )
                return False
            with hidden_file(self.path) as file:
                torch.cuda.memory._dump_snapshot(str(file.path))
                file.publish()
        finally:
            self._history.end()
        self._write_s = (time.perf_counter_ns() - began) / 1e9
        return True

    def _abandon(self) -> None:
        self._history.end()

    def _described(self, device: int) -> dict[str, Any]:
        import torch

        after = torch.cuda.memory_stats(device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        return {
            "device": device,
            "peak_allocated_bytes": after.get("allocated_bytes.all.peak"),
            "peak_reserved_bytes": after.get("reserved_bytes.all.peak"),
            "driver_free_bytes": free_bytes,
            "driver_total_bytes": total_bytes,
            "before": dict(self._before.get(device, {})),
            "after": dict(after),
        }

    def facts(self) -> dict[str, Any]:
        """With when each step began and ended, and with the counters of each device in use."""
        ends = zip(self._boundaries_ns, self._boundaries_ns[1:], strict=False)
        steps = [
            {"step": self._first_step + number, "began_ns": began, "ended_ns": ended}
            for number, (began, ended) in enumerate(ends)
        ]
        return {**super().facts(), "step_times": steps[: self.steps_recorded], "devices": self._devices}

    def _switches(self) -> dict[str, Any]:
        return dict(WHOLE)


class History:
    """torch's recording of the allocator, between `begin` and `end`; left alone once the program switches it itself."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._record: Any = None  # torch's function, while ours stands in its place

    def begin(self) -> None:
        """From now on events are kept."""
        import torch

        self._record = torch.cuda.memory._record_memory_history
        self._record(**self._settings)
        self._pid = os.getpid()
        torch.cuda.memory._record_memory_history = self._program_calls

    def end(self) -> None:
        """Off, and forgotten; a second call does nothing, nor does one in a copy of the process, which has no CUDA."""
        record = self._give_back()
        if record is not None and self._pid == os.getpid():
            record(enabled=None)

    def _program_calls(self, *args: Any, **more: Any) -> Any:
        record = self._give_back()
        if record is None:  # who kept the function that stood there meanwhile
            import torch

            return torch.cuda.memory._record_memory_history(*args, **more)
        return record(*args, **more)

    def _give_back(self) -> Any:
        import torch

        record, self._record = self._record, None
        if record is not None and torch.cuda.memory._record_memory_history == self._program_calls:
            torch.cuda.memory._record_memory_history = record
        return record


class SetUpStacks:
    """Stacks for what a program allocates before its first step ends: parameters, states of optimizers, caches.

    A block keeps the stack that it was allocated with, also when the history is off again: then nothing slows the steps that
    are timed, and the snapshot of the memory pass still knows where these come from.
    """

    def __init__(self) -> None:
        self._history, self._ended = History(STACKS), False

    def install(self) -> None:
        """From when the program first uses CUDA, which this does not start by itself."""
        import torch

        torch.cuda._lazy_call(self._begin)

    def end(self) -> None:
        """A step ends, or the process does."""
        self._ended = True
        self._history.end()

    def _begin(self) -> None:
        if self._ended:
            return
        try:
            if not _enabled():
                self._history.begin()
        except Exception as error:  # an allocator of the program's own, which keeps no history
            sys.stderr.write(f"foretrace: no stacks for what is allocated before the first step: {error}\n")


def history_is_on() -> bool:
    """Whether torch keeps the allocator's history; asks the driver nothing where CUDA is not in use."""
    import torch

    return bool(torch.cuda.is_initialized()) and _enabled()


def _enabled() -> bool:
    import torch

    asked = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return asked is not None and bool(asked())


def used_devices() -> list[int]:
    """The devices whose memory this process holds some of."""
    import torch

    if not torch.cuda.is_initialized():
        return []
    return [device for device in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(device)]


def _allocations(device: int) -> int:
    """How many there were so far."""
    import torch

    return int(torch.cuda.memory_stats(device).get("allocation.all.allocated", 0))
