"""Tracks: the threads and streams of a recording, and how busy each was."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.result import Result, Subject, analysis
from foretrace.trace import Trace
from foretrace.units import counted, format_value

# They also cover waiting: a step annotation or a Python frame would make every thread busy throughout.
_COVERS = ("annotation", "python")


@analysis(
    Subject.REST,
    keep=("name", "busy_pct", "busy_ns", "spans_count", "type", "device", "stream"),
    denominators={"busy_pct": "of recording_ns: from the first start to the last end of anything recorded"},
)
def tracks(trace: Trace) -> Result:
    """Each thread and stream: what ran on it, and for how long.

    Columns:
        work: the kinds of its spans, the most frequent first.
        busy_ns: the union of its spans: nested and overlapping ones count once. Annotations and Python frames do not
            count, since they also cover waiting.
        busy_pct: of recording_ns, from the first start to the last end of anything recorded.
        first_start_ns, last_end_ns: since the recording began.

    What it cannot tell: whether a busy thread did useful work. A blocking call counts as busy.
    """
    recording_ns = trace.duration_ns
    measured = _work(trace.spans).join(_busy(trace.spans), on="track_id", how="left")
    table = trace.tracks.join(measured, left_on="id", right_on="track_id", how="left", maintain_order="left")
    share = 100 * pl.col("busy_ns") / recording_ns if recording_ns else pl.lit(None, pl.Float64)
    on_device = pl.col("device").is_not_null() | pl.col("stream").is_not_null()
    table = (
        table.filter(pl.col("spans_count").is_not_null())
        .with_columns(
            type=pl.when(on_device).then(pl.lit("stream")).otherwise(pl.lit("thread")),
            busy_pct=share,
        )
        .select(
            "name", "type", "work", "spans_count", "busy_ns", "busy_pct", "first_start_ns", "last_end_ns",
            "rank", "process", "thread", "device", "stream", pl.col("id").alias("track_id"),
        )
        .sort("busy_ns", descending=True, nulls_last=True, maintain_order=True)
    )  # fmt: skip
    streams = int((table["type"] == "stream").sum())
    return Result(
        says=_says(table, streams, recording_ns),
        table=table,
        values={
            "thread_count": table.height - streams,
            "stream_count": streams,
            "recording_ns": recording_ns,
        },
        notes=("busy time excludes annotations and Python frames, which also cover waiting",),
    )


def _work(spans: pl.DataFrame) -> pl.DataFrame:
    """For each track: kinds of its spans, the most frequent first, their count, first start and last end."""
    kinds = (
        spans.group_by("track_id", "kind")
        .len()
        .sort("track_id", "len", "kind", descending=(False, True, False))
        .group_by("track_id", maintain_order=True)
        .agg(work=pl.col("kind").cast(pl.String).str.join(", "))
    )
    extent = spans.group_by("track_id").agg(
        spans_count=pl.len(),
        first_start_ns=pl.col("start_ns").min(),
        last_end_ns=(pl.col("start_ns") + pl.col("dur_ns").fill_null(0)).max(),
    )
    return kinds.join(extent, on="track_id")


def _busy(spans: pl.DataFrame) -> pl.DataFrame:
    """For each track: the time that any of its spans covers. Spans are in order of start."""
    rows = spans.filter(~pl.col("kind").is_in(_COVERS) & pl.col("dur_ns").is_not_null()).select(
        "track_id", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )
    reached = pl.col("end_ns").cum_max().shift(1).over("track_id")
    fresh = (pl.col("end_ns") - pl.max_horizontal("start_ns", reached)).clip(lower_bound=0)
    return rows.select("track_id", busy_ns=fresh).group_by("track_id").agg(pl.col("busy_ns").sum())


def _says(table: pl.DataFrame, streams: int, recording_ns: int) -> str:
    if table.is_empty():
        return "no activity recorded on any thread or stream"
    threads = counted(table.height - streams, "thread")
    counts = f"{threads} and {counted(streams, 'stream')} in {format_value('_ns', recording_ns)}"
    busiest = table.row(0, named=True)
    if busiest["busy_pct"] is None:
        return counts
    return f"{counts}; the busiest is {busiest['name']}, {busiest['busy_pct']:.1f} % of the time"
