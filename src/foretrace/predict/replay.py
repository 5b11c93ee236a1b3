"""Replay: a Program runs again, call by call, and takes the time that its calls and tasks then take.

call:    wait for a place in the launch queue, then start tasks
task:    starts when its launch has arrived, its stream is free, and what it waits for has ended
sync:    returns when the stream, or the device, has finished and the thread has woken up
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.predict.program import ALL_STREAMS, BLOCKING_COPY, LAUNCH, RECORD, SYNC, WAIT, Program

Times = NDArray[np.int64]


try:
    from foretrace._scan import replay as _native
except ImportError:  # not built; `doctor` says so, and the loop below does the same more slowly
    _native = None


@dataclass(frozen=True)
class Replay:
    """When everything happened, in nanoseconds since the program's start."""

    call_end_ns: Times  # of the last tile
    task_start_ns: Times
    task_end_ns: Times
    step_host_ns: Times  # when the host reached the end of each step of each tile
    step_device_ns: Times  # when all that had been launched by then was done
    host_ns: int  # when the host has finished
    device_ns: int  # when the device has

    @property
    def total_ns(self) -> int:
        """When both have finished."""
        return max(self.host_ns, self.device_ns)


def replay(program: Program, *, tiles: int = 1, native: bool | None = None) -> Replay:
    """The program run `tiles` times over, from the state in which the recording found the device."""
    if _native is None or native is False:
        return _Machine(program).run(tiles)
    columns = (
        program.gap_ns, program.base_ns, program.kind, program.stream, program.wake_ns, program.task_from,
        program.task_stream, program.task_dur_ns, program.task_latency_ns, program.task_gap_ns,
        program.task_after, program.task_after_ns, program.stream_free_ns, program.pending_ns, program.step_calls,
    )  # fmt: skip
    arrays = (np.ascontiguousarray(column) for column in columns)
    *times, host, device = _native(*arrays, program.tail_gap_ns, program.queue_calls, tiles)
    calls, starts, ends, step_host, step_device = (np.frombuffer(each, np.int64) for each in times)
    return Replay(calls, starts, ends, step_host, step_device, host, device)


class _Machine:
    """The reference; `_native/replay.hpp` does the same."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.free = program.stream_free_ns.tolist()
        self.block = [-(1 << 60)] * len(self.free)
        self.event = -(1 << 60)
        self.queue = program.pending_ns.tolist()

    def run(self, tiles: int) -> Replay:
        """Every call in order, tile after tile."""
        program = self.program
        self.starts = np.empty(len(program.task_dur_ns), np.int64)
        self.ends = np.empty(len(self.starts), np.int64)
        self.calls = np.empty(len(program.gap_ns), np.int64)
        self.host_marks: list[int] = []
        self.device_marks: list[int] = []
        self.device = 0
        host = 0
        for tile in range(tiles):
            host = self._tile(host, first=tile == 0) + program.tail_gap_ns
        self._mark(host)
        step_host, step_device = (np.array(each, np.int64) for each in (self.host_marks, self.device_marks))
        return Replay(self.calls, self.starts, self.ends, step_host, step_device, host, self.device)

    def _mark(self, host: int) -> None:
        self.host_marks.append(host)
        self.device_marks.append(self.device)

    def _tile(self, host: int, *, first: bool) -> int:
        program = self.program
        columns = (program.gap_ns, program.base_ns, program.kind, program.stream, program.wake_ns)
        bounds = program.task_from.tolist()
        opens = program.step_calls.tolist()
        for call, (gap, base, kind, stream, wake) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        ):
            for step, at in enumerate(opens):
                if at == call and not (first and step == 0):
                    self._mark(host)
            host += gap
            if kind in (LAUNCH, BLOCKING_COPY):
                if len(self.queue) >= program.queue_calls:
                    host = max(host, self.queue[len(self.queue) - program.queue_calls])
                last = self._start_tasks(bounds[call], bounds[call + 1], host)
                self.device = max(self.device, last)
                self.queue.append(last)
                host += base
                if kind == BLOCKING_COPY:
                    host = max(host, last + wake)
            elif kind == SYNC:
                done = max(self.free) if stream == ALL_STREAMS else self.free[stream]
                host = max(host + base, done + wake if done > host else 0)
            else:
                if kind == RECORD:
                    self.event = self.free[stream]
                elif kind == WAIT:
                    self.block[stream] = max(self.block[stream], self.event)
                host += base
            self.calls[call] = host
        return host

    def _start_tasks(self, first: int, behind: int, host: int) -> int:
        program = self.program
        last = host
        for task in range(first, behind):
            stream = int(program.task_stream[task])
            begin = max(
                host + int(program.task_latency_ns[task]),
                self.free[stream] + int(program.task_gap_ns[task]),
                self.block[stream],
            )
            if program.task_after[task] >= 0:
                begin = max(begin, int(self.ends[program.task_after[task]] + program.task_after_ns[task]))
            end = begin + int(program.task_dur_ns[task])
            self.starts[task], self.ends[task] = begin, end
            self.free[stream] = max(self.free[stream], end)
            last = max(last, end)
        return last
