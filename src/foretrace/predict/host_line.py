"""The host's line: which calls of a recording a program is made of, and the device work that they started."""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace.analyze.concepts.names.named_spans import ids_like
from foretrace.errors import MissingDataError
from foretrace.predict.program import Numbers, Times
from foretrace.trace import Trace

_STREAMS = 1 << 32  # more than a device has
_NO_TIMES = np.empty(0, np.int64)


def window(trace: Trace) -> tuple[int, int]:
    if trace.steps:
        return trace.steps[0].start_ns, trace.steps[-1].end_ns
    host = trace.spans.filter(pl.col("kind").is_in(("op", "runtime", "annotation", "python")))
    if host.is_empty():
        raise MissingDataError(f"{trace.path.name}: no host activity recorded, so there is nothing to replay")
    start, end = host.select(
        pl.col("start_ns").min(), (pl.col("start_ns") + pl.col("dur_ns")).max().alias("end_ns")
    ).row(0)
    if end is None:
        raise MissingDataError(
            f"{trace.path.name}: no host activity has a duration, so there is nothing to replay"
        )
    return int(start), int(end)


def host_line(trace: Trace, window: tuple[int, int]) -> pl.DataFrame:
    """The outermost runtime calls of the main thread and of threads that run while it waits, in order."""
    start, end = window
    host = trace.spans.filter(
        pl.col("kind").is_in(("op", "runtime")) & pl.col("dur_ns").is_not_null()
        & pl.col("start_ns").is_between(start, end, closed="left")
    ).with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))  # fmt: skip
    calls = host.filter(pl.col("kind") == "runtime")
    outer = calls.join(
        calls.select("id"), left_on="parent_id", right_on="id", how="anti", maintain_order="left"
    )
    main = _main_track(trace, outer)
    times = host.select("track_id", "start_ns", "end_ns").partition_by("track_id", as_dict=True)
    edges = {track: _edges(rows) for (track,), rows in times.items()}
    others = [track for track in outer["track_id"].unique() if track != main]
    serial = [main, *(track for track in others if _serial(edges[track], edges.get(main, _NO_TIMES)))]
    return outer.filter(pl.col("track_id").is_in(serial)).sort("start_ns", maintain_order=True)


def _main_track(trace: Trace, calls: pl.DataFrame) -> int:
    """The thread that marks the steps, else the one with most calls."""
    marks = trace.spans.select("track_id")[ids_like(trace, "annotation", "^ProfilerStep#")]
    on_host = trace.tracks.filter(pl.col("device").is_null()).select(track_id="id")
    steps = marks.join(on_host, on="track_id", how="semi")
    frame = steps if not steps.is_empty() else calls
    counted = frame.group_by("track_id").len().sort("len", "track_id", descending=(True, False))
    return int(counted["track_id"][0]) if counted.height else -1


def _edges(rows: pl.DataFrame) -> Times:
    """When these spans begin or end, in order."""
    edges = np.concatenate((rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()))
    return np.sort(edges, kind="stable")  # the quickest by far of what lies nearly in order


def _serial(own: Times, of_main: Times) -> bool:
    """Whether a thread works only while the main thread stands still: many of its events in few of main's gaps."""
    gaps = np.searchsorted(of_main, own)  # in order, as the events are
    return bool(len(own) / (1 + np.count_nonzero(gaps[1:] != gaps[:-1])) >= 10)


def tasks(trace: Trace, calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Device work of these calls, with `call` (its row), and the work launched before the recording."""
    device = trace.device_spans.sort("start_ns", maintain_order=True)
    parents = trace.spans.select(
        pl.col("id").alias("launch_id"), pl.col("parent_id"), pl.col("kind").alias("_kind")
    )
    runtime_parent = parents.filter(pl.col("_kind") == "runtime").select("launch_id", "parent_id")
    rows = calls.select(pl.col("id").alias("outer"), pl.int_range(pl.len(), dtype=pl.Int32).alias("call"))
    linked = device.join(runtime_parent, on="launch_id", how="left", maintain_order="left", suffix="_call")
    direct = linked.join(rows, left_on="launch_id", right_on="outer", how="left", maintain_order="left")
    nested = direct.join(
        rows.rename({"call": "outer_call"}),
        left_on="parent_id_call",
        right_on="outer",
        how="left",
        maintain_order="left",
    )
    known = nested.with_columns(call=pl.coalesce("call", "outer_call")).drop_nulls("call")
    # Streams run in order: work that runs later was launched in the recording, by a call that was lost.
    first = known.group_by("device", "stream").agg(first_ns=pl.col("start_ns").min())
    before = device.filter(pl.col("launch_id").is_null()).join(
        first, on=("device", "stream"), how="left", nulls_equal=True, maintain_order="left"
    )
    earliest = pl.lit(known["start_ns"].min(), pl.Int64)
    earlier = (pl.col("start_ns") < pl.coalesce("first_ns", earliest)).fill_null(value=True)
    return known, before.filter(earlier).drop("first_ns")


def stream_numbers(frame: pl.DataFrame, number: dict[tuple[int, int], int]) -> Numbers:
    """For each row, the number of its device and stream."""
    device, stream = (frame[column].fill_null(0).cast(pl.Int64).to_numpy() for column in ("device", "stream"))
    known = {
        device_number * _STREAMS + stream_number: place
        for (device_number, stream_number), place in number.items()
    }
    keys = np.array(sorted(known), np.int64)
    places = np.array([known[key] for key in keys.tolist()], np.int32)
    found: Numbers = places[np.searchsorted(keys, device * _STREAMS + stream)]
    return found
