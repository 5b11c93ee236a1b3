"""Idle: when a device had nothing to do, and what it waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.host.idle_causes import CAUSES, Explainer, Gaps, find_gaps
from foretrace.analyze.concepts.host.runtime_calls import NOBODY, HostSpans, Ids
from foretrace.analyze.concepts.trees.source_places import Places
from foretrace.analyze.result import Result, Value, analysis
from foretrace.analyze.syncs import blocking_calls
from foretrace.analyze.timeline import Over, device_windows, free_time
from foretrace.errors import UsageError
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_HOST = ("host: operator", "host: runtime call", "host: Python", "host: not recorded")


@dataclass(frozen=True)
class Found:
    """All gaps of all devices, and their parts."""

    gaps: pl.DataFrame  # gap, device, start_ns, idle_ns, before_id, after_id, launch_id
    parts: pl.DataFrame  # gap, part_ns, cause, span_id
    span_ns: int


@analysis(
    denominators={
        "idle_pct": "of the timeline's span, summed over devices",
        "host_pct": "of all idle time: waiting for operators, calls, Python and launches of the host",
        "after_sync_pct": "of all idle time: gaps that began while the host was in a blocking call",
        "share_pct": "of all idle time",
        "span_pct": "of the timeline's span, summed over devices",
        "cause_pct": "of the gap",
    }
)
def idle(
    trace: Trace,
    *,
    view: Literal["causes", "places", "gaps"] = "causes",
    over: Over = "steps",
    min_gap_ns: int = 1_000,
    gaps_count: int = 100,
) -> Result:
    """When the GPU had nothing to do, and what it waited for.

    A gap is a stretch in which nothing ran on any stream of a device: kernel, copy or memset, also one
    launched before the recording began. All gaps sum to idle_ns of `timeline` with the same `over`. Every gap is
    cut into parts with one cause each, so the parts sum to the gaps. The work that ends a gap tells whom
    the device waited for:

    kernel-to-kernel    that work had been launched before the gap began: the time between two kernels; also every
                        gap below `min_gap_ns`
    queued              it had been launched, but did not start for 30 us or more: a wait for another stream, an
                        event, another rank or another process on the device
    launch call         the host was in the call that launched it
    launch latency      from the end of that call to the start of the work

    Until that call began, the thread that made it was:

    input               inside a DataLoader's __next__
    sync                in a call that waits for the device (cudaStreamSynchronize, ...)
    copy                in a copy call: preparing or waiting for a copy
    allocator           in cudaMalloc, cudaFree, cudaHostAlloc, ...
    communication       in a collective that runs on the host (gloo, MPI, UCC)
    host: operator      in an operator, outside of runtime calls
    host: runtime call  in another runtime call
    host: Python        in Python code outside of operators (only where stacks were recorded)
    host: not recorded  in nothing that was recorded: Python where stacks were not recorded, or waiting

    At any time:

    profiler            the profiler worked for itself (buffers, profiler.step())
    code loading        GPU code was loaded or compiled at its first use
    unexplained         no launch is known for the work that ends the gap

    Where the launching thread had no operator or call open, the thread that launched the work before the gap
    counts. share_pct is of all idle time, span_pct of the timeline's span, summed over devices.

    view="causes": a row per cause; `doing` and `where` name what most of its time went to.
    view="places": a row per cause, what the host was doing and the line of the program.
    view="gaps": the `gaps_count` longest gaps, each with its largest cause, the work before and after, and the host's
    innermost call (`doing`), source line and module in the longest part of that cause. `sync_before` is the
    blocking call that the host was in when the gap began: the queue had run dry because of it. The values
    after_sync_ns and after_sync_pct sum such gaps whole, whatever their causes.

    The host may have been late for a reason that began before the gap: a gap after a sync counts as what the
    host did since, not as the sync (see idle_after_ns of `syncs`). A line is a function's first, as recorded.
    """
    if min_gap_ns < 0 or gaps_count < 1:
        raise UsageError("idle: min_gap_ns cannot be negative and gaps_count must be at least 1")
    host = HostSpans(trace)
    found = _find(trace, host, over, min_gap_ns)
    places = Places(trace, host)
    by_cause = _by_cause(found)
    calls = blocking_calls(trace, host)
    if view == "gaps":
        table = _gaps(trace, places, found, calls, gaps_count)
    else:
        named = _named(trace, places, found.parts)
        table = _causes(by_cause, named) if view == "causes" else _places(found, named)
    values = _values(found, by_cause, calls)
    return Result(
        says=_says(values, by_cause), table=table, values=values, notes=_notes(trace, found, places)
    )


def _find(trace: Trace, host: HostSpans, over: Over, min_gap_ns: int) -> Found:
    """The gaps of every device, explained."""
    work = device_time.device_work(trace)
    explainer = Explainer(trace, host)
    gaps, explained, span_ns, count = [], [], 0, 0
    for each in device_windows(trace, work, over=over):
        mine = work.filter(pl.col("device").eq_missing(each.device))
        free = free_time(mine, each.window)
        found = find_gaps(mine, free)
        part = explainer.explain(found, min_gap_ns)
        explained.append(part.with_columns(pl.col("gap") + count))
        gaps.append(_gap_frame(each.device, found, count))
        span_ns += each.window.length_ns
        count += len(free.start)
    return Found(pl.concat(gaps), pl.concat(explained), span_ns)


def _gap_frame(device: int | None, found: Gaps, first: int) -> pl.DataFrame:
    ids = {"before_id": found.before, "after_id": found.after, "launch_id": found.launch}
    count = len(found.before)
    return pl.DataFrame(
        {
            "gap": pl.Series(np.arange(first, first + count), dtype=pl.Int64),
            "device": pl.Series([device], dtype=pl.Int32).extend_constant(device, count)[:count],
            "start_ns": pl.Series(found.free.start, dtype=pl.Int64),
            "idle_ns": pl.Series(found.free.end - found.free.start, dtype=pl.Int64),
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
    """The names without addresses and step numbers, which would make a thousand places of one."""
    text = names.cast(pl.String).str.replace(r" at 0x[0-9a-fA-F]+", "")
    return text.str.replace(r"^(ProfilerStep)#\d+$", "$1")


def _by_cause(found: Found) -> pl.DataFrame:
    """A row per cause that occurs, the largest first."""
    grouped = found.parts.group_by("cause").agg(
        pl.col("gap").n_unique().alias("gaps_count"),
        pl.col("part_ns").sum().alias("total_ns"),
        pl.col("part_ns").max().alias("longest_ns"),
    )
    return _with_shares(grouped, found).sort("total_ns", "cause", descending=[True, False])


def _with_shares(rows: pl.DataFrame, found: Found) -> pl.DataFrame:
    total = int(found.gaps["idle_ns"].sum())
    share_pct = 100 * pl.col("total_ns") / total if total else pl.lit(None, pl.Float64)
    span_pct = 100 * pl.col("total_ns") / found.span_ns if found.span_ns else pl.lit(None, pl.Float64)
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


def _places(found: Found, named: pl.DataFrame) -> pl.DataFrame:
    grouped = named.group_by("cause", "doing", "where").agg(
        pl.col("gaps_count").sum(), pl.col("part_ns").sum().alias("total_ns"), pl.col("longest_ns").max()
    )
    keys = ("cause", "doing", "where")
    return (
        _with_shares(grouped, found)
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


def _gaps(trace: Trace, places: Places, found: Found, calls: pl.DataFrame, count: int) -> pl.DataFrame:
    """The longest gaps, each with its largest cause and what the host did in the longest part of that."""
    longest = found.gaps.top_k(count, by="idle_ns").sort("idle_ns", "gap", descending=[True, False])
    mine = found.parts.join(longest.select("gap"), on="gap", how="semi")
    # Of the largest cause, the longest piece says most.
    causes = (
        mine.sort("part_ns", descending=True, maintain_order=True)
        .group_by("gap", "cause", maintain_order=True)
        .agg(cause_ns=pl.col("part_ns").sum(), span_id=pl.col("span_id").first())
    )
    main = causes.sort("cause_ns", descending=True, maintain_order=True).unique(
        "gap", keep="first", maintain_order=True
    )
    rows = longest.join(main, on="gap", how="left", maintain_order="left")
    names = trace.spans["name"]
    ids = rows["span_id"]
    sync = _blocking_at(calls, rows["start_ns"].to_numpy())
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


def _blocking_at(calls: pl.DataFrame, at: Ids) -> pl.Series:
    """For each time, the blocking call that was open then; null where there was none."""
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    place = np.searchsorted(start, at, side="right") - 1
    open_then = (place >= 0) & (np.append(end, 0)[place] >= at)
    ids = np.append(calls["id"].cast(pl.Int64).to_numpy(), NOBODY)
    return pl.Series(np.where(open_then, ids[place], NOBODY), dtype=pl.Int64).replace(NOBODY, None)


def _values(found: Found, by_cause: pl.DataFrame, calls: pl.DataFrame) -> dict[str, Value]:
    total = int(found.gaps["idle_ns"].sum())
    lengths = dict(zip(by_cause["cause"].cast(pl.String), by_cause["total_ns"], strict=True))
    waiting = sum(int(lengths.get(cause, 0)) for cause in (*_HOST, "launch call", "launch latency"))
    named = {_value_name(cause): int(lengths.get(cause, 0)) for cause in CAUSES}
    blocked = _blocking_at(calls, found.gaps["start_ns"].to_numpy()).is_not_null()
    after_sync = int(found.gaps["idle_ns"].filter(blocked).sum())
    return {
        "span_ns": found.span_ns,
        "idle_ns": total,
        "idle_pct": 100 * total / found.span_ns if found.span_ns else None,
        "gaps_count": found.gaps.height,
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
        return f"no gap in {span} of device time"
    top = "; ".join(
        f"{format_value('_pct', row['share_pct'])} {row['cause']}"
        for row in by_cause.head(3).iter_rows(named=True)
    )
    count = int(values["gaps_count"] or 0)
    return f"idle {share} of {span}, in {counted(count, 'gap')}: {top}"


def _notes(trace: Trace, found: Found, places: Places) -> tuple[str, ...]:
    notes = []
    if not places.known:
        notes.append(
            "no Python stacks recorded: what the host did outside of operators is not known (with_stack=True)"
        )
    unknown = found.parts.filter(pl.col("cause") == "unexplained")["part_ns"].sum()
    if unknown:
        notes.append(
            f"no launch is known for the work after {format_value('_ns', int(unknown))} of idle time"
        )
    return tuple(notes)
