"""Input: how long the program waited for its DataLoader, and whether the GPU was busy during that time."""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.steps import step_windows
from foretrace.errors import MissingDataError
from foretrace.ingest.timed import LoaderTimes
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_COLUMNS = ("step", "calls_count", "wait_ns", "host_ns", "wait_pct", "device_idle_ns", "device_idle_pct")


@analysis(
    Subject.HOST,
    denominators={
        "wait_pct": "of the host's time in steps (host_ns); not known without steps",
        "device_idle_pct": "of wait_ns: the part in which every GPU was idle",
        "unprofiled_wait_pct": "of the mean step without the profiler; only Runs know it",
    },
)
def input(trace: Trace) -> Result:
    """How long each step waited for its DataLoader, and whether the GPU was busy during that time.

    A wait is a call of a DataLoader's (or DataPipe's) __next__, which the DataLoader itself records; nested calls count
    once. One row per step, and one without a number for waits outside all steps:

    calls_count       waits that began in the step
    wait_ns           their time within the step, on the host
    wait_pct          of host_ns, the step's duration on the host
    device_idle_ns    the part of wait_ns in which every GPU was idle: the most that faster input could save
    device_idle_pct   of wait_ns

    Values are sums over the steps. `loader` says how the data is loaded: "in the main process" (num_workers=0: loading
    itself is in the wait) or "by workers" (the wait is for a worker to finish); the number of workers is not recorded.

    Ten recorded steps are no sample of waits that come in bursts. A Run has measured those of all steps that it timed
    without the profiler: `unprofiled_steps_count` of them waited `unprofiled_wait_per_step_ns` on average,
    `unprofiled_waiting_steps_count` of them for more than 5 % of a step.

    dataloader_pct of `steps` is smaller: it counts only the part of the step's wall time without GPU or runtime work.
    Data that a program fetches without a DataLoader is not seen here.
    """
    host = trace.spans.filter(pl.col("kind").is_in(("op", "annotation")) & pl.col("dur_ns").is_not_null())
    if host.is_empty():
        raise MissingDataError(f"{trace.path.name}: no operators recorded; record with ProfilerActivity.CPU")
    waits = host.filter(pl.col("name").is_in(device_time.names_like(host, runtime_calls.DATA_LOADING)))
    on_host = trace.tracks.filter(pl.col("device").is_null() & pl.col("stream").is_null())["id"]
    waits = waits.filter(pl.col("track_id").is_in(on_host.implode()))
    table = _table(trace, waits)
    values = {**_values(table, waits), **_unprofiled(trace.meta.get("loader"))}
    return Result(says=_says(values), table=table, values=values, notes=_notes(trace, waits))


def _table(trace: Trace, waits: pl.DataFrame) -> pl.DataFrame:
    steps = {step.number: step for step in trace.steps}
    windows = [steps[window.number] for window in step_windows(trace)]
    start = waits["start_ns"].to_numpy()
    waiting = intervals.union(start, start + waits["dur_ns"].to_numpy())
    idle = intervals.subtract(waiting, device_time.covered(trace.device_spans))
    begins = np.array([window.start_ns for window in windows], np.int64)
    ends = np.array([window.end_ns for window in windows], np.int64)
    in_steps = intervals.covered_ns(waiting, begins, ends)
    idle_in_steps = intervals.covered_ns(idle, begins, ends)
    counts = ((start[None, :] >= begins[:, None]) & (start[None, :] < ends[:, None])).sum(axis=1)
    steps_union = intervals.union(begins, ends)
    outside = intervals.subtract(waiting, steps_union) if len(begins) else waiting
    idle_outside = intervals.subtract(idle, steps_union) if len(begins) else idle
    rest = waits.height - int(counts.sum())
    columns = {
        "step": [*(window.number for window in windows), None],
        "calls_count": [*counts.tolist(), rest],
        "wait_ns": [*in_steps.tolist(), outside.total_ns],
        "host_ns": [*(ends - begins).tolist(), None],
        "device_idle_ns": [*idle_in_steps.tolist(), idle_outside.total_ns],
    }
    types = {name: pl.Int32 if name == "step" else pl.Int64 for name in columns}
    table = pl.DataFrame(columns, schema=types)
    if not trace.has_device:
        table = table.with_columns(device_idle_ns=pl.lit(None, pl.Int64))
    if windows and not outside.total_ns and not rest:
        table = table.filter(pl.col("step").is_not_null())
    return table.with_columns(
        wait_pct=pl.when(pl.col("host_ns") > 0).then(100 * pl.col("wait_ns") / pl.col("host_ns")),
        device_idle_pct=pl.when(pl.col("wait_ns") > 0).then(
            100 * pl.col("device_idle_ns") / pl.col("wait_ns")
        ),
    ).select(_COLUMNS)


