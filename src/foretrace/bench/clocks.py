"""Clocks: what times calls of a function, on the host or between two events of a GPU.

A clock takes samples: the time of one call, in milliseconds, as the mean over so many calls in a row. Samples of a GPU are queued
one after the other and read together, so that it does not wait for the host between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from foretrace.bench.timing import How
from foretrace.errors import UsageError
from foretrace.sourced import JUDGEMENT, Count, Factor, Nanoseconds

Function = Callable[[], object]

LEAST_HOST_NS = Nanoseconds(
    1_000_000,
    "a sample of the host's clock, at least, of calls in a row: beginning and ending one takes about a microsecond",
    "an add of 1,024 numbers on a CPU: 2.1 % above torch's Timer with samples of 50 µs",
)
LEAST_EVENTS_NS = Nanoseconds(
    10_000_000,
    "a sample between two events, at least, of calls in a row: where the host is the limit, beginning and ending one may count",
    "H200: samples of 2 ms of an add of 1,024 numbers were 2.0 to 3.4 % above torch's Timer on three machines",
)
TOGETHER = Count(16, "samples taken together, at most", JUDGEMENT)
QUEUED = Count(
    768,
    "flushed samples queued together: about 50 ms of them, as in do_bench",
    "H200: two events around an add of 1,024 numbers lie 3.4 to 4.0 µs apart while the queue is short, 4.1 to 4.7 once it is long",
)
FLUSHED = Factor(
    4, "the L2 cache in the buffer that is written to empty it: one of its size may leave a part", JUDGEMENT
)


class Clock(Protocol):
    """What the engine asks: samples of a function, the time, and how long a sample must be to be trusted."""

    says: str  # one line for people
    least_sample_ms: float  # 0 where a sample is always one call
    most_together: int  # samples between two waits for the device

    def samples(self, function: Function, *, calls: int, count: int) -> list[float]:
        """Milliseconds of one call, `count` times, each as the mean of `calls`."""

    def now_s(self) -> float:
        """Seconds since some moment."""

    def settle(self) -> None:
        """Waits until everything that was started is done."""


class HostClock:
    """time.perf_counter_ns around the calls."""

    def __init__(self, *, single: bool = False, settle: Callable[[], None] | None = None) -> None:
        self.says = "host clock, one call at a time" if single else "host clock, calls in a row"
        self.least_sample_ms = 0.0 if single else LEAST_HOST_NS / 1e6
        self.most_together = int(TOGETHER)
        self._settle = settle

    def samples(self, function: Function, *, calls: int, count: int) -> list[float]:
        """Each from the first call until all work of the last is done."""
        now, settle = time.perf_counter_ns, self._settle
        taken = []
        for _ in range(count):
            if settle:
                settle()
            began = now()
            for _ in range(calls):
                function()
            if settle:
                settle()
            taken.append((now() - began) / calls / 1e6)
        return taken

    def now_s(self) -> float:
        """Of the host."""
        return time.perf_counter()

    def settle(self) -> None:
        """Nothing runs on after a call on the CPU; on a GPU its queue does."""
        if self._settle:
            self._settle()


class EventClock:
    """Two CUDA events around the calls; with `flush`, one call each, after writing a buffer that fills L2."""

    def __init__(self, device: Any, *, flush: bool = False) -> None:
        import torch

        self._cuda = torch.cuda
        self._device = device
        self.least_sample_ms = 0.0 if flush else LEAST_EVENTS_NS / 1e6
        self.most_together = int(QUEUED if flush else TOGETHER)
        self.says = "CUDA events, calls in a row"
        self._buffer = None
        # Made once: making one takes time, which would be in a sample.
        self._events: list[tuple[Any, Any]] = []
        if flush:
            size = int(FLUSHED * l2_bytes(device))
            self._buffer = torch.empty(size // 4, dtype=torch.int32, device=device)
            self.says = f"CUDA events, one call each after {size / 2**20:.0f} MiB were written to empty L2"

    def samples(self, function: Function, *, calls: int, count: int) -> list[float]:
        """Queued together and read at the end."""
        pairs = self._pairs(count)
        for start, end in pairs:
            if self._buffer is not None:
                self._buffer.zero_()
            start.record()
            for _ in range(calls):
                function()
            end.record()
        self.settle()
        return [start.elapsed_time(end) / calls for start, end in pairs]

    def _pairs(self, count: int) -> list[tuple[Any, Any]]:
        """So many pairs of events. An event is made by the driver when it is first recorded."""
        while len(self._events) < count:
            pair = (self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True))
            for event in pair:
                event.record()
            self._events.append(pair)
        return self._events[:count]

    def now_s(self) -> float:
        """Of the host."""
        return time.perf_counter()

    def settle(self) -> None:
        """Waits for the device."""
        self._cuda.synchronize(self._device)


def clock_for(device: Any, how: How) -> Clock:
    """The clock of a torch.device for this way of timing."""
    if device.type == "cpu":
        return HostClock(single=how != "back-to-back")
    if how == "single":
        import torch

        return HostClock(single=True, settle=lambda: torch.cuda.synchronize(device))
    return EventClock(device, flush=how == "flush")


def l2_bytes(device: Any) -> int:
    """The size of a GPU's L2 cache, as its driver reports it."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    size = getattr(properties, "L2_cache_size", None)
    if not size:
        raise UsageError("this torch does not tell the size of the L2 cache: time without flushing it")
    return int(size)
