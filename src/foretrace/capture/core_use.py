"""The CoreUse: who used the processor's cores while steps were timed, and how long this program waited for one.

Linux counts all of it. A figure that this system does not give is null. Only the standard library is imported here: this runs
inside the user's program.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretrace.capture import environment, line_sampler
from foretrace.capture.timing import StepTimes

_PROC = Path("/proc")
_MOST_PROCESSES = 2_000  # of one program; beyond, telling them from others would take too long
# Fields of a cpu line of /proc/stat. Interrupts are left out: the program's own input and output causes many of them.
_USER, _NICE, _SYSTEM, _STEAL = 1, 2, 3, 8
# Fields of /proc/PID/stat behind the name: utime, stime, and both of children that have ended.
_TIMES = slice(11, 15)


@dataclass(frozen=True)
class _Reading:
    """The counters at one moment; None for what the system does not count."""

    at_ns: int
    busy_ns: int | None
    own_ns: int | None
    waited_ns: Mapping[int, int] | None  # by thread
    switches: int | None
    load: float | None


class CoreUse:
    """`begin` where timing begins, `told` where it ends."""

    def __init__(self) -> None:
        self._cores = _usable_cores()
        self._root = os.getpid()
        self._thread = threading.get_native_id()
        self._began: _Reading | None = None

    def begin(self) -> None:
        """Counts from here on, for the thread that calls."""
        self._cores, self._root, self._thread = _usable_cores(), _root(), threading.get_native_id()
        self._began = self._read()

    def told(self, times: StepTimes | None) -> StepTimes | None:
        """The times of the same steps, with what happened on the cores meanwhile."""
        return replace(times, cores=self.facts()) if times is not None else None

    def facts(self) -> dict[str, Any] | None:
        """As rank.json holds them; `None` before `begin`."""
        began, now = self._began, self._read()
        if began is None:
            return None
        waited = _waited(began.waited_ns, now.waited_ns)
        own_ns, busy_ns = _since(began.own_ns, now.own_ns), _since(began.busy_ns, now.busy_ns)
        return {
            "wall_ns": now.at_ns - began.at_ns,
            "usable_cpu_count": len(self._cores) if self._cores else None,
            "own_cpu_ns": own_ns,
            "others_cpu_ns": max(busy_ns - own_ns, 0) if busy_ns is not None and own_ns is not None else None,
            "thread_wait_ns": waited.get(self._thread) if waited else None,
            "longest_wait_ns": max(waited.values()) if waited else None,
            "involuntary_switches": _since(began.switches, now.switches),
            "load_average": [began.load, now.load] if now.load is not None else None,
        }

    def _read(self) -> _Reading:
        return _Reading(
            at_ns=time.perf_counter_ns(),
            busy_ns=_busy_ns(self._cores),
            own_ns=_tree_ns(self._root),
            waited_ns=_thread_waits_ns(),
            switches=_switches(),
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        )


def _root() -> int:
    """The process whose descendants are this program: of several ranks, what started them all."""
    return os.getppid() if environment.rank_of_process()[1] > 1 else os.getpid()


def _usable_cores() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def _ticks_ns(ticks: int) -> int:
    return ticks * 1_000_000_000 // int(os.sysconf("SC_CLK_TCK"))


def _busy_ns(cores: frozenset[int]) -> int | None:
    """The time that these cores worked or another virtual machine had them; None where it is not counted."""
    text = _text(_PROC / "stat")
    if text is None or not cores:
        return None
    rows = (line.split() for line in text.splitlines() if line.startswith("cpu"))
    by_core = {fields[0]: fields for fields in rows}
    wanted = [by_core.get(f"cpu{core}") for core in sorted(cores)]
    if any(fields is None or len(fields) <= _STEAL for fields in wanted):
        return None
    return _ticks_ns(
        sum(
            int(fields[place])
            for fields in wanted
            if fields is not None
            for place in (_USER, _NICE, _SYSTEM, _STEAL)
        )
    )


def _tree_ns(root: int) -> int | None:
    """Processor time of a process and all of its descendants; None where the system does not list children."""
    ticks, waiting, seen = 0, [root], 0
    while waiting:
        process = _PROC / str(waiting.pop())
        seen += 1
        children = _children(process)
        if children is None or seen > _MOST_PROCESSES:
            if seen == 1 or seen > _MOST_PROCESSES:
                return None
            continue  # it has ended meanwhile
        waiting += children
        stat = _text(process / "stat")
        if stat is not None:  # the name, in brackets, may hold spaces
            ticks += sum(map(int, stat.rpartition(")")[2].split()[_TIMES]))
    return _ticks_ns(ticks)


def _children(process: Path) -> list[int] | None:
    texts = [_text(task / "children") for task in _tasks(process)]
    listed = [text for text in texts if text is not None]
    return [int(word) for text in listed for word in text.split()] if listed else None


def _thread_waits_ns() -> dict[int, int] | None:
    """How long each thread of this process was ready to run and had no core, since it began; without the sampler's own."""
    waits = {}
    sampler = str(line_sampler.thread_id())
    for task in (task for task in _tasks(_PROC / "self") if task.name != sampler):
        fields = (_text(task / "schedstat") or "").split()
        if len(fields) >= 2:
            waits[int(task.name)] = int(fields[1])
    return waits or None


def _tasks(process: Path) -> Iterator[Path]:
    try:
        names: Sequence[str] = os.listdir(process / "task")
    except OSError:
        return
    yield from (process / "task" / name for name in names)


def _waited(began: Mapping[int, int] | None, now: Mapping[int, int] | None) -> dict[int, int]:
    """By thread, since the beginning; a thread that began later waited all of its time since."""
    if began is None or now is None:
        return {}
    return {thread: max(wait - began.get(thread, 0), 0) for thread, wait in now.items()}


def _switches() -> int | None:
    """How often a core was taken from this process although it had work."""
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _since(began: int | None, now: int | None) -> int | None:
    return max(now - began, 0) if began is not None and now is not None else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
