"""What a notebook or a program asks: `foretrace.diagnose`, `predict`, `compare`, `memory`, `ranks` and `sql`, as the commands answer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.commands import _query
from foretrace.errors import InputError, UsageError
from foretrace.urls import located, named, shown

if TYPE_CHECKING:
    import polars as pl

    from foretrace.analyze.snapshots.findings import SnapshotFindings
    from foretrace.compare.traces import Comparison
    from foretrace.diagnose.case import Case
    from foretrace.diagnose.diagnosis import Diagnosis
    from foretrace.predict.prediction import Prediction
    from foretrace.ranks.reduce import Ranks
    from foretrace.trace import Trace


def diagnose(
    recording: str | os.PathLike[str] | Trace,
    *,
    step_ms: float | None = None,
    rich: str | os.PathLike[str] | None = None,
    step: str | None = None,
    pid: str | int | None = None,
    ncu: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    cache: bool = True,
) -> Diagnosis:
    """What to change in a recorded program, the most valuable change first, as `foretrace diagnose` says it.

    `recording` is a file, a folder with one recording, a Run, the recordings of all ranks of a job, or a Trace that was opened.
    `step_ms` is the step time measured without a profiler, `rich` a recording of the same program with stacks, for source
    lines; a Run has both. `step` and `pid` are those of `foretrace.open`. `ncu` is a file, or several, with counters of the same program's kernels
    (CSV or reports of Nsight Compute). Without `cache`, nothing is read from or kept in it.

    Returns a Diagnosis: `findings`, each with `rule`, `says`, `where`, `fix` and `predicted`; `combined`, the prediction for
    all fixes that promise a gain; `checked`, `unchecked` and `seen`. Raises MissingDataError where the recording cannot be
    replayed.
    """
    from foretrace.diagnose import RULES
    from foretrace.diagnose.diagnosis import diagnose as diagnose_case

    case = _case(recording, step_ms=step_ms, rich=rich, step=step, pid=pid, ncu=ncu, cache=cache)
    case.require_replay()
    return diagnose_case(case, RULES)


def predict(
    recording: str | os.PathLike[str] | Trace,
    *changes: str,
    step_ms: float | None = None,
    rich: str | os.PathLike[str] | None = None,
    step: str | None = None,
    pid: str | int | None = None,
    ncu: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    cache: bool = True,
) -> Prediction:
    """What a step would take with these changes made together, as `foretrace predict` says it.

    `changes` are texts such as "scale kernel:~softmax 0.5", "compile" or "fix unfused-attention"; `foretrace predict --help`
    lists them. The options are those of `foretrace.diagnose`.

    Returns a Prediction: `verdict`, `step_ns`, `after_ns` and `speedup` (each with `point`, `low` and `high`), `basis`.
    """
    from foretrace.commands.predict import change_of

    if not changes:
        raise UsageError('predict needs a change, such as "scale kernel:~softmax 0.5"')
    case = _case(recording, step_ms=step_ms, rich=rich, step=step, pid=pid, ncu=ncu, cache=cache)
    return case.predict(tuple(change_of(case, text) for text in changes))


def compare(
    before: str | os.PathLike[str] | Trace,
    after: str | os.PathLike[str] | Trace,
    *,
    step: str | None = None,
    pid: str | int | None = None,
    cache: bool = True,
) -> Comparison:
    """Which of two recordings is faster, and what explains the difference, as `foretrace compare` says it.

    `before` and `after` are files, folders with one recording, Runs, or Traces that were opened. The options are those of
    `foretrace.diagnose`.

    Returns a Comparison: `says`, `notes`, and `steps` with `verdict`, `before_ns`, `after_ns`, `speedup` (`point`, `low` and
    `high`) and `causes`, which sum to the difference, each with `what`, `before_ns`, `after_ns` and `delta_ns`; and the tables
    `roles`, `modules`, `operators` and `kernels`, as polars frames.
    """
    from foretrace.compare.traces import compare as compare_cases
    from foretrace.trace import Trace

    both = (before, after)
    first, second = (
        _case(recording, step_ms=None, rich=None, step=step, pid=pid, cache=cache) for recording in both
    )
    one, other = (
        (recording.path if isinstance(recording, Trace) else located(recording)).name for recording in both
    )
    return compare_cases(first, second, names=(one, other))


def memory(
    path: str | os.PathLike[str],
    *,
    device: int | None = None,
    step_times_ns: Sequence[tuple[int, int]] | None = None,
) -> SnapshotFindings:
    """Who held GPU memory at the peak, what leaks and what is wasted, as `foretrace memory` says it of a snapshot.

    `path` is a snapshot of torch's CUDA allocator or a Run with one; nothing in it is run. `step_times_ns` are the starts and ends
    of steps on the Unix clock, where the history does not tell them.

    Returns SnapshotFindings: `devices`, each with `leaks`, `layers`, `fragmentation`, `out_of_memory`, `flushes` and `steps`;
    `says`, `notes`, and `to_dict()`, the document of `--format json`.
    """
    from foretrace.analyze.snapshots.opening import open_findings

    found = open_findings(named(path), device=device, step_times_ns=step_times_ns)
    if found is None:
        raise InputError(
            f"{shown(path)}: no memory snapshot; of a recording, foretrace.analyze.run(foretrace.open(path), 'memory') tells"
        )
    return found


def sql(
    recording: str | os.PathLike[str] | Trace,
    query: str,
    *,
    timeout_s: float = _query.DEFAULT_TIMEOUT_S,
    most_rows: int = _query.DEFAULT_MOST_ROWS,
    step: str | None = None,
    pid: str | int | None = None,
    cache: bool = True,
) -> pl.DataFrame:
    """What an SQL query over the tables of a recording yields, as `foretrace sql` says it: a polars frame.

    "show tables" and "describe TABLE" are answered too. A query reads these tables and no files, and is stopped after
    `timeout_s` seconds; of a longer result the first `most_rows` come, with a warning. 0 is no limit.
    """
    from foretrace.commands.sql import query as ask

    _query.check(query)
    answered = ask(
        _trace(recording, step=step, pid=pid, cache=cache), query, timeout_s=timeout_s, most_rows=most_rows
    )
    if answered.cut:
        warnings.warn(f"sql: cut at {most_rows:,} rows, there are more; see most_rows", stacklevel=2)
    return answered.frame


def ranks(
    recordings: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    on: str = "local",
    ranks_per_node: int | None = None,
    out: str | os.PathLike[str] | None = None,
    cycle: int | None = None,
) -> Ranks:
    """The ranks of a job on one clock, and what holds them up: of a folder, a pattern, or recordings named one by one.

    `on` is the engine: `local`, `ray`, or the address of a Ray cluster. `out` is a folder that keeps each rank's summary.
    `cycle` is the profiling cycle to compare, 1 is the oldest. Recordings that are not compared are listed in `unused` of the result.
    """
    from foretrace.ranks.job import read_job

    paths = [recordings] if isinstance(recordings, str | os.PathLike) else list(recordings)
    return read_job(paths, on=on, ranks_per_node=ranks_per_node, out=out, cycle=cycle)


def _case(
    recording: str | os.PathLike[str] | Trace,
    *,
    step_ms: float | None,
    rich: str | os.PathLike[str] | None,
    step: str | None,
    pid: str | int | None,
    cache: bool,
    ncu: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
) -> Case:
    from foretrace.diagnose import opening
    from foretrace.diagnose.case import Case
    from foretrace.ingest import open_trace
    from foretrace.ingest.reading import Reading
    from foretrace.ingest.run import Recorded
    from foretrace.trace import Trace

    if step_ms is not None and not 0 < step_ms < 1e9:
        raise UsageError(f"step_ms={step_ms}: a time in milliseconds is above 0")

    def read(path: Path, reading: Reading) -> Trace:
        return open_trace(path, cache=cache, step=reading.step, pid=reading.pid)

    companion = None if rich is None else located(rich)
    counters = tuple(located(file) for file in ((ncu,) if isinstance(ncu, str | os.PathLike) else ncu))
    if isinstance(recording, Trace):
        _check_unread(step, pid)
        recording = Recorded(recording.path, counters=counters).told(recording) if counters else recording
        open_rich = None if companion is None else lambda: read(companion, Reading())
        return Case(recording, step_ns=step_ms * 1e6 if step_ms else None, open_rich=open_rich)
    reading = Reading(step, None if pid is None else str(pid), counters=counters)
    return opening.open_case(named(recording), step_ms=step_ms, rich=companion, reading=reading, read=read)


def _trace(
    recording: str | os.PathLike[str] | Trace, *, step: str | None, pid: str | int | None, cache: bool
) -> Trace:
    from foretrace.ingest import open_trace
    from foretrace.ingest.recordings import find_recording
    from foretrace.trace import Trace

    if isinstance(recording, Trace):
        _check_unread(step, pid)
        return recording
    recorded = find_recording(named(recording))
    return recorded.told(open_trace(recorded.path, cache=cache, step=step, pid=pid))


def _check_unread(step: str | None, pid: str | int | None) -> None:
    """Raises UsageError where a Trace is to be read in another way: that was decided when it was opened."""
    if step is not None or pid is not None:
        raise UsageError("step and pid are for a path: a Trace was opened with its own, by foretrace.open")
