"""Waits replaced by launches: what depended on a value of the host is computed on the device instead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns.host_waits import HostWaits, for_sizes_mostly
from foretrace.diagnose.removal import without_time
from foretrace.predict.costs.dispatch import operator_ns
from foretrace.predict.edits import Edit, merge
from foretrace.predict.numbers import NO_CALLS, Calls, ProgramTime, RecordingTime, joined
from foretrace.sourced import JUDGEMENT, Count

MOST_LAUNCHES = Count(
    4, "launches in the place of a wait, at worst: compare, select, multiply, reduce", JUDGEMENT
)
_MORE_ROWS = "what follows has as many rows as the values decide, and without the wait it may have more"


def without_waits(case: Case, waits: HostWaits) -> Edit:
    """The operators that wait gone, with work of the host on what they bring."""
    reading = case.program.in_program(waits.reading)
    return without_time(case, joined(reading, _computing(case, waits)))


def one_launch_each(case: Case, waits: HostWaits, *, looped: Calls = NO_CALLS) -> Edit:
    """The operators that wait gone, and one launch in the place of each."""
    return replace(without_waits(case, waits), added_host_ns=launches(case, waits, 1, looped=looped))


def without_waiting(case: Case, waits: HostWaits, count: int, *, looped: Calls = NO_CALLS) -> Edit:
    """The operators stay, without their wait, and so many launches follow; in loops they go for one launch."""
    lone = Calls(waits.calls[~np.isin(waits.calls, looped)])
    in_loops = Calls(waits.calls[np.isin(waits.calls, looped)])
    removed = merge(
        (without_time(case, _computing(case, waits)), without_time(case, _around(case, waits, in_loops)))
    )
    added = launches(case, waits, count, looped=looped)
    return replace(removed, unwaited_calls=lone, added_host_ns=added)


def launches(
    case: Case, waits: HostWaits, count: int, *, looped: Calls = NO_CALLS, but: Calls = NO_CALLS
) -> dict[int, int]:
    """Host time before calls, of so many launches for each operator that is gone, of one in a loop, and of none for some."""
    usual_ns = operator_ns(case.program)
    bare = np.isin(
        waits.readers, case.program.call_span
    )  # no operator brings a value: nothing takes its place
    first = waits.calls[~bare][np.unique(waits.readers[~bare], return_index=True)[1]]
    in_loops, left_out = set(looped.tolist()), set(but.tolist())
    added = {call: usual_ns if call in in_loops else count * usual_ns for call in first.tolist()}
    for call in waits.computing.next_calls.tolist():
        added[call] = added.get(call, 0) + count * usual_ns
    return {call: extra_ns for call, extra_ns in added.items() if call not in left_out}


def doubt(case: Case, waits: HostWaits) -> str:
    """Why nothing is promised; empty where there is no such reason."""
    return _MORE_ROWS if for_sizes_mostly(case, waits) else ""


def _computing(case: Case, waits: HostWaits) -> ProgramTime:
    """The work of the host on what was copied."""
    spans, host = waits.computing.spans, case.host
    return case.program.in_program(RecordingTime(intervals.union(host.start_ns[spans], host.end_ns[spans])))


def _around(case: Case, waits: HostWaits, calls: Calls) -> ProgramTime:
    """Of the time of the operators that wait, the stretches in which one of these calls is made."""
    reading = case.program.in_program(waits.reading)
    start = np.sort(case.program.call_start_ns[calls])
    chosen = np.searchsorted(start, reading.start) < np.searchsorted(start, reading.end)
    return ProgramTime(intervals.Intervals(reading.start[chosen], reading.end[chosen]))
