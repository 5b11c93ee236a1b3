"""Idle: when a GPU had nothing to run, and what it was waiting for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.host.idle_causes import CAUSES, Explainer, Gaps, find_gaps
from foretrace.analyze.concepts.host.runtime_calls import NOBODY, HostSpans, Ids
from foretrace.analyze.concepts.trees.source_places import Places
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.syncs import blocking_calls
from foretrace.analyze.timeline import DeviceWindow, Over, device_windows, free_time
from foretrace.errors import UsageError
from foretrace.intervals import Intervals
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_HOST = ("host: operator", "host: runtime call", "host: Python", "host: not recorded")


@dataclass(frozen=True)
class ExplainedGaps:
    """All gaps of all devices, and the parts that each is cut into."""

    gaps: pl.DataFrame  # gap, device, start_ns, idle_ns, before_id, after_id, launch_id
    parts: pl.DataFrame  # gap, part_at_ns, part_ns, cause, span_id
    span_ns: int


@analysis(
    Subject.LIMIT,
    keep=("cause", "total_ns", "share_pct", "where", "doing", "gaps_count"),
    denominators={
        "idle_pct": "of the timeline's span, summed over devices",
        "host_pct": "of all idle time: waiting for the host's operators, calls, Python code and launches",
        "after_sync_pct": "of all idle time: gaps that began while the host was in a blocking call",
        "share_pct": "of all idle time",
        "span_pct": "of the timeline's span, summed over devices",
        "cause_pct": "of the gap",
    },
)
def idle(
    trace: Trace,
    *,
    view: Literal["causes", "places", "gaps"] = "causes",
    over: Over = "steps",
    min_gap_ns: int = 1_000,
    gaps_count: int = 100,
) -> Result:
    """When the GPU was idle, and what it was waiting for.

    A gap is a stretch of time in which nothing ran on any stream of a GPU: no kernel, copy or memset, including work
    queued before the recording began. The gaps sum to idle_ns of `timeline` with the same `over`. Every gap is cut
    into parts with one cause each, so the parts sum to the gaps. The cause follows from the work that ends the gap:

    kernel-to-kernel    it had been launched before the gap began: the pause between two kernels; also every gap
                        shorter than `min_gap_ns`
    queued              it had been launched, but did not start for 30 us or more: a wait for another stream, an
                        event, another rank or another process on the GPU
    launch call         the host was in the call that launched it
    launch latency      from the end of that call to the start of the work

    Before that call, the thread that made it was:

    input               inside a DataLoader's __next__
    sync                in a call that waits for the GPU (cudaStreamSynchronize, ...)
    copy                in a copy call: preparing or waiting for a copy
    allocator           in cudaMalloc, cudaFree, cudaHostAlloc, ...
    communication       in a collective that runs on the host (gloo, MPI, UCC)
    host: operator      in an operator, outside runtime calls
    host: runtime call  in another runtime call
    host: Python        in Python code outside operators (only where stacks were recorded)
    host: not recorded  in nothing recorded: Python code without recorded stacks, or waiting

    Independently of the thread:

    profiler            the profiler itself was working (buffers, profiler.step())
    code loading        GPU code was loaded or compiled on first use
    unexplained         the launch of the work that ends the gap is not known

    If the launching thread had no operator or call open, the thread that launched the work before the gap is used
    instead. share_pct is of all idle time, span_pct of the timeline's span, summed over devices.

    view="causes": one row per cause; `doing` and `where` name what most of its time was spent on.
    view="places": one row per cause, activity of the host and source line.
    view="gaps": the `gaps_count` longest gaps, each with its largest cause, the work before and after, and the host's
    innermost call (`doing`), source line and module in the longest part of that cause. `sync_before` is the blocking
    call that the host was in when the gap began: it let the queue run empty. The values after_sync_ns and
    after_sync_pct sum such gaps completely, whatever their causes.

    The host may have been late for a reason that began before the gap: a gap after a sync is attributed to what the
    host did afterwards, not to the sync (see idle_after_ns of `syncs`). Source lines are the first line of a function,
    as recorded.
    """
    if min_gap_ns < 0 or gaps_count < 1:
        raise UsageError("idle: min_gap_ns cannot be negative and gaps_count must be at least 1")
    host = HostSpans(trace)
    windows = device_windows(trace, device_time.device_work(trace), over=over)
    explained = explain_gaps(trace, host, windows, min_gap_ns=min_gap_ns)
    return _shown(trace, host, explained, longest=gaps_count if view == "gaps" else None, view=view)


def _shown(
    trace: Trace, host: HostSpans, explained: ExplainedGaps, *, longest: int | None, view: str
) -> Result:
    """The gaps as a table: the `longest` of them one by one, or all by cause or place."""
    places, by_cause, calls = Places(trace, host), _by_cause(explained), blocking_calls(trace, host)
    if longest is not None:
        table = _gaps(trace, places, explained, calls, longest)
    else:
        named = _named(trace, places, explained.parts)
        table = _causes(by_cause, named) if view == "causes" else _places(explained, named)
    values = _values(explained, by_cause, calls)
    return Result(says=_says(values, by_cause), table=table, values=values, notes=_notes(explained, places))


def explain_gaps(
    trace: Trace,
    host: HostSpans,
    windows: list[DeviceWindow],
    *,
    min_gap_ns: int,
    least_ns: int = 0,
    most: int | None = None,
) -> ExplainedGaps:
    """The gaps of every device within its window, explained; of each device the `most` longest from `least_ns` on."""
    work = device_time.device_work(trace)
    explainer = Explainer(trace, host)
    gaps, parts, span_ns, count = [], [], 0, 0
    for device, _, period in windows:
        of_device = work.filter(pl.col("device").eq_missing(device))
        free = _longest(free_time(of_device, period), least_ns, most)
        device_gaps = find_gaps(of_device, free)
        causes = explainer.explain(device_gaps, min_gap_ns)
        parts.append(causes.with_columns(pl.col("gap") + count))
        gaps.append(_gap_frame(device, device_gaps, count))
        span_ns += period.length_ns
        count += len(free.start)
    return ExplainedGaps(pl.concat(gaps), pl.concat(parts), span_ns)


def _longest(free: Intervals, least_ns: int, most: int | None) -> Intervals:
    """The intervals that are long enough, in order; no more than the `most` longest."""
    length = free.end - free.start
    chosen = np.flatnonzero(length >= least_ns)
    if most is not None and len(chosen) > most:
        chosen = np.sort(chosen[np.argsort(-length[chosen], kind="stable")[:most]])
    return Intervals(free.start[chosen], free.end[chosen])


def _gap_frame(device: int | None, gaps: Gaps, first: int) -> pl.DataFrame:
    ids = {"before_id": gaps.before, "after_id": gaps.after, "launch_id": gaps.launch}
    count = len(gaps.before)
    return pl.DataFrame(
        {
            "gap": pl.Series(np.arange(first, first + count), dtype=pl.Int64),
            "device": pl.Series([device], dtype=pl.Int32).extend_constant(device, count)[:count],
            "start_ns": pl.Series(gaps.free.start, dtype=pl.Int64),
            "idle_ns": pl.Series(gaps.free.end - gaps.free.start, dtype=pl.Int64),
            **{name: pl.Series(column, dtype=pl.Int64).replace(NOBODY, None) for name, column in ids.items()},
        }
    )


def _named(trace: Trace, places: Places, rows: pl.DataFrame) -> pl.DataFrame:
    """Parts summed by cause, what the host was doing and where."""
    ids = rows["span_id"]
    frame = pl.Series(places.frames(ids.fill_null(NOBODY).to_numpy()), dtype=pl.Int64)
    keyed = rows.select("cause", "gap", "part_ns", name=trace.spans["name"].gather(ids), frame=frame)
    grouped = keyed.group_by("cause", "name", "frame").agg(
        gaps_count=pl.col("gap").n_unique(),
        part_ns=pl.col("part_ns").sum(),
        longest_ns=pl.col("part_ns").max(),
    )
    return grouped.select(
        "cause",
        _plain(grouped["name"]).alias("doing"),
        places.text(grouped["frame"]).alias("where"),
        "gaps_count",
        "part_ns",
        "longest_ns",
    )


def _plain(names: pl.Series) -> pl.Series:
    """The names without addresses and step numbers, which would split one place into a thousand."""
    text = names.cast(pl.String).str.replace(r" at 0x[0-9a-fA-F]+", "")
    return text.str.replace(r"^(ProfilerStep)#\d+$", "$1")


def _by_cause(explained: ExplainedGaps) -> pl.DataFrame:
    """One row per cause that occurs, the largest first."""
    of_gaps = explained.parts.group_by("cause", "gap").agg(pl.col("part_ns").sum())
    grouped = of_gaps.group_by("cause").agg(
        pl.col("gap").n_unique().alias("gaps_count"),
        pl.col("part_ns").sum().alias("total_ns"),
        pl.col("part_ns").max().alias("longest_ns"),
    )
    return _with_shares(grouped, explained).sort("total_ns", "cause", descending=[True, False])


def _with_shares(rows: pl.DataFrame, explained: ExplainedGaps) -> pl.DataFrame:
    total, span_ns = int(explained.gaps["idle_ns"].sum()), explained.span_ns
    share_pct = 100 * pl.col("total_ns") / total if total else pl.lit(None, pl.Float64)
    span_pct = 100 * pl.col("total_ns") / span_ns if span_ns else pl.lit(None, pl.Float64)
    return rows.with_columns(share_pct=share_pct, span_pct=span_pct)


def _causes(by_cause: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    top = (
        named.group_by("cause", "doing", "where")
        .agg(pl.col("part_ns").sum())
        .sort("part_ns", "doing", descending=[True, False])
        .unique("cause", keep="first", maintain_order=True)
    )
    joined = by_cause.join(top.drop("part_ns"), on="cause", how="left", maintain_order="left")
    return joined.select(
        pl.col("cause").cast(pl.String),
        "gaps_count",
        "total_ns",
        "share_pct",
        "span_pct",
        "longest_ns",
        "doing",
        "where",
    )


def _places(explained: ExplainedGaps, named: pl.DataFrame) -> pl.DataFrame:
    grouped = named.group_by("cause", "doing", "where").agg(
        pl.col("gaps_count").sum(), pl.col("part_ns").sum().alias("total_ns"), pl.col("longest_ns").max()
    )
    keys = ("cause", "doing", "where")
    return (
        _with_shares(grouped, explained)
        .sort("total_ns", *keys, descending=[True, False, False, False])
        .select(
            pl.col("cause").cast(pl.String),
            "doing",
            "where",
            "gaps_count",
            "total_ns",
            "share_pct",
            "span_pct",
            "longest_ns",
        )
    )


def _gaps(
    trace: Trace, places: Places, explained: ExplainedGaps, calls: pl.DataFrame, count: int
) -> pl.DataFrame:
    """The longest gaps, each with its largest cause and what the host did in the longest part of that."""
    longest = explained.gaps.top_k(count, by="idle_ns").sort("idle_ns", "gap", descending=[True, False])
    parts = explained.parts.join(longest.select("gap"), on="gap", how="semi")
    main = main_causes(parts)
    rows = longest.join(main, on="gap", how="left", maintain_order="left")
    names = trace.spans["name"]
    ids = rows["span_id"]
    sync = blocking_at(calls, rows["start_ns"].to_numpy())
    return rows.select(
        "device",
        trace.spans["step"].gather(rows["after_id"]).alias("step"),
        "start_ns", "idle_ns", pl.col("cause").cast(pl.String), "cause_ns",
        (100 * pl.col("cause_ns") / pl.col("idle_ns")).alias("cause_pct"),
        names.gather(rows["before_id"]).cast(pl.String).alias("before"),
        names.gather(rows["after_id"]).cast(pl.String).alias("after"),
        names.gather(rows["launch_id"]).cast(pl.String).alias("launched_by"),
        names.gather(sync).cast(pl.String).alias("sync_before"),
        _plain(names.gather(ids)).alias("doing"),
        places.lines(ids.fill_null(NOBODY).to_numpy()).alias("where"),
        places.modules(ids.fill_null(NOBODY).to_numpy()).alias("module"),
    )  # fmt: skip


def main_causes(parts: pl.DataFrame) -> pl.DataFrame:
    """For each gap its largest cause, and the host's span in the longest part of that: it says most."""
    causes = (
        parts.sort("part_ns", descending=True, maintain_order=True)
        .group_by("gap", "cause", maintain_order=True)
        .agg(cause_ns=pl.col("part_ns").sum(), span_id=pl.col("span_id").first())
    )
    return causes.sort("cause_ns", descending=True, maintain_order=True).unique(
        "gap", keep="first", maintain_order=True
    )


