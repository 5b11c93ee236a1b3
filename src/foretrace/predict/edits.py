"""Edits: a Program with work taken out, made shorter or longer, no longer waited for, or moved.

An Edit only says what is to change; several are merged and applied at once, so that a program with all of
them is simulated, and savings are never added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add, mul, or_
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.costs import graph
from foretrace.predict.numbers import (
    NO_CALLS,
    NO_TASKS,
    NO_TIME,
    Array,
    Calls,
    ProgramTime,
    Tasks,
    joined,
)
from foretrace.predict.program import ALL_STREAMS, BLOCKING_COPY, LAUNCH, NONE, SYNC, Program

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Edit:
    """What changes; calls and tasks by their place in the program, host time as recorded."""

    removed_host: ProgramTime = NO_TIME  # stretches of the host's line that are no longer spent
    removed_calls: Calls = field(default_factory=lambda: NO_CALLS)
    removed_tasks: Tasks = field(default_factory=lambda: NO_TASKS)
    durations_ns: dict[int, int] = field(default_factory=dict)  # of tasks
    stretched: dict[int, float] = field(default_factory=dict)  # tasks' factors, on top of any new duration
    modelled: frozenset[int] = frozenset()  # tasks whose new duration is a model's, not a measurement
    fused: dict[int, tuple[int, ...]] = field(default_factory=dict)  # for all tasks of a run stands its last
    unwaited_calls: Calls = field(default_factory=lambda: NO_CALLS)  # they return without waiting
    moved_tasks: dict[int, int] = field(default_factory=dict)  # to a stream; len(streams) is a new one
    added_host_ns: dict[int, int] = field(default_factory=dict)  # before a call; less than 0 takes away
    captured_calls: Calls = field(
        default_factory=lambda: NO_CALLS
    )  # replayed from a CUDA graph: free of host work


def merge(edits: Iterable[Edit]) -> Edit:
    """All edits as one; where two give a task a duration, the shorter counts, and what one removes another cannot fuse."""
    listed = list(edits)
    if len(listed) == 1:
        return _tidied(listed[0])
    gone = [edit.removed_tasks for edit in listed]
    listed = [
        _left_to_fuse(edit, np.concatenate([NO_TASKS, *gone[:place], *gone[place + 1 :]]))
        if edit.fused
        else edit
        for place, edit in enumerate(listed)
    ]
    durations: dict[int, int] = {}
    added: dict[int, int] = {}
    stretched: dict[int, float] = {}
    for place, edit in enumerate(listed):
        durations = _both(durations, edit.durations_ns, min)
        added = _both(added, _still_added(edit, listed[:place] + listed[place + 1 :]), add)
        stretched = _both(stretched, edit.stretched, mul)
    return Edit(
        removed_host=joined(NO_TIME, *(edit.removed_host for edit in listed)),
        removed_calls=Calls(_together(edit.removed_calls for edit in listed)),
        removed_tasks=Tasks(_together(edit.removed_tasks for edit in listed)),
        durations_ns=durations,
        stretched=stretched,
        modelled=frozenset().union(*(edit.modelled for edit in listed)),
        fused=reduce(or_, (edit.fused for edit in listed), {}),
        unwaited_calls=Calls(_together(edit.unwaited_calls for edit in listed)),
        moved_tasks={task: stream for edit in listed for task, stream in edit.moved_tasks.items()},
        added_host_ns=added,
        captured_calls=Calls(_together(edit.captured_calls for edit in listed)),
    )


def _both(
    one: dict[int, Number], other: dict[int, Number], of_two: Callable[[Any, Any], Any]
) -> dict[int, Number]:
    """What either says; where both do, what is made of the two, in whichever order."""
    most, fewest = (one, other) if len(one) > len(other) else (other, one)
    made = dict(most)
    for key, value in fewest.items():
        made[key] = of_two(made[key], value) if key in made else value
    return made


def _still_added(edit: Edit, others: list[Edit]) -> dict[int, int]:
    """The host work that an edit adds, but not at calls that another one makes free."""
    if not edit.added_host_ns or not (free := _free_calls(others)):
        return edit.added_host_ns
    free -= _free_calls([edit])
    return {call: extra for call, extra in edit.added_host_ns.items() if call not in free}


def _free_calls(edits: list[Edit]) -> set[int]:
    """Calls that are gone, or replayed from a graph: they cost the host nothing, whatever another edit makes of them."""
    return {
        call
        for edit in edits
        for calls in (edit.captured_calls, edit.removed_calls)
        for call in calls.tolist()
    }


def _tidied(edit: Edit) -> Edit:
    """The edit with its calls and tasks in order, each once."""
    return replace(
        edit,
        removed_host=joined(NO_TIME, edit.removed_host),
        removed_calls=Calls(_together((edit.removed_calls,))),
        removed_tasks=Tasks(_together((edit.removed_tasks,))),
        unwaited_calls=Calls(_together((edit.unwaited_calls,))),
        captured_calls=Calls(_together((edit.captured_calls,))),
    )


def _left_to_fuse(edit: Edit, gone_tasks: Array) -> Edit:
    """The edit where others remove tasks: of two or more that are left the last stands for the run, one stays as it is."""
    if not len(gone_tasks):
        return edit
    gone = set(gone_tasks.tolist())
    shorter = [last for last, run in edit.fused.items() if not gone.isdisjoint(run)]
    if not shorter:
        return edit
    durations, modelled, fused = dict(edit.durations_ns), set(edit.modelled), dict(edit.fused)
    undone: list[int] = []
    removed: list[int] = []
    for last in shorter:
        run = fused.pop(last)
        undone += run
        left = tuple(task for task in run if task not in gone)
        dur, sure = durations.pop(last), last not in modelled
        modelled.discard(last)
        if len(left) > 1:
            removed += left[:-1]
            durations[left[-1]], fused[left[-1]] = dur, left
            modelled |= set() if sure else {left[-1]}
    goes = np.zeros(max(int(edit.removed_tasks.max(initial=0)), *undone) + 1, bool)
    goes[edit.removed_tasks] = True
    goes[undone] = False
    goes[removed] = True
    return replace(
        edit,
        removed_tasks=Tasks(np.flatnonzero(goes)),
        durations_ns=durations,
        modelled=frozenset(modelled),
        fused=fused,
    )


def _together(numbers: Iterable[Array]) -> Array:
    """All of the numbers in order, each once."""
    listed = np.concatenate([NO_CALLS, *numbers])
    if (listed[1:] <= listed[:-1]).any():
        listed = np.sort(listed)
        listed = listed[np.append(True, listed[1:] != listed[:-1])]
    return listed


def _columns(values: Mapping[int, float], dtype: type = np.int64) -> tuple[Array, NDArray[Any]]:
    """The keys and the values of a dictionary, in its order."""
    count = len(values)
    return np.fromiter(values.keys(), np.int64, count), np.fromiter(values.values(), dtype, count)


def apply(program: Program, edit: Edit) -> Program:
    """The program with the edit made."""
    dur = program.task_dur_ns.copy()
    tasks, new_ns = _columns(edit.durations_ns)
    dur[tasks] = new_ns
    tasks, factors = _columns(edit.stretched, np.float64)
    dur[tasks] = np.rint(dur[tasks] * factors)
    stream = program.task_stream.copy()
    for task, target in edit.moved_tasks.items():
        stream[task] = target
    extra = (
        max([len(program.stream_free_ns) - 1, *edit.moved_tasks.values()]) + 1 - len(program.stream_free_ns)
    )
    changed = replace(
        program,
        gap_ns=_gaps(program, edit),
        tail_gap_ns=_tail(program, edit),
        base_ns=_bases(program, edit),
        kind=_kinds(program, edit),
        task_dur_ns=dur,
        task_stream=stream,
        task_gap_ns=_task_gaps(program, edit),
        stream_free_ns=np.concatenate((program.stream_free_ns, np.zeros(extra, np.int64))),
        streams=(*program.streams, *((0, -1 - number) for number in range(extra))),
    )
    return _without(changed, edit)


def _gaps(program: Program, edit: Edit) -> NDArray[np.int64]:
    """Gaps less the share of them that falls into removed stretches, plus host work added."""
    begin = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1]))
    recorded = np.maximum(program.call_start_ns - begin, 1)
    gone = intervals.covered_ns(edit.removed_host, begin, np.maximum(program.call_start_ns, begin))
    gap = (program.gap_ns * (1 - gone / recorded)).astype(np.int64)
    captured = edit.captured_calls
    if len(captured):
        gap[captured] = np.maximum(gap[captured] - dense_ns(program)[captured], 0)
    emptied = emptied_calls(program, edit)
    calls, extra = _columns(edit.added_host_ns)
    calls, extra = calls[~emptied[calls]], extra[~emptied[calls]]
    gap[calls] = np.maximum(gap[calls] + extra, 0)
    return gap


def emptied_calls(program: Program, edit: Edit) -> NDArray[np.bool_]:
    """Calls all of whose tasks are removed: nothing is launched there any more."""
    started = np.diff(program.task_from)
    removed = np.bincount(program.task_call[edit.removed_tasks], minlength=len(started))
    emptied: NDArray[np.bool_] = (started > 0) & (removed == started)
    return emptied


def _tail(program: Program, edit: Edit) -> int:
    """What is left of the host work behind the last call."""
    begin = int(program.call_end_ns.max(initial=0))
    recorded = program.measured_host_ns - begin
    if recorded <= 0:
        return program.tail_gap_ns
    gone = int(intervals.covered_ns(edit.removed_host, [begin], [program.measured_host_ns])[0])
    return round(program.tail_gap_ns * (1 - gone / recorded))


def _bases(program: Program, edit: Edit) -> NDArray[np.int64]:
    base = program.base_ns.copy()
    base[edit.removed_calls] = 0
    base[edit.captured_calls] = 0
    return base


def _task_gaps(program: Program, edit: Edit) -> NDArray[np.int64]:
    """Tasks of one graph follow each other more closely than tasks launched one by one."""
    counts = np.diff(program.task_from)
    captured = np.zeros(len(counts), bool)
    captured[edit.captured_calls] = True
    return np.where(
        np.repeat(captured, counts), np.minimum(program.task_gap_ns, graph.GAP_NS), program.task_gap_ns
    )


def _kinds(program: Program, edit: Edit) -> NDArray[np.uint8]:
    kind = program.kind.copy()
    waits = edit.unwaited_calls
    kind[waits] = np.where(
        kind[waits] == SYNC, NONE, np.where(kind[waits] == BLOCKING_COPY, LAUNCH, kind[waits])
    )
    kind[edit.removed_calls] = NONE
    return kind


def _still_awaited(program: Program, keep: NDArray[np.bool_]) -> NDArray[np.int32]:
    """What the tasks that are left wait for; a task that is gone is waited for no more."""
    place = np.where(keep, np.cumsum(keep) - 1, -1)
    after = program.task_after[keep]
    return np.where(after >= 0, place[after], -1).astype(np.int32)


def _without(program: Program, edit: Edit) -> Program:
    """The program without its removed tasks; calls that are left with none no longer launch."""
    owner = program.task_call
    keep = np.ones(len(owner), bool)
    keep[edit.removed_tasks] = False
    gone = np.zeros(len(program.kind), bool)
    gone[edit.removed_calls] = True
    keep &= ~gone[owner]
    counts = np.bincount(owner[keep], minlength=len(program.kind))
    emptied = (counts == 0) & ((program.kind == LAUNCH) | (program.kind == BLOCKING_COPY))
    kind = program.kind.copy()
    kind[emptied] = NONE
    stream = program.stream.copy()
    stream[emptied] = ALL_STREAMS
    base = program.base_ns.copy()
    base[emptied] = 0  # a call that starts nothing is not made
    return replace(
        program,
        kind=kind,
        stream=stream,
        base_ns=base,
        task_from=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        **{
            name: getattr(program, name)[keep]
            for name in (
                "task_stream",
                "task_dur_ns",
                "task_latency_ns",
                "task_gap_ns",
                "task_after_ns",
                "task_span",
            )
        },
        task_after=_still_awaited(program, keep),
    )
