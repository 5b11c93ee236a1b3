"""A Recording: a torch.profiler trace made by hand, event by event, in microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import foretrace

PROCESS = 100
MAIN_THREAD = 100


class Recording:
    """Events in the layout that Kineto writes; every method adds one, and `launch` both ends of a launch.

    Options beside `**args` are Any: mypy compares what `**{"Input Dims": ...}` holds with the type of each of them.
    """

    def __init__(self, **header: Any) -> None:
        self.header = {"schemaVersion": 1, "baseTimeNanoseconds": 0, **header}
        self.events: list[dict[str, Any]] = []
        self._correlation = 0
        self._device_end = 0.0

    def add(
        self, category: str, name: str, start: float, dur: float, pid: Any, tid: Any, **args: Any
    ) -> Self:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": dur}
        self.events.append({**event, "args": args} if args else event)
        return self

    def step(self, number: int, start: float, end: float, *, thread: int = MAIN_THREAD) -> Self:
        return self.add("user_annotation", f"ProfilerStep#{number}", start, end - start, PROCESS, thread)

    def annotation(self, name: str, start: float, end: float, *, thread: int = MAIN_THREAD) -> Self:
        return self.add("user_annotation", name, start, end - start, PROCESS, thread)

    def op(self, name: str, start: float, end: float, *, thread: Any = MAIN_THREAD, **args: Any) -> Self:
        return self.add("cpu_op", name, start, end - start, PROCESS, thread, **args)

    def python(self, name: str, start: float, end: float, *, thread: int = MAIN_THREAD) -> Self:
        return self.add("python_function", name, start, end - start, PROCESS, thread)

    def runtime(self, name: str, start: float, end: float, *, thread: Any = MAIN_THREAD, **args: Any) -> Self:
        return self.add("cuda_runtime", name, start, end - start, PROCESS, thread, **args)

    def device(
        self,
        category: str,
        name: str,
        start: float,
        end: float,
        *,
        device: Any = 0,
        stream: Any = 7,
        **args: Any,
    ) -> Self:
        args = {"device": device, "stream": stream, **args}
        self._device_end = max(self._device_end, end)
        return self.add(category, name, start, end - start, device, stream, **args)

    def kernel(self, name: str, start: float, end: float, **args: Any) -> Self:
        return self.device("kernel", name, start, end, **args)

    def copy(self, name: str, start: float, end: float, **args: Any) -> Self:
        return self.device("gpu_memcpy", name, start, end, **args)

    def memset(self, start: float, end: float, **args: Any) -> Self:
        return self.device("gpu_memset", "Memset (Device)", start, end, **args)

    def launch(
        self,
        at: float,
        name: str,
        start: float,
        end: float,
        *,
        category: Any = "kernel",
        call: Any = 0.5,
        thread: Any = MAIN_THREAD,
        **args: Any,
    ) -> Self:
        """A runtime call of `call` microseconds at `at`, and the device work that it started."""
        self._correlation += 1
        self.runtime("cudaLaunchKernel", at, at + call, thread=thread, correlation=self._correlation)
        return self.device(category, name, start, end, correlation=self._correlation, **args)

    def wait(self, at: float, *, name: str = "cudaStreamSynchronize", thread: int = MAIN_THREAD) -> float:
        """A call at `at` that waits for all device work so far, and when it returns.

        It returns a microsecond after the work ends. One that returns later waited for something else, and is not read
        as a wait; nor is one that finds the device idle.
        """
        assert at < self._device_end, "nothing to wait for: the device is idle by then"
        end = self._device_end + 1
        self.runtime(name, at, end, thread=thread)
        return end

    def item(self, at: float, *, copy: float = 2, thread: int = MAIN_THREAD) -> float:
        """`.item()` at `at`: a copy of one number to the host, the wait for it, and the operators around; its end."""
        start = max(at + 1, self._device_end)
        self._correlation += 1
        self.runtime("cudaMemcpyAsync", at + 1, at + 3, thread=thread, correlation=self._correlation)
        self.copy(
            "Memcpy DtoH (Device -> Pageable)",
            start + 3,
            start + 3 + copy,
            correlation=self._correlation,
            bytes=4,
        )
        end = self.wait(at + 4, thread=thread)
        for name in ("aten::item", "aten::_local_scalar_dense"):
            self.op(name, at, end + 1, thread=thread)
        return end + 1

    def to_bytes(self) -> bytes:
        return json.dumps({**self.header, "traceEvents": self.events}).encode()

    def write(self, folder: Path, name: str = "trace.json") -> Path:
        path = folder / name
        path.write_bytes(self.to_bytes())
        return path

    def open(self, folder: Path, name: str = "trace.json") -> foretrace.Trace:
        return foretrace.open(self.write(folder, name), cache=False)
