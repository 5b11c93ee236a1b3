"""Programs written by hand, so that the time they take can be worked out on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.predict.builder import QUEUE_CALLS
from foretrace.predict.program import (
    ALL_STREAMS,
    BLOCKING_COPY,
    LAUNCH,
    NONE,
    RECORD,
    SYNC,
    WAIT,
    Program,
)  # fmt: skip


@dataclass
class Draft:
    """Collects calls, in nanoseconds, and makes the Program of them."""

    queue_calls: int = QUEUE_CALLS
    calls: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # gap, base, kind, stream, wake
    tasks: list[list[tuple[int, int, int, int]]] = field(default_factory=list)  # stream, dur, latency, gap
    after: list[int] = field(
        default_factory=list
    )  # for each task, one of another stream that it waits for, or -1

    def call(self, gap: int, base: int, kind: int = NONE, stream: int = ALL_STREAMS, wake: int = 0) -> Draft:
        self.calls.append((gap, base, kind, stream, wake))
        self.tasks.append([])
        return self

    def launch(
        self, gap: int, base: int, *durations: int, stream: int = 0, latency: int = 0, apart: int = 0
    ) -> Draft:
        self.call(gap, base, LAUNCH)
        self.tasks[-1] = [(stream, dur, latency, apart) for dur in durations]
        return self

    def copy(self, gap: int, base: int, dur: int, *, wake: int = 0) -> Draft:
        self.call(gap, base, BLOCKING_COPY, wake=wake)
        self.tasks[-1] = [(0, dur, 0, 0)]
        return self

    def sync(self, gap: int, base: int, *, stream: int = ALL_STREAMS, wake: int = 0) -> Draft:
        return self.call(gap, base, SYNC, stream, wake)

    def record(self, stream: int) -> Draft:
        return self.call(0, 0, RECORD, stream)

    def wait(self, stream: int) -> Draft:
        return self.call(0, 0, WAIT, stream)

    def program(
        self, *, tail: int = 0, free: tuple[int, ...] = (0, 0), pending: tuple[int, ...] = ()
    ) -> Program:
        flat = [task for tasks in self.tasks for task in tasks]

        def column(rows: Sequence[tuple[int, ...]], index: int, dtype: type[np.generic]) -> NDArray[Any]:
            return np.array([row[index] for row in rows], dtype)

        bounds = np.cumsum([0, *map(len, self.tasks)])
        count = len(self.calls)
        starts = (
            np.cumsum([gap for gap, *_ in self.calls])
            + np.cumsum([0, *(base for _, base, *_ in self.calls)])[:-1]
        )
        return Program(
            start_ns=0, gap_ns=column(self.calls, 0, np.int64), gap_ops=np.zeros(count, np.int32), quiet_ns=np.zeros(count, np.int64),
            gap_frames=np.zeros(count, np.int32), base_ns=column(self.calls, 1, np.int64),
            in_driver=np.zeros(count, bool), kind=column(self.calls, 2, np.uint8), stream=column(self.calls, 3, np.int32),
            wake_ns=column(self.calls, 4, np.int64), call_span=np.arange(count, dtype=np.uint32),
            call_start_ns=starts, call_end_ns=starts + column(self.calls, 1, np.int64),
            step=np.zeros(count, np.int32), task_from=bounds.astype(np.int32),
            task_stream=column(flat, 0, np.int32), task_dur_ns=column(flat, 1, np.int64),
            task_latency_ns=column(flat, 2, np.int64), task_gap_ns=column(flat, 3, np.int64),
            task_after=np.array(self.after or [-1] * len(flat), np.int32),
            task_after_ns=np.zeros(len(flat), np.int64), task_span=np.arange(len(flat), dtype=np.uint32), tail_gap_ns=tail, queue_calls=self.queue_calls,
            stream_free_ns=np.array(free, np.int64), pending_ns=np.array(pending, np.int64),
            step_calls=np.zeros(1, np.int32), between_ns=np.zeros(1, np.int64),
            streams=tuple((0, number) for number in range(len(free))), measured_host_ns=0, measured_ns=0,
        )  # fmt: skip