def _values(table: pl.DataFrame, waits: pl.DataFrame) -> dict[str, Value]:
    inside = table.filter(pl.col("step").is_not_null())
    chosen = inside if inside.height else table
    wait, host = int(chosen["wait_ns"].sum()), int(chosen["host_ns"].sum())
    known = chosen["device_idle_ns"].null_count() == 0
    idle = int(chosen["device_idle_ns"].sum()) if known else None
    return {
        "steps_count": inside.height,
        "calls_count": waits.height,
        "wait_ns": wait,
        "wait_pct": 100 * wait / host if host else None,
        "wait_per_step_ns": round(wait / inside.height) if inside.height else None,
        "device_idle_ns": idle,
        "device_idle_pct": 100 * idle / wait if wait and idle is not None else None,
        "loader": _loader(waits),
    }


def _unprofiled(loader: object) -> dict[str, Value]:
    """What a Run has measured of its unprofiled steps."""
    if not isinstance(loader, LoaderTimes):
        return {}
    return {
        "unprofiled_steps_count": loader.steps,
        "unprofiled_waiting_steps_count": loader.waiting_steps,
        "unprofiled_wait_per_step_ns": round(loader.mean_ns),
        "unprofiled_wait_pct": 100 * loader.mean_ns / loader.step_ns,
    }


def _loader(waits: pl.DataFrame) -> str | None:
    names = waits["name"].unique().cast(pl.String)
    kinds = []
    if names.str.contains("_SingleProcess").any():
        kinds.append("in the main process")
    if names.str.contains("_MultiProcessing").any():
        kinds.append("by workers")
    return " and ".join(kinds) if kinds else "unknown" if waits.height else None


def _says(values: dict[str, Value]) -> str:
    count = int(values["calls_count"] or 0)
    beside = _says_unprofiled(values)
    if not count:
        return f"the program did not wait for a DataLoader{beside}"
    share = (
        f" ({format_value('_pct', values['wait_pct'])} of the host's time)"
        if values["wait_pct"] is not None
        else ""
    )
    idle = values["device_idle_pct"]
    meanwhile = f"; the GPU was idle for {format_value('_pct', idle)} of that" if idle is not None else ""
    steps = int(values["steps_count"] or 0)
    where = f" in {counted(steps, 'step')}" if steps else ""
    return (
        f"waited {format_value('_ns', values['wait_ns'])} for the DataLoader{where}{share}{meanwhile}{beside}"
    )


def _says_unprofiled(values: dict[str, Value]) -> str:
    if "unprofiled_steps_count" not in values:
        return ""
    waiting, steps = values["unprofiled_waiting_steps_count"], int(values["unprofiled_steps_count"] or 0)
    wait, share = values["unprofiled_wait_per_step_ns"], values["unprofiled_wait_pct"]
    return (
        f"; without the profiler {waiting} of {counted(steps, 'step')} waited, on average "
        f"{format_value('_ns', wait)} a step ({format_value('_pct', share)} of it)"
    )


def _notes(trace: Trace, waits: pl.DataFrame) -> tuple[str, ...]:
    notes = []
    if waits.is_empty():
        notes.append("only DataLoaders are seen here, not data that the program fetches in another way")
    if not trace.steps:
        notes.append("no steps recorded: shares are not known")
    if not trace.has_device:
        notes.append("no GPU work recorded")
    return tuple(notes)
