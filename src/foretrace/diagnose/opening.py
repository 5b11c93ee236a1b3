"""Opening: a path becomes a Case, with all that lies beside the recording, for every command and the page alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

from foretrace.diagnose.case import Case
from foretrace.errors import ForetraceError
from foretrace.ingest import open_trace
from foretrace.ingest.ranks import find_others, unreadable_others
from foretrace.ingest.reading import Reading
from foretrace.ingest.recordings import find_recording, is_recording
from foretrace.trace import Trace

_AS_FOUND = Reading()
_LISTED = 3


def _open(path: Path, reading: Reading) -> Trace:
    return open_trace(path, step=reading.step, pid=reading.pid, capture_traces=reading.capture_traces)


def open_case(
    path: Path,
    *,
    step_ms: float | None = None,
    rich: Path | None = None,
    reading: Reading = _AS_FOUND,
    read: Callable[[Path, Reading], Trace] = _open,
    of_sums: bool = False,
) -> Case:
    """The Case of the recording that a file, a folder, a Run or the ranks of one job mean.

    A Run gives the step time measured without a profiler and the rich pass, where the caller names none.
    `reading` is what the user says of its steps and process. `read` reads a recording: the caller decides about the cache
    and who is told how far it is. With `of_sums`, tables without a timeline will do.
    """
    others = reading.of_others()
    recorded = find_recording(path, of_ranks=True, counters=reading.counters)
    if rich is None and recorded.rich is not None and is_recording(recorded.rich):
        rich = recorded.rich
    own_steps = reading.step is None  # a Run timed its own steps, not those that the user names
    if step_ms is None and recorded.step_ns is not None and own_steps:
        step_ms = recorded.step_ns / 1e6
    trace = recorded.told(read(recorded.path, reading))
    other_ranks = _OtherRanks(recorded.path, lambda other: read(other, others), trace.meta.get("world_size"))
    return Case(
        trace,
        step_ns=step_ms * 1e6 if step_ms else None,
        timed=recorded.timed if own_steps else None,
        open_rich=partial(read, rich, others) if rich else None,
        open_ranks=other_ranks.open,
        read_in_part=other_ranks.read_in_part if path.is_dir() else None,
        of_sums=of_sums,
    )


class _OtherRanks:
    """The recordings of a job's other ranks; one that cannot be read does not keep the others from being read."""

    def __init__(self, path: Path, read: Callable[[Path], Trace], world: object) -> None:
        self._path, self._read, self._world = path, read, world
        self._unread: dict[Path, str] = {}

    @cached_property
    def _paths(self) -> tuple[Path, ...]:
        return find_others(self._path)

    def open(self) -> list[Trace]:
        """Those that can be read."""
        traces = []
        for other in self._paths:
            try:
                traces.append(self._read(other))
            except ForetraceError as error:
                self._unread[other] = str(error)
        return traces

    def read_in_part(self) -> str:
        """How many of the job's ranks were read, where it is not all of them, or of one rank alone."""
        if not isinstance(self._world, int) or self._world < 2:
            return ""
        for file in unreadable_others(self._path, self._paths):
            self._unread.setdefault(file, f"{file.name}: not a recording of a rank")
        read = 1 + sum(other not in self._unread for other in self._paths)
        if read >= self._world or (read == 1 and not self._unread):
            return ""
        reasons = "; ".join(list(self._unread.values())[:_LISTED])
        more = f" and {len(self._unread) - _LISTED} more" if len(self._unread) > _LISTED else ""
        return f"Read in part: {read} of {self._world} ranks" + (f" ({reasons}{more})" if reasons else "")
