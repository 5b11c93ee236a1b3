"""The steady state: how long a step takes once the launch queue has filled or drained for good."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretrace.predict.cpu_host import host_step_ns as host_step_ns_of
from foretrace.predict.cpu_host import of_moments
from foretrace.predict.program import BLOCKING_COPY, LAUNCH, Program
from foretrace.predict.replay import replay

_LARGEST_TILES = 400


def settled(program: Program) -> Program:
    """The same steps without what only the recording had: work left over before it, and time between marks."""
    gap = program.gap_ns.copy()
    inside = program.step_calls < len(gap)
    np.subtract.at(gap, program.step_calls[inside], program.between_ns[inside])
    return replace(
        program,
        gap_ns=np.maximum(gap, 0),
        stream_free_ns=np.zeros_like(program.stream_free_ns),
        pending_ns=np.empty(0, np.int64),
    )


def launching(program: Program) -> NDArray[np.bool_]:
    """Which calls take a place in the launch queue."""
    takes_place: NDArray[np.bool_] = (program.kind == LAUNCH) | (program.kind == BLOCKING_COPY)
    return takes_place


def host_step_ns(program: Program) -> float:
    """The host's time for a step that begins with an idle device, as the first after a synchronisation: the mean of all."""
    idle = settled(program)
    begins = idle.step_calls[idle.step_calls < len(idle.kind)]
    delays = (idle.task_dur_ns, idle.task_latency_ns, idle.task_gap_ns, idle.task_after_ns)
    pause = sum(int(np.maximum(delay, 0).sum()) for delay in delays)  # the device is done after that
    gap = idle.gap_ns.copy()
    np.add.at(gap, begins, pause)
    paused = replay(replace(idle, gap_ns=gap)).host_ns - pause * len(begins)
    return paused / max(len(idle.step_calls), 1)


def step_ns(program: Program, *, native: bool | None = None) -> float:
    """Time per step when the recorded steps repeat until the queue no longer matters."""
    if of_moments(program):
        return host_step_ns_of(program)
    launches = int(launching(program).sum())
    wanted = -(-5 * program.queue_calls // (2 * max(launches, 1))) + 3
    tiles = min(max(wanted, 6), _LARGEST_TILES)
    run = replay(settled(program), tiles=tiles, native=native)
    done = np.maximum(run.step_host_ns, run.step_device_ns)
    marks = max(
        int((program.step_calls < len(program.kind)).sum()), 1
    )  # a last step without calls leaves none
    half = (tiles // 2) * marks - 1
    ran = (len(done) - 1 - half) / marks * max(len(program.step_calls), 1)
    return float(done[-1] - done[half]) / ran
