"""A made-up CUDA allocator in the place of torch's, for machines without a GPU: it keeps what was asked of it, in order."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

from foretrace.capture.options import CaptureOptions
from foretrace.capture.run_folder import RunFolder

MIB = 2**20


class MadeUpCuda:
    """One device of 1 GiB. `put` is setattr, or a monkeypatch's: where torch's functions are replaced."""

    def __init__(self, put: Callable[[Any, str, Any], object] = setattr, *, recording: bool = False) -> None:
        import torch

        self.calls: list[str] = []
        self.settings: dict[str, Any] = {}
        self.recording, self.peak, self.allocations = recording, 700 * MIB, 0
        self.trace: list[dict[str, Any]] = []
        self.observers: list[Callable[[int, int, int, int], None]] = []
        memory = torch.cuda.memory
        for name, made_up in {
            "_record_memory_history": self._record,
            "_dump_snapshot": self._dump,
            "_snapshot": self._snapshot,
        }.items():
            put(memory, name, made_up)
        for name, made_up in {
            "is_initialized": lambda: True,
            "current_device": lambda: 0,
            "device_count": lambda: 1,
            "synchronize": lambda _=None: None,
            "is_current_stream_capturing": lambda: False,
            "memory_reserved": lambda _=None: 800 * MIB,
            "memory_stats": self._stats,
            "mem_get_info": lambda _=None: (200 * MIB, 1024 * MIB),
            "reset_peak_memory_stats": self._reset,
            "_lazy_call": lambda call: call(),
        }.items():
            put(torch.cuda, name, made_up)
        put(torch._C, "_cuda_isHistoryEnabled", lambda: self.recording)
        put(torch._C, "_cuda_attach_out_of_memory_observer", self.observers.append)

    def allocate(self, count: int = 1) -> None:
        """So many blocks of 1 MiB, the last one kept."""
        self.allocations += count
        self.peak = max(self.peak, 500 * MIB)
        if self.recording:
            self.trace.append({"action": "alloc", "addr": self.allocations, "size": MIB})

    def fail(self, asked_bytes: int = 900 * MIB) -> None:
        """An allocation that does not fit: observers are called, then torch raises."""
        import torch

        for observer in self.observers:
            observer(0, asked_bytes, 1024 * MIB, 200 * MIB)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 900.00 MiB")

    def _record(self, enabled: str | None = "all", **settings: Any) -> None:
        self.calls.append(f"history {enabled}")
        self.recording, self.settings = enabled is not None, settings or self.settings
        self.trace = self.trace if self.recording else []

    def _dump(self, filename: str) -> None:
        self.calls.append(f"dump of {len(self.trace)} events")
        with open(filename, "wb") as file:
            pickle.dump(self._snapshot(), file)

    def _snapshot(self) -> dict[str, Any]:
        return {"segments": [{"device": 0, "total_size": 800 * MIB}], "device_traces": [list(self.trace)]}

    def _stats(self, _: int = 0) -> dict[str, int]:
        return {
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.peak": 800 * MIB,
            "allocation.all.allocated": self.allocations,
        }

    def _reset(self, _: int = 0) -> None:
        self.calls.append("peaks reset")
        self.peak = 0


def recorder_of(folder: RunFolder, *, oom: Any = None, **more: Any) -> Any:
    """A Recorder whose memory pass, its only one, is of steps 3 to 6."""
    from foretrace.capture.recorder import Recorder

    chosen = {"wait": 2, "warmup": 0, "active": 4, "passes": (), "memory": True, **more}
    return Recorder(CaptureOptions(str(folder.path), **chosen), folder, 0, world_size=1, oom=oom)


def take_steps(recorder: Any, step: Callable[[], None], steps: int = 12) -> None:
    """A program of so many steps."""
    for _ in range(steps):
        step()
        recorder.step()


def facts_of(folder: RunFolder) -> dict[str, Any]:
    """What rank.json says."""
    facts: dict[str, Any] = json.loads((folder.path / "rank0" / "rank.json").read_text())
    return facts
