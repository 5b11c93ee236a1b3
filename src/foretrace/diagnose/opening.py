"""Opening: a path becomes a Case, with all that lies beside the recording, for every command and the page alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from foretrace.diagnose.case import Case
from foretrace.ingest import open_trace
from foretrace.ingest.ranks import find_others
from foretrace.ingest.recordings import find_recording, is_recording
from foretrace.trace import Trace


def open_case(
    path: Path,
    *,
    step_ms: float | None = None,
    rich: Path | None = None,
    read: Callable[[Path], Trace] = open_trace,
) -> Case:
    """The Case of the recording that a file, a folder, a Run or the ranks of one job mean.

    A Run gives the step time measured without a profiler and the rich pass, where the caller names none.
    `read` reads a recording: the caller decides about the cache and who is told how far it is.
    """
    recorded = find_recording(path, of_ranks=True)
    if rich is None and recorded.rich is not None and is_recording(recorded.rich):
        rich = recorded.rich
    if step_ms is None and recorded.step_ns is not None:
        step_ms = recorded.step_ns / 1e6
    return Case(
        recorded.told(read(recorded.path)),
        step_ns=step_ms * 1e6 if step_ms else None,
        timed=recorded.timed,
        open_rich=partial(read, rich) if rich else None,
        open_ranks=lambda: [read(other) for other in find_others(recorded.path)],
    )
