"""Launches: what starting GPU work costs the host, and how long the work then waits to start."""

from __future__ import annotations

from typing import Literal

import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.host import launch_queue, runtime_calls
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.steps import StepWindow, step_windows
from foretrace.errors import MissingDataError, UsageError
from foretrace.trace import Trace
from foretrace.units import counted, format_value


@analysis(
    Subject.HOST,
    keep=(
        "name",
        "launches_count",
        "call_ns",
        "delay_ns",
        "work_ns",
        "short_pct",
        "call_total_ns",
        "call_pct",
    ),
    denominators={
        "short_pct": "of the launches with a known call duration",
        "call_pct": "of the summed duration of all launch calls",
        "launch_pct": "of the host's time in complete steps (host_ns of `steps`)",
        "launches_per_step_count": "launches within complete steps, per complete step",
        "queued_pct": "of launches_count",
    },
)
def launches(
    trace: Trace,
    *,
    by: Literal["name", "api", "outlier"] = "name",
    queue_limit: int = 1_000,
    long_call_ns: int = 50_000,
    late_ns: int = 100_000,
) -> Result:
    """What launches cost, how long their work waits to start, and how full the queue is.

    A launch is a runtime call that started GPU work (kernel, copy or memset). A CUDA graph is one launch with many
    kernels: its row is named after the call, and its work is their sum. Work without a recorded launch is excluded.
    One row per name of the work, or with by="api" per runtime call:

    launches_count, started_count    launches, and the GPU tasks they started
    call_ns                        median duration of the launch call on the host
    work_ns                        median GPU time of the work of one launch
    delay_ns                       median of (start of the work - end of the call), 0 where the work started during
                                   the call (HTA's launch delay)
    latency_ns                     median of (start of the work - start of the call) where the stream was idle when
                                   the call began: the time a launch takes when nothing delays it
    latency_min_ns                 the shortest of these latencies
    queued_count                   launches whose stream was still busy when the call ended
    queue_delay_ns                 their median delay: time in the queue, not a cost of launching
    short_count, short_pct         launches whose work took less time than the call (HTA's short kernels)
    call_total_ns, call_pct        duration of all calls, and its share of the time of all launch calls
    long_calls_count                 calls that took longer than `long_call_ns` (50 µs, HTA's runtime outliers)
    late_count                     launches whose work began more than `late_ns` after the call (100 µs, HTA's launch
                                   delay outliers)
    late_idle_count                those of them whose stream was idle: no queue explains their delay

    With by="outlier", one row per outlier, the longest first: `at_ns` (start of the call), its call and delay, and
    whether its stream was `busy` when the call ended. A call is long where the queue is full, where the
    driver loads a kernel's code or allocates, or where the host lost its processor; see `idle` and `cold-start`.

    Values: launch_pct is the time in launch calls (union over threads), of the host's time in complete steps.
    The queue depth counts launches made but not yet started: +1 when the call begins, -1 when the work starts, per
    stream. queue_mean_count is its mean over time, from the first call to the last start, for the stream with the
    largest mean. queue_full_ns is the time at or above `queue_limit` (an H200 stalls at 1,020 to 1,022; HTA uses
    1,024); buffer_full_ns is what CUPTI itself recorded as "Command Buffer Full". A full queue means that the host is
    far ahead of the GPU: it costs nothing.

    A call that finds the queue full waits for space: its duration, and so launch_pct and short_pct, then say little
    about the cost of launching. Recording makes each call about one microsecond longer. A stream that waits for an
    event of another stream counts as idle.
    """
    if queue_limit < 1:
        raise UsageError(f"launches: queue_limit must be at least 1, not {queue_limit}")
    rows = launch_queue.launched(trace)
    if rows.is_empty():
        what = "no launch is linked to GPU work" if trace.has_device else "no GPU work recorded"
        raise MissingDataError(f"{trace.path.name}: {what}; record with ProfilerActivity.CPU and CUDA")
    if min(long_call_ns, late_ns) < 0:
        raise UsageError("launches: long_call_ns and late_ns must be at least 0")
    rows = _measured(rows, long_call_ns=long_call_ns, late_ns=late_ns)
    table = _outliers(rows) if by == "outlier" else _grouped(rows, by)
    windows = [window for window in step_windows(trace) if window.averaged]
    values = {**_totals(rows), **_per_step(rows, windows), **_queue(trace, rows, queue_limit)}
    return Result(says=_says(values), table=table, values=values, notes=_notes(trace, rows, bool(windows)))


