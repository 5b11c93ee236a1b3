"""The queue between host and device: how many launches had been made and not yet begun, over time.

A launch joins the queue when its call begins and leaves it when its first work starts. A CUDA graph is one
launch, however many kernels it starts.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace.analyze.concepts.host.runtime_calls import Ids
from foretrace.trace import Trace


def launched(trace: Trace) -> pl.DataFrame:
    """One row per launch that started device work, in order of the call.

    `id`, `api`, `call_ns` (start), `call_end_ns` (null where the duration is), `step`; of the work: `name` (the
    call's where it started several), `started_count`, `kernels_count`, `start_ns`, `dur_ns` (summed), `device`,
    `stream`, and `free_ns`: when the work before it on its stream had ended (null for the first).
    """
    # In order of start already: what has ended before a span is the furthest end so far on its stream.
    reach = pl.col("end_ns").cum_max().shift(1).over("track_id")
    columns = ("launch_id", "name", "kind", "device", "stream", "start_ns", "dur_ns")
    rows = trace.device_spans.select(*columns, free_ns=reach).filter(pl.col("launch_id").is_not_null())
    first = rows.group_by("launch_id").agg(
        pl.col("name", "kind", "device", "stream", "free_ns").first(),
        pl.col("start_ns").min(),
        pl.col("dur_ns").sum(),
        started_count=pl.len(),
        kernels_count=(pl.col("kind") == "kernel").sum(),
    )
    first = first.sort("launch_id")
    spans, ids = trace.spans, first["launch_id"]
    call = spans["start_ns"].gather(ids)
    api = spans["name"].gather(ids)
    return first.with_columns(
        api=api,
        name=pl.when(pl.col("started_count") > 1).then(api).otherwise(pl.col("name")),
        call_ns=call,
        call_end_ns=call + spans["dur_ns"].gather(ids),
        step=spans["step"].gather(ids),
    ).rename({"launch_id": "id"})


def queue_depth(trace: Trace) -> pl.DataFrame:
    """How many launches waited, for each stream: `device`, `stream`, `at_ns`, `depth_count` from then on."""
    return depth_of(launched(trace))


def depth_of(launches: pl.DataFrame) -> pl.DataFrame:
    """The queue's depth over time, for rows of `launched`."""
    frames = [_stream_depth(rows) for rows in launches.partition_by("device", "stream")]
    return (
        pl.concat(frames).sort("device", "stream", maintain_order=True) if frames else _stream_depth(launches)
    )


def _stream_depth(launches: pl.DataFrame) -> pl.DataFrame:
    call = launches["call_ns"].to_numpy()
    # Clocks that disagree may show work before its launch: it then waited for no time.
    start = np.maximum(launches["start_ns"].to_numpy(), call)
    times = np.concatenate((call, start))
    order = np.argsort(times, kind="stable")
    at = times[order]
    depth = np.cumsum(np.repeat((1, -1), len(call))[order])
    last = np.append(at[1:] > at[:-1], True) if len(at) else np.zeros(0, bool)
    return pl.DataFrame(
        {"at_ns": pl.Series(at[last], dtype=pl.Int64), "depth_count": pl.Series(depth[last], dtype=pl.Int64)}
    ).select(
        pl.lit(launches["device"].first(), pl.Int32).alias("device"),
        pl.lit(launches["stream"].first(), pl.Int64).alias("stream"),
        "at_ns",
        "depth_count",
    )


def lasting_ns(depth: pl.DataFrame) -> Ids:
    """How long each row of `queue_depth` held: until the next of its stream."""
    until = depth.select(
        (pl.col("at_ns").shift(-1).over("device", "stream") - pl.col("at_ns")).fill_null(0)
    ).to_series()
    length: Ids = until.to_numpy().astype(np.int64)
    return length
