"""Operators that run on streams of their own, as cuDNN's recurrent layers do: what their work waits for.

A recording names no events, so what one stream waits for on another is read from what must be, and from when work ran:

fork:    an operator's first work on a stream of its own follows what its caller's stream was given before it
within:  work launched behind a cudaStreamWaitEvent follows what another of the operator's streams had recorded by then
join:    the caller's stream goes on when all work of the operator is done
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.predict.program import Numbers, Times
from foretrace.sourced import Nanoseconds

NO_OPERATOR = -1
HAND_OVER_NS = Nanoseconds(
    3_500,
    "from the end of one stream's work to that of another that waited for it, where the recording shows none",
    "cuDNN's LSTM on an H200, PyTorch's word_language_model example",
)


@dataclass(frozen=True)
class Launched:
    """Tasks in the order of their launches, and the calls that make streams wait for each other."""

    op: NDArray[np.int64]  # the operator that launched each task, or NO_OPERATOR
    call: Times
    stream: Numbers
    start_ns: Times
    end_ns: Times
    records: NDArray[np.int64]  # calls that record an event
    waits: NDArray[np.int64]  # calls that make a stream wait for one


@dataclass(frozen=True)
class Waiting:
    """Tasks that wait for others, of other streams, and how long after these they begin."""

    tasks: NDArray[np.int64]
    others: NDArray[np.int64]
    late_ns: Times


def awaited(tasks: Launched, ready_ns: Times) -> Waiting:
    """What tasks of operators with streams of their own wait for, and what follows such operators.

    `ready_ns` is when each task's launch had arrived and its own stream was free: begun later, it was held back.
    """
    found = _found(tasks)
    waiting, others = (np.array(list(column), np.int64) for column in (found, found.values()))
    late = tasks.start_ns[waiting] - tasks.end_ns[others]
    held = tasks.end_ns[others] >= ready_ns[waiting]
    usual = int(np.median(late[held])) if held.any() else HAND_OVER_NS
    return Waiting(waiting, others, np.where(held, late, np.minimum(late, usual)))


def _found(tasks: Launched) -> dict[int, int]:
    """For each task that waits, the last to end of those before it. Only what held in the recording is kept."""
    found: dict[int, int] = {}
    groups = _groups(tasks)
    if not groups:
        return found
    home = _home(tasks, np.concatenate(groups))
    for group in groups:
        for task, other in (*_forks(tasks, group, home), *_within(tasks, group), *_join(tasks, group, home)):
            if tasks.end_ns[other] > tasks.start_ns[task]:
                continue
            if task not in found or tasks.end_ns[other] > tasks.end_ns[found[task]]:
                found[task] = other
    return found


def _groups(tasks: Launched) -> list[NDArray[np.int64]]:
    """The tasks of each operator that runs on more than one stream."""
    order = np.argsort(tasks.op, kind="stable")
    bounds = np.flatnonzero(np.diff(tasks.op[order])) + 1
    return [
        group
        for group in np.split(order, bounds)
        if len(group) and tasks.op[group[0]] != NO_OPERATOR and len(np.unique(tasks.stream[group])) > 1
    ]


def _home(tasks: Launched, within: NDArray[np.int64]) -> int:
    """The stream that the program itself uses most."""
    outside = np.ones(len(tasks.op), bool)
    outside[within] = False
    chosen = tasks.stream[outside] if outside.any() else tasks.stream
    return int(np.argmax(np.bincount(chosen)))


def _forks(tasks: Launched, group: NDArray[np.int64], home: int) -> Iterator[tuple[int, int]]:
    before = np.flatnonzero(tasks.stream[: group[0]] == home)
    if not len(before):
        return
    streams, first = np.unique(tasks.stream[group], return_index=True)
    for stream, place in zip(streams.tolist(), first.tolist(), strict=True):
        if stream != home:
            yield int(group[place]), int(before[-1])


def _within(tasks: Launched, group: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    last_wait = np.searchsorted(tasks.waits, tasks.call[group])
    for place in range(1, len(group)):
        task = int(group[place])
        if last_wait[place] == last_wait[place - 1]:
            continue
        wait = tasks.waits[last_wait[place] - 1]
        recorded = int(np.searchsorted(tasks.records, wait)) - 1
        if recorded < 0:
            continue
        known = group[:place][tasks.call[group[:place]] < tasks.records[recorded]]
        for stream in np.unique(tasks.stream[known]).tolist():
            if stream != tasks.stream[task]:
                yield task, int(known[tasks.stream[known] == stream][-1])


def _join(tasks: Launched, group: NDArray[np.int64], home: int) -> Iterator[tuple[int, int]]:
    behind = group[-1] + 1 + np.flatnonzero(tasks.stream[group[-1] + 1 :] == home)
    others = group[tasks.stream[group] != home]
    if len(behind) and len(others):
        yield int(behind[0]), int(others[np.argmax(tasks.end_ns[others])])