def _measured(rows: pl.DataFrame, *, long_call_ns: int, late_ns: int) -> pl.DataFrame:
    start, call, end, free = (pl.col(name) for name in ("start_ns", "call_ns", "call_end_ns", "free_ns"))
    idle = free.is_null() | (free <= call)
    return rows.with_columns(
        length_ns=end - call,
        delay_ns=(start - end).clip(lower_bound=0),
        latency_ns=pl.when(idle).then((start - call).clip(lower_bound=0)),
        queued=(free > end).fill_null(value=False),
        short=pl.col("dur_ns") < end - call,
        long_call=(end - call > long_call_ns).fill_null(value=False),
        late=(start - end > late_ns).fill_null(value=False),
    )


def _grouped(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """One row per name, the most time in calls first."""
    known = pl.col("short").count()
    table = rows.group_by(pl.col(key).alias("name")).agg(
        launches_count=pl.len(),
        started_count=pl.col("started_count").sum(),
        call_ns=pl.col("length_ns").median(),
        work_ns=pl.col("dur_ns").median(),
        delay_ns=pl.col("delay_ns").median(),
        latency_ns=pl.col("latency_ns").median(),
        latency_min_ns=pl.col("latency_ns").min(),
        queued_count=pl.col("queued").sum(),
        queue_delay_ns=pl.col("delay_ns").filter(pl.col("queued")).median(),
        short_count=pl.when(known > 0).then(pl.col("short").sum()),
        short_pct=pl.when(known > 0).then(100 * pl.col("short").sum() / known),
        call_total_ns=pl.when(known > 0).then(pl.col("length_ns").sum()),
        **_outlier_counts(),
    )
    total = int(table["call_total_ns"].sum())
    share = 100 * pl.col("call_total_ns") / total if total else pl.lit(None, pl.Float64)
    columns = table.columns
    place = columns.index("call_total_ns") + 1
    shared = table.with_columns(pl.col("name").cast(pl.String), call_pct=share)
    return shared.select(*columns[:place], "call_pct", *columns[place:]).sort(
        "call_total_ns", "name", descending=[True, False], nulls_last=True
    )


def _outlier_counts() -> dict[str, pl.Expr]:
    late = pl.col("late")
    return {
        "long_calls_count": pl.col("long_call").sum(),
        "late_count": late.sum(),
        "late_idle_count": (late & ~pl.col("queued")).sum(),
    }


def _outliers(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per launch whose call or delay is an outlier, the longest first."""
    odd = rows.filter(pl.col("long_call") | pl.col("late"))
    why = [
        pl.when(pl.col("long_call")).then(pl.lit("long call")),
        pl.when(pl.col("late") & pl.col("queued")).then(pl.lit("late behind other work")),
        pl.when(pl.col("late") & ~pl.col("queued")).then(pl.lit("late on an idle stream")),
    ]
    longest = pl.max_horizontal("length_ns", "delay_ns")
    return odd.sort(longest, "call_ns", descending=[True, False]).select(
        pl.col("name", "api").cast(pl.String),
        pl.concat_str(why, separator=", ", ignore_nulls=True).alias("outlier"),
        "step",
        pl.col("call_ns").alias("at_ns"),
        pl.col("length_ns").alias("call_ns"),
        "delay_ns",
        pl.col("queued").alias("busy"),
    )


def _totals(rows: pl.DataFrame) -> dict[str, Value]:
    known = int(rows["short"].count())
    short = int(rows["short"].sum())
    latency = rows["latency_ns"].median()
    return {
        "launches_count": rows.height,
        "started_count": int(rows["started_count"].sum()),
        "call_ns": int(rows["length_ns"].sum()) if known else None,
        "short_count": short if known else None,
        "short_pct": 100 * short / known if known else None,
        "latency_ns": float(latency) if isinstance(latency, int | float) else None,
        "queued_pct": 100 * int(rows["queued"].sum()) / rows.height,
        **rows.select(**_outlier_counts()).row(0, named=True),
    }


def _per_step(rows: pl.DataFrame, windows: list[StepWindow]) -> dict[str, Value]:
    """Launches per complete step, and the share of the steps' host time spent in launch calls."""
    host_ns = sum(window.host_ns for window in windows)
    numbers = [window.number for window in windows]
    in_steps = rows.filter(pl.col("step").is_in(numbers)) if windows else rows.clear()
    calls = in_steps.drop_nulls("call_end_ns")
    inside = intervals.union(calls["call_ns"].to_numpy(), calls["call_end_ns"].to_numpy()).total_ns
    return {
        "launches_per_step_count": in_steps.height / len(windows) if windows else None,
        "launch_pct": min(100 * inside / host_ns, 100.0) if host_ns else None,
    }


def _queue(trace: Trace, rows: pl.DataFrame, limit: int) -> dict[str, Value]:
    depth = launch_queue.depth_of(rows)
    held = depth.with_columns(held_ns=pl.Series(launch_queue.lasting_ns(depth)))
    streams = held.group_by("device", "stream").agg(
        mean=pl.when(pl.col("held_ns").sum() > 0).then(
            (pl.col("depth_count") * pl.col("held_ns")).sum() / pl.col("held_ns").sum()
        )
    )
    full = held.filter(pl.col("depth_count") >= limit)
    at = full["at_ns"].to_numpy()
    overhead = trace.spans.filter(pl.col("kind") == "overhead")
    waits = overhead.filter(pl.col("name").cast(pl.String) == runtime_calls.QUEUE_FULL)
    mean = streams["mean"].max()
    return {
        "queue_max_count": int(depth["depth_count"].max() or 0),  # type: ignore[arg-type]
        "queue_mean_count": float(mean) if isinstance(mean, int | float) else None,
        "queue_full_ns": intervals.union(at, at + full["held_ns"].to_numpy()).total_ns,
        "buffer_full_ns": int(waits["dur_ns"].sum()) if waits.height else None,
    }


def _says(values: dict[str, Value]) -> str:
    count = int(values["launches_count"] or 0)
    often = values["launches_per_step_count"]
    per_step = f" ({format_value('', often)} per step)" if isinstance(often, float) else ""
    share = values["launch_pct"]
    cost = f", {format_value('_pct', share)} of the host's time" if share is not None else ""
    short = f"; {format_value('_pct', values['short_pct'])} start work that is shorter than the call"
    latency = (
        f"; {format_value('_ns', values['latency_ns'])} from call to start on an idle stream"
        if values["latency_ns"] is not None
        else "; the stream was never idle"
    )
    return f"{counted(count, 'launch call')}{per_step}{cost}{short}{latency}{_says_outliers(values)}"


def _says_outliers(values: dict[str, Value]) -> str:
    """The outliers that no queue explains, if there are any."""
    calls, late = int(values["long_calls_count"] or 0), int(values["late_idle_count"] or 0)
    parts = [f"{counted(calls, 'long call')}"] if calls else []
    parts += [f"{counted(late, 'late start')} on an idle stream"] if late else []
    return f"; outliers: {', '.join(parts)}" if parts else ""


def _notes(trace: Trace, rows: pl.DataFrame, has_steps: bool) -> tuple[str, ...]:
    notes = []
    unlinked = trace.device_spans.height - int(rows["started_count"].sum())
    if unlinked:
        notes.append(f"{counted(unlinked, 'GPU task')} without a recorded launch: excluded")
    early = rows.filter(pl.col("start_ns") < pl.col("call_ns")).height
    if early:
        notes.append(
            f"{counted(early, 'GPU task')} started before the launch call: the clocks disagree; the delay counts as 0"
        )
    if not has_steps:
        notes.append("no steps recorded: launches per step and launch_pct are not known")
    return tuple(notes)
