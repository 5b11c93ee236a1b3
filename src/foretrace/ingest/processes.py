"""Processes: of a file that holds the events of several, which one is read, and which rows are therefore left out.

Merged ranks, or a parent with its workers: correlation ids, external ids and step numbers of two processes mean nothing to
one another. One process is read at a time; the others are named in `trace.meta["processes"]`. A process is a pid with
operators; beside several such, or where there is none, also one with runtime calls. (Not one with Python calls alone: torch
gives threads that it does not know the pid 0.)

Device work does not say who launched it. It belongs to the process
- whose pid it carries, if that one makes runtime calls, or whose pid begins with the same text ("[TP00] 0" is of "[TP00] 4711"), else
- that alone could have launched all that its stream ran: a call with its correlation id, no later than the work. Where
  several could, and there are as many devices as processes, devices and processes are paired in the order of their numbers,
- else, on a stream that processes share (which most often ran as much work under one id as processes called with it): in the
  order of the calls where there is as much work as calls, else the one that called last before the work.
Work that nobody can have launched stays, as work queued before a recording does.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrace.ingest.columns import NULL_I64, NULL_U64, Array
from foretrace.schema import KINDS

_OP, _RUNTIME = (KINDS.index(kind) for kind in ("op", "runtime"))
_ON_DEVICE = tuple(KINDS.index(kind) for kind in ("kernel", "copy", "set", "sync"))
_ANNOTATION = KINDS.index("annotation")
_NOBODY = -1
_DIGITS = re.compile(r"[0-9]{1,18}")
_LAST_DIGITS = re.compile(r"[0-9]*\Z")

Lane = tuple[int | str, int | str]


@dataclass(frozen=True)
class Process:
    """One process of a file, as far as it matters which one is read."""

    pid: int | str
    host_count: int  # operators and runtime calls
    device_count: int
    device_ns: int
    chosen: bool

    def to_dict(self) -> dict[str, Any]:
        """As an entry of `trace.meta["processes"]`."""
        return dict(vars(self))


@dataclass(frozen=True)
class Rows:
    """What tells whose each row of a file is; in file order."""

    lanes: Sequence[Lane]  # process and thread
    lane: Array
    kind: Array
    start: Array
    dur: Array
    correlation: Array  # of calls and device work

    def several(self) -> bool:
        """Whether operators of several processes were recorded, or without any, runtime calls of several."""
        ops = self.kind == _OP
        lanes = np.unique(self.lane[ops if ops.any() else self.kind == _RUNTIME])
        return len({key(self.lanes[lane][0]) for lane in lanes.tolist()}) > 1


def choose(rows: Rows, asked: str | None) -> tuple[Array, tuple[Process, ...]]:
    """Which rows to leave out, and the processes, the chosen one first: the asked one, else that with most device work."""
    pids, host_count, process_of_lane = _processes(rows)
    owner = _owners(rows, pids, process_of_lane)
    on_device = np.isin(rows.kind, _ON_DEVICE)
    owned = on_device & (owner != _NOBODY)
    device_count = np.bincount(owner[owned], minlength=len(pids))
    device_ns = np.zeros(len(pids), np.int64)
    np.add.at(device_ns, owner[owned], np.where(rows.dur == NULL_I64, 0, rows.dur)[owned])
    order = sorted(
        range(len(pids)),
        key=lambda place: (
            str(pids[place]) != asked,
            -int(device_ns[place]),
            -int(host_count[place]),
            place,
        ),
    )
    found = tuple(
        Process(
            pids[place],
            int(host_count[place]),
            int(device_count[place]),
            int(device_ns[place]),
            place == order[0],
        )
        for place in order
    )
    return (owner != _NOBODY) & (owner != order[0]), found


def key(pid: int | str) -> int | str:
    """What two ways of writing one pid have in common."""
    return int(pid) if isinstance(pid, str) and _DIGITS.fullmatch(pid) else pid


def _processes(rows: Rows) -> tuple[list[int | str], Array, Array]:
    """The pids of the processes in the order of their lanes, their host rows, and for each lane its process."""
    on_host = np.isin(rows.kind, (_OP, _RUNTIME))
    lane_count = np.bincount(rows.lane[on_host], minlength=len(rows.lanes))
    numbers: dict[int | str, int] = {}
    for lane in np.flatnonzero(lane_count).tolist():
        numbers.setdefault(key(rows.lanes[lane][0]), len(numbers))
    of_lane = np.array([numbers.get(key(pid), _NOBODY) for pid, _ in rows.lanes], np.int64)
    host_count = np.zeros(len(numbers), np.int64)
    known = of_lane != _NOBODY
    np.add.at(host_count, of_lane[known], lane_count[known])
    return list(numbers), host_count, of_lane


def _owners(rows: Rows, pids: Sequence[int | str], process_of_lane: Array) -> Array:
    """For each row, the process that it belongs to; NOBODY where that cannot be told."""
    owner = process_of_lane[rows.lane]
    on_device = np.isin(rows.kind, _ON_DEVICE)
    launching = np.unique(owner[rows.kind == _RUNTIME])
    if len(launching):  # a device's number may be the pid of a process that launches nothing
        owner = np.where(on_device & ~np.isin(owner, launching), _NOBODY, owner)
    work_lanes = np.unique(rows.lane[on_device & (owner == _NOBODY)]).tolist()
    of_lane = _by_name(rows, pids, work_lanes)
    calls = _first_calls(rows, process_of_lane)
    possible = {lane: _possible(rows, lane, calls) for lane in work_lanes if lane not in of_lane}
    of_lane |= _by_calls(rows, pids, possible)
    for lane, process in of_lane.items():
        owner[(rows.lane == lane) & (on_device | (rows.kind == _ANNOTATION))] = process
    shared = np.isin(rows.lane, [lane for lane in work_lanes if lane not in of_lane]) & on_device
    _share_out(rows, np.flatnonzero(shared), calls, owner)
    return owner


def _by_name(rows: Rows, pids: Sequence[int | str], work_lanes: Sequence[int]) -> dict[int, int]:
    """The process of each lane whose pid is text that begins as just one process's pid does."""
    found: dict[int, int] = {}
    for lane in work_lanes:
        pid = rows.lanes[lane][0]
        if not isinstance(pid, str) or not (label := _LAST_DIGITS.sub("", pid)):
            continue
        same = [
            place
            for place, other in enumerate(pids)
            if isinstance(other, str) and _LAST_DIGITS.sub("", other) == label
        ]
        if len(same) == 1:
            found[lane] = same[0]
    return found


