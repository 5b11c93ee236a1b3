"""A Recording: a torch.profiler trace made by hand, event by event, in microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import foretrace

PROCESS = 100
MAIN_THREAD = 100


class Recording:
    """Events in the layout that Kineto writes; every method adds one, and `launch` both ends of a launch."""

    def __init__(self, **header: Any) -> None:
        self.header = {"schemaVersion": 1, "baseTimeNanoseconds": 0, **header}
        self.events: list[dict[str, Any]] = []
        self._correlation = 0

    def add(
        self, category: str, name: str, start: float, dur: float, pid: Any, tid: Any, **args: Any
    ) -> Recording:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": dur}
        self.events.append({**event, "args": args} if args else event)
        return self

    def step(self, number: int, start: float, end: float, *, thread: int = MAIN_THREAD) -> Recording:
        return self.add("user_annotation", f"ProfilerStep#{number}", start, end - start, PROCESS, thread)

    def annotation(self, name: str, start: float, end: float, *, thread: int = MAIN_THREAD) -> Recording:
        return self.add("user_annotation", name, start, end - start, PROCESS, thread)

    def op(self, name: str, start: float, end: float, *, thread: int = MAIN_THREAD, **args: Any) -> Recording:
        return self.add("cpu_op", name, start, end - start, PROCESS, thread, **args)

    def python(self, name: str, start: float, end: float, *, thread: int = MAIN_THREAD) -> Recording:
        return self.add("python_function", name, start, end - start, PROCESS, thread)

    def runtime(
        self, name: str, start: float, end: float, *, thread: int = MAIN_THREAD, **args: Any
    ) -> Recording:
        return self.add("cuda_runtime", name, start, end - start, PROCESS, thread, **args)

    def device(
        self,
        category: str,
        name: str,
        start: float,
        end: float,
        *,
        device: int = 0,
        stream: int = 7,
        **args: Any,
    ) -> Recording:
        args = {"device": device, "stream": stream, **args}
        return self.add(category, name, start, end - start, device, stream, **args)

    def kernel(self, name: str, start: float, end: float, **args: Any) -> Recording:
        return self.device("kernel", name, start, end, **args)

    def copy(self, name: str, start: float, end: float, **args: Any) -> Recording:
        return self.device("gpu_memcpy", name, start, end, **args)

    def memset(self, start: float, end: float, **args: Any) -> Recording:
        return self.device("gpu_memset", "Memset (Device)", start, end, **args)

    def launch(
        self,
        at: float,
        name: str,
        start: float,
        end: float,
        *,
        category: str = "kernel",
        call: float = 0.5,
        thread: int = MAIN_THREAD,
        **args: Any,
    ) -> Recording:
        """A runtime call of `call` microseconds at `at`, and the device work that it started."""
        self._correlation += 1
        self.runtime("cudaLaunchKernel", at, at + call, thread=thread, correlation=self._correlation)
        return self.device(category, name, start, end, correlation=self._correlation, **args)

    def to_bytes(self) -> bytes:
        return json.dumps({**self.header, "traceEvents": self.events}).encode()

    def write(self, folder: Path, name: str = "trace.json") -> Path:
        path = folder / name
        path.write_bytes(self.to_bytes())
        return path

    def open(self, folder: Path, name: str = "trace.json") -> foretrace.Trace:
        return foretrace.open(self.write(folder, name), cache=False)
