"""The Program: recorded steps as calls of the host and tasks of the device, ready to run again.

All calls of the host's line (the main thread, and threads that it waits for, such as autograd's) stand in
one order. A call does some host work before it (`gap`), takes its own time (`base`), and may start tasks,
wait for a stream, or both. What cannot be told from the recording takes the median of what can.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foretrace.intervals import Intervals
from foretrace.predict.numbers import ProgramTime, RecordingTime

Times = NDArray[np.int64]
Numbers = NDArray[np.int32]

NONE, LAUNCH, SYNC, BLOCKING_COPY, RECORD, WAIT = range(6)  # kinds of calls
ALL_STREAMS = -1


@dataclass(frozen=True)
class Program:
    """Calls and tasks, in program order; times in nanoseconds since `start_ns`."""

    start_ns: int
    # calls of the host
    gap_ns: Times
    gap_ops: Numbers  # operators that began in the gap, outside of data loaders
    gap_frames: Numbers  # Python calls and allocations in it: what a rich recording pays for
    quiet_ns: Times  # of the gap as recorded, long stretches in which no operator begins or ends
    base_ns: Times
    in_driver: NDArray[np.bool_]  # calls whose time is the driver's, and the same without a profiler
    kind: NDArray[np.uint8]
    stream: Numbers  # waited for or recorded on; ALL_STREAMS for the whole device
    wake_ns: Times  # from the end of the awaited work to the end of the call
    call_span: NDArray[np.uint32]
    call_start_ns: Times  # as recorded
    call_end_ns: Times
    step: Numbers  # place among `step_starts`
    task_from: Numbers  # tasks of call i are task_from[i] .. task_from[i + 1]
    # tasks of the device
    task_stream: Numbers
    task_dur_ns: Times
    task_latency_ns: Times  # from the call to the start, on an idle stream
    task_gap_ns: Times  # from the end of the task before it on the stream
    task_after: Numbers  # a task of another stream that it waited for, or -1
    task_after_ns: Times  # from that task's end
    task_span: NDArray[np.uint32]
    # the rest
    tail_gap_ns: int  # host work behind the last call
    queue_calls: int
    stream_free_ns: Times  # when each stream has finished what was launched before the recording
    pending_ns: Times  # ends of calls launched before the recording, in order: they fill the queue
    step_calls: Numbers  # number of the first call of each step
    between_ns: Times  # of the gap before a step's first call, what lies between the marks of two steps
    streams: tuple[tuple[int, int], ...]  # device and stream number of each stream
    measured_host_ns: int
    measured_ns: int  # until host and device have both finished

    @cached_property
    def task_call(self) -> NDArray[np.int64]:
        """The call that launched each task; not to be changed."""
        return np.repeat(np.arange(len(self.kind)), np.diff(self.task_from))

    def in_program(self, stretches: RecordingTime) -> ProgramTime:
        """Stretches of the recording on the program's clock."""
        return ProgramTime(Intervals(stretches.start - self.start_ns, stretches.end - self.start_ns))