Calls = dict[int, dict[int, int]]  # correlation id -> process -> start of its first call with that id


def _first_calls(rows: Rows, process_of_lane: Array) -> Calls:
    calls: Calls = {}
    places = np.flatnonzero((rows.kind == _RUNTIME) & _has_id(rows))
    for correlation, process, start in zip(
        rows.correlation[places].tolist(), process_of_lane[rows.lane[places]].tolist(), rows.start[places].tolist(),
        strict=True,
    ):  # fmt: skip
        starts = calls.setdefault(correlation, {})
        starts[process] = min(start, starts.get(process, start))
    return calls


def _has_id(rows: Rows) -> Array:
    has_id: Array = (rows.correlation != 0) & (rows.correlation != NULL_U64)
    return has_id


def _possible(rows: Rows, lane: int, calls: Calls) -> tuple[dict[int, int], int]:
    """How many rows of a device's lane each process can have launched, and how many at least one can; none of a shared one."""
    counts: dict[int, int] = {}
    explained = 0
    places = np.flatnonzero((rows.lane == lane) & np.isin(rows.kind, _ON_DEVICE) & _has_id(rows))
    for correlation, start in zip(
        rows.correlation[places].tolist(), rows.start[places].tolist(), strict=True
    ):
        able = [process for process, called in calls.get(correlation, {}).items() if called <= start]
        explained += bool(able)
        for process in able:
            counts[process] = counts.get(process, 0) + 1
    ids, times = np.unique(rows.correlation[places], return_counts=True)
    callers = np.array([len(calls.get(number, ())) for number in ids.tolist()], np.int64)
    shared = int(((times == callers) & (callers > 1)).sum()) > int((callers > 1).sum()) / 2
    return ({} if shared else counts), explained


def _by_calls(
    rows: Rows, pids: Sequence[int | str], possible: dict[int, tuple[dict[int, int], int]]
) -> dict[int, int]:
    """The process of each lane that one process alone, or one by its number, can have launched all work of."""
    devices = sorted({pid for pid, _ in (rows.lanes[lane] for lane in possible) if isinstance(pid, int)})
    launching = {process for counts, _ in possible.values() for process in counts}
    in_order = sorted(
        (pid, place) for place, pid in enumerate(pids) if isinstance(pid, int) and place in launching
    )
    paired = {}
    if len(devices) == len(in_order) == len(launching) > 1:
        paired = {device: place for device, (_, place) in zip(devices, in_order, strict=True)}
    found = {}
    for lane, (counts, explained) in possible.items():
        able = [process for process, count in counts.items() if count == explained]
        number = rows.lanes[lane][0]
        if len(able) == 1:
            found[lane] = able[0]
        elif isinstance(number, int) and paired.get(number) in able:
            found[lane] = paired[number]
    return found


def _share_out(rows: Rows, places: Array, calls: Calls, owner: Array) -> None:
    """Gives each row of shared lanes to a process, by its correlation id."""
    places = places[np.lexsort((places, rows.start[places]))]
    by_id: dict[int, list[int]] = {}
    for place, correlation in zip(places.tolist(), rows.correlation[places].tolist(), strict=True):
        by_id.setdefault(correlation, []).append(place)
    for correlation, work in by_id.items():
        called = sorted((start, process) for process, start in calls.get(correlation, {}).items())
        starts = [start for start, _ in called]
        for turn, place in enumerate(work):
            able = bisect_right(starts, int(rows.start[place]))
            if able:
                owner[place] = called[turn if len(work) == len(called) and turn < able else able - 1][1]
