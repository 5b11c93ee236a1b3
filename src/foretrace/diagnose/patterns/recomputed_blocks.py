"""Checkpointing's cost in time: the forward of a block runs again when its backward begins."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from foretrace.analyze.concepts.memory.saved_for_backward import Call
from foretrace.diagnose.case import Case
from foretrace.predict.changes import Change
from foretrace.predict.costs import checkpointing
from foretrace.predict.edits import Edit


def computed_again(case: Case, calls: Iterable[Call]) -> Change:
    """The step with the forward of these calls of modules run again, each before its backward.

    The GPU's work for it is laid on the tasks of the block's backward, which take longer by as much; the host's time for it,
    and that of checkpoint() itself, comes before the backward's first call.
    """
    listed = list(calls)
    factors = (checkpointing.OVERHEAD, checkpointing.OVERHEAD_LEAST, checkpointing.OVERHEAD_MOST)
    edit, *others = (_edit(case, listed, overhead=factor) for factor in factors)
    return Change("blocks computed again in the backward pass", edit, others=tuple(others))


def _edit(case: Case, calls: list[Call], *, overhead: float) -> Edit:
    program = case.program
    dur = program.task_dur_ns
    more = np.zeros(len(dur))
    added: dict[int, int] = {}
    for call in calls:
        first, last = _calls_within(case, call.start_ns, call.end_ns)
        back, back_last = _calls_within(case, call.back_ns, call.back_end_ns)
        if first == last or back == back_last:
            continue
        host = _host_ns(case, call.start_ns, call.end_ns)
        forward = slice(program.task_from[first], program.task_from[last])
        backward = slice(program.task_from[back], program.task_from[back_last])
        added[back] = added.get(back, 0) + round(host * (1 + overhead))
        taken = int(dur[backward].sum())
        if taken:
            more[backward] += dur[backward] * (int(dur[forward].sum()) / taken)
    longer = np.flatnonzero(more)
    stretched = {int(task): 1 + float(more[task]) / int(dur[task]) for task in longer}
    return Edit(stretched=stretched, added_host_ns=added)


def _host_ns(case: Case, start_ns: int, end_ns: int) -> int:
    """What the host does in this time of the recording, as it takes without a profiler."""
    program = case.program
    begin = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1]))
    low, high = start_ns - program.start_ns, end_ns - program.start_ns
    inside = np.minimum(program.call_start_ns, high) - np.maximum(begin, low)
    share = np.clip(inside, 0, None) / np.maximum(program.call_start_ns - begin, 1)
    called = (program.call_start_ns >= low) & (program.call_start_ns < high)
    return round(float((program.gap_ns * np.minimum(share, 1.0)).sum()) + int(program.base_ns[called].sum()))


def _calls_within(case: Case, start_ns: int, end_ns: int) -> tuple[int, int]:
    """The program's calls that begin in this time of the recording: the first, and the one behind the last."""
    start = case.program.call_start_ns
    low, high = np.searchsorted(start, (start_ns - case.program.start_ns, end_ns - case.program.start_ns))
    return int(low), int(high)
