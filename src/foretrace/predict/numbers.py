"""Numbers and times that look alike and must not be mixed up: mypy tells them apart.

A recording has spans and its own clock. The program that is replayed has calls and tasks, numbered by their place in it,
and a clock that starts with it.
"""

from __future__ import annotations

from typing import Any, NewType, TypeVar

import numpy as np

from foretrace import intervals
from foretrace.intervals import EMPTY, Intervals

Array = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]

SpanIds = NewType("SpanIds", Array)  # rows of trace.spans
Calls = NewType("Calls", Array)  # places in the program's calls
Tasks = NewType("Tasks", Array)  # places in the program's device work
RecordingTime = NewType("RecordingTime", Intervals)  # nanoseconds since the recording began
ProgramTime = NewType("ProgramTime", Intervals)  # nanoseconds since the program's start

_NOBODY: Array = np.empty(0, np.int64)
NO_CALLS, NO_TASKS, NO_TIME = Calls(_NOBODY), Tasks(_NOBODY), ProgramTime(EMPTY)

Clock = TypeVar("Clock", RecordingTime, ProgramTime)


def joined(first: Clock, *others: Clock) -> Clock:
    """All that any of these sets covers, on their clock."""
    given: list[Intervals] = [first, *others]
    listed = [times for times in given if len(times.start)]
    if not listed:
        return first
    together = intervals.union(
        np.concatenate([times.start for times in listed]), np.concatenate([times.end for times in listed])
    )
    return first._replace(start=together.start, end=together.end)
