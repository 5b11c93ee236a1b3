"""Opening: a path becomes a Case, with all that lies beside the recording, for every command and the page alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from foretrace.diagnose.case import Case
from foretrace.ingest import open_trace
from foretrace.ingest.ranks import find_others
from foretrace.ingest.reading import Reading
from foretrace.ingest.recordings import find_recording, is_recording
from foretrace.trace import Trace

_AS_FOUND = Reading()


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
    return Case(
        recorded.told(read(recorded.path, reading)),
        step_ns=step_ms * 1e6 if step_ms else None,
        timed=recorded.timed if own_steps else None,
        open_rich=partial(read, rich, others) if rich else None,
        open_ranks=lambda: [read(other, others) for other in find_others(recorded.path)],
        of_sums=of_sums,
    )