def blocking_at(calls: pl.DataFrame, at: Ids) -> pl.Series:
    """For each time, the blocking call that was open then; null where there was none."""
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    place = np.searchsorted(start, at, side="right") - 1
    open_then = (place >= 0) & (np.append(end, 0)[place] >= at)
    ids = np.append(calls["id"].cast(pl.Int64).to_numpy(), NOBODY)
    return pl.Series(np.where(open_then, ids[place], NOBODY), dtype=pl.Int64).replace(NOBODY, None)


def _values(explained: ExplainedGaps, by_cause: pl.DataFrame, calls: pl.DataFrame) -> dict[str, Value]:
    total, span_ns = int(explained.gaps["idle_ns"].sum()), explained.span_ns
    lengths = dict(zip(by_cause["cause"].cast(pl.String), by_cause["total_ns"], strict=True))
    waiting = sum(int(lengths.get(cause, 0)) for cause in (*_HOST, "launch call", "launch latency"))
    named = {_value_name(cause): int(lengths.get(cause, 0)) for cause in CAUSES}
    blocked = blocking_at(calls, explained.gaps["start_ns"].to_numpy()).is_not_null()
    after_sync = int(explained.gaps["idle_ns"].filter(blocked).sum())
    return {
        "span_ns": span_ns,
        "idle_ns": total,
        "idle_pct": 100 * total / span_ns if span_ns else None,
        "gaps_count": explained.gaps.height,
        "host_pct": 100 * waiting / total if total else None,
        "after_sync_ns": after_sync,
        "after_sync_pct": 100 * after_sync / total if total else None,
        **named,
    }


def _value_name(cause: str) -> str:
    return cause.lower().replace(":", "").replace(" ", "_").replace("-", "_") + "_ns"


def _says(values: dict[str, Value], by_cause: pl.DataFrame) -> str:
    share, span = format_value("_pct", values["idle_pct"]), format_value("_ns", values["span_ns"])
    if by_cause.is_empty():
        return f"no gaps in {span} of GPU time"
    top = "; ".join(
        f"{format_value('_pct', row['share_pct'])} {row['cause']}"
        for row in by_cause.head(3).iter_rows(named=True)
    )
    count = int(values["gaps_count"] or 0)
    return f"GPU idle {share} of {span}, in {counted(count, 'gap')}: {top}"


def _notes(explained: ExplainedGaps, places: Places) -> tuple[str, ...]:
    notes = []
    if not places.known:
        notes.append(
            "no Python stacks recorded: what the host did outside operators is not known (record with with_stack=True)"
        )
    unknown = explained.parts.filter(pl.col("cause") == "unexplained")["part_ns"].sum()
    if unknown:
        notes.append(
            f"{format_value('_ns', int(unknown))} of idle time is unexplained: the launch of the work that ends it is not known"
        )
    return tuple(notes)
