"""Checkpointing's cost in time: the forward of a block runs again when its backward begins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.analyze.concepts.memory.saved_for_backward import Calls
from foretrace.diagnose.case import Case
from foretrace.predict.changes import Change
from foretrace.predict.costs import checkpointing
from foretrace.predict.edits import Edit
from foretrace.predict.program import Program


def computed_again(case: Case, calls: Calls) -> Change:
    """The step with the forward of these calls of modules run again, each before its backward.

    The GPU's work for it is laid on the tasks of the block's backward, which take longer by as much; the host's time for it,
    and that of checkpoint() itself, comes before the backward's first call.
    """
    stretched, again = _device_and_host(case, calls)
    factors = (checkpointing.OVERHEAD, checkpointing.OVERHEAD_LEAST, checkpointing.OVERHEAD_MOST)
    edit, *others = (Edit(stretched=stretched, added_host_ns=_added(again, factor)) for factor in factors)
    return Change("blocks computed again in the backward pass", edit, others=tuple(others))


def _added(again: list[tuple[int, int]], overhead: float) -> dict[int, int]:
    added: dict[int, int] = {}
    for back, host in again:
        added[back] = added.get(back, 0) + round(host * (1 + overhead))
    return added


def _device_and_host(case: Case, calls: Calls) -> tuple[dict[int, float], list[tuple[int, int]]]:
    """By what factor tasks of the backward take longer; and calls that it begins with, each with host time to come before."""
    program = case.program
    dur = program.task_dur_ns
    more = np.zeros(len(dur))
    again: list[tuple[int, int]] = []
    reach = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1]))
    times = (calls.start_ns, calls.end_ns, calls.back_ns, calls.back_end_ns)
    # The program's calls that begin in the forward and in the backward: the first, and the one behind the last.
    places = (np.searchsorted(program.call_start_ns, each - program.start_ns) for each in times)
    columns = (each.tolist() for each in (calls.start_ns, calls.end_ns, *places))
    for start_ns, end_ns, first, last, back, back_last in zip(*columns, strict=True):
        if first == last or back == back_last:
            continue
        again.append((back, _host_ns(program, reach, start_ns, end_ns)))
        forward = slice(program.task_from[first], program.task_from[last])
        backward = slice(program.task_from[back], program.task_from[back_last])
        taken = int(dur[backward].sum())
        if taken:
            more[backward] += dur[backward] * (int(dur[forward].sum()) / taken)
    longer = np.flatnonzero(more)
    factors = 1 + more[longer] / dur[longer]
    return dict(zip(longer.tolist(), factors.tolist(), strict=True)), again


def _host_ns(program: Program, reach: NDArray[np.int64], start_ns: int, end_ns: int) -> int:
    """What the host does in this time of the recording, as it takes without a profiler.

    `reach` is when the calls before each had ended. It is in order, and so are the calls.
    """
    low, high = start_ns - program.start_ns, end_ns - program.start_ns
    first, behind = np.searchsorted(program.call_start_ns, (low, high))
    near = slice(first, max(behind, np.searchsorted(reach, high)))
    start, begin = program.call_start_ns[near], reach[near]
    inside = np.minimum(start, high) - np.maximum(begin, low)
    share = np.clip(inside, 0, None) / np.maximum(start - begin, 1)
    called = (start >= low) & (start < high)
    gaps = float((program.gap_ns[near] * np.minimum(share, 1.0)).sum())
    return round(gaps + int(program.base_ns[near][called].sum()))
