"""Out of memory: a snapshot of CUDA's allocator at the moment at which an allocation fails, whenever that is.

torch calls an observer before it raises. It cannot be taken away again, so there is one for the process, which asks those
who watch. It must not raise: that would take the place of the program's own error.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Any

from foretrace.capture import environment
from foretrace.capture.hidden_files import hidden_file
from foretrace.capture.options import CaptureOptions
from foretrace.capture.run_folder import RANK_FILE, RunFolder

FILE = "oom.pickle"
# A program that is out of memory wants to end: what is written then is small, and written soon, or not at all.
_MOST_BYTES = 256 << 20
_MOST_S = 20.0
_MOST_ENTRIES = 200_000  # of the history, for each device: the last ones
_MOST_FRAMES = 64

_watching: list[OutOfMemory] = []
_attached = False


class OutOfMemory:
    """Of one Run: writes at the first failed allocation, and counts the others."""

    def __init__(self, options: CaptureOptions, folder: RunFolder) -> None:
        self._options, self._folder = options, folder
        self._facts: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._step: Callable[[], int | None] = lambda: None
        self._save: Callable[[], None] = self.save_alone

    def install(self) -> None:
        """Watches from now on, or from when the program first uses CUDA."""
        global _attached
        import torch

        _watching.append(self)
        if not _attached:
            _attached = True
            # Attaching would start CUDA, and a process that has done so can no longer fork.
            torch.cuda._lazy_call(_attach)

    def close(self) -> None:
        """Nothing is written any more."""
        if self in _watching:
            _watching.remove(self)

    def join(self, *, step: Callable[[], int | None], save: Callable[[], None]) -> None:
        """A rank is being recorded: which step it is in, and how what was seen is written down with the rest."""
        self._step, self._save, self._pid = step, save, os.getpid()

    @property
    def facts(self) -> dict[str, Any] | None:
        """What rank.json says of it; None where no allocation failed."""
        return self._facts

    def seen(
        self, device: int, asked_bytes: int, limit_bytes: int, free_bytes: int, frame: FrameType | None
    ) -> None:
        """An allocation failed."""
        rank, _ = environment.rank_of_process()
        if not self._options.wants_rank(rank):
            return
        with self._lock:  # threads may fail together
            if self._facts is not None:
                self._facts["count"] += 1
                return
            facts = self._facts = {
                "file": None,
                "why_no_file": None,
                "at_ns": time.time_ns(),
                "step": self._step(),
                "device": device,
                "asked_bytes": asked_bytes,
                "limit_bytes": limit_bytes,
                "driver_free_bytes": free_bytes,
                "history": False,
                "stack": _stack(frame),
                "count": 1,
            }
        path = self._folder.rank_folder(rank) / FILE
        try:
            if path.exists():
                raise FileExistsError("another process of this rank wrote one before")
            facts["history"] = write_snapshot(path)
            facts["file"] = path.name
        except Exception as error:
            facts["why_no_file"] = f"{type(error).__name__}: {error}"
        # A copy of the recorded process knows nothing of what was recorded since.
        (self._save if self._pid == os.getpid() else self.save_alone)()

    def save_alone(self) -> None:
        """Where no step was found: a rank.json that says only this, unless another process of the rank wrote one."""
        rank, world_size = environment.rank_of_process()
        folder = self._folder.rank_folder(rank)
        if self._facts is not None and not (folder / ".claim").exists() and not (folder / RANK_FILE).exists():
            facts = {
                "world_size": world_size,
                "passes": [],
                "out_of_memory": self._facts,
                "status": "partial",
                "reason": "CUDA ran out of memory before a step was found",
            }
            self._folder.write_rank(rank, facts)


def write_snapshot(path: Path) -> bool:
    """Writes what the allocator holds, whole or not at all; whether the last part of its history is there too."""
    import torch

    snapshot = torch.cuda.memory._snapshot()
    until_s = time.monotonic() + _MOST_S
    try:
        _write(path, _shortened(snapshot, _MOST_ENTRIES), until_s)
    except _TooMuchError:
        _write(path, _shortened(snapshot, 0), until_s + _MOST_S)
        return False
    # While stacks alone are kept, torch keeps one entry all the same.
    return any(len(trace) > 1 for trace in snapshot.get("device_traces") or ())


def _shortened(snapshot: Mapping[str, Any], entries: int) -> dict[str, Any]:
    """With the last so many entries of each history."""

    def last(trace: list[Any]) -> list[Any]:
        return trace[-entries:] if entries else []

    traces = {
        name: [last(trace) for trace in snapshot[name]]
        for name in ("device_traces", "host_traces")
        if name in snapshot
    }
    notes = {name: last(snapshot[name]) for name in ("external_annotations",) if name in snapshot}
    return {**snapshot, **traces, **notes}


def _write(path: Path, snapshot: Mapping[str, Any], until_s: float) -> None:
    with hidden_file(path) as hidden:
        with hidden.path.open("wb") as file:
            pickle.dump(snapshot, _Limited(file, until_s))
        hidden.publish()


class _TooMuchError(Exception):
    """More than an end out of memory may write."""


class _Limited:
    """A file that takes so many bytes, for so long."""

    def __init__(self, file: IO[bytes], until_s: float) -> None:
        self._file, self._until_s, self._bytes = file, until_s, 0

    def write(self, data: bytes) -> int:
        self._bytes += len(data)
        if self._bytes > _MOST_BYTES:
            raise _TooMuchError(f"the snapshot is larger than {_MOST_BYTES >> 20} MiB")
        if time.monotonic() > self._until_s:
            raise _TooMuchError(f"writing the snapshot took longer than {_MOST_S:g} s")
        return self._file.write(data)


def _attach() -> None:
    import torch

    try:
        torch._C._cuda_attach_out_of_memory_observer(_observe)
    except Exception as error:  # an allocator of the program's own, which has no observers
        sys.stderr.write(f"foretrace: no snapshot will be written where memory runs out: {error}\n")


def _observe(device: int, asked_bytes: int, limit_bytes: int, free_bytes: int) -> None:
    """What torch calls; `limit_bytes` is what this process may have of the device at most."""
    frame = sys._getframe().f_back  # of the program
    for watch in tuple(_watching):
        try:
            watch.seen(device, asked_bytes, limit_bytes, free_bytes, frame)
        except Exception as error:
            sys.stderr.write(f"foretrace: the failed allocation was not written down: {error!r}\n")


def _stack(frame: FrameType | None) -> list[dict[str, Any]]:
    """The calls that asked for the memory, the innermost first; none in threads of autograd."""
    calls: list[dict[str, Any]] = []
    while frame is not None and len(calls) < _MOST_FRAMES:
        code = frame.f_code
        calls.append({"file": code.co_filename, "line": frame.f_lineno, "function": code.co_name})
        frame = frame.f_back
    return calls
