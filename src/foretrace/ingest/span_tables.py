"""Rows of host calls and device work, as profilers other than torch's record them, become the tables of a Trace.

A reader fills two frames, `HOST` and `DEVICE`, in the profiler's own nanoseconds; here rows without a sound time are left
out and counted, one process is chosen of several, spans are put in order, nested, and linked to what launched them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from foretrace import schema
from foretrace.errors import InputError, UsageError
from foretrace.ingest import step_marks
from foretrace.ingest.columns import Array
from foretrace.ingest.secret_texts import mask_texts
from foretrace.secret_formats import without_known_secrets_in
from foretrace.trace import Repair, Trace
from foretrace.units import visible

_SEVEN_DAYS_NS = 7 * 86_400 * 10**9  # as for Kineto's: nothing that is recorded lasts that long
_GEOMETRY: dict[str, Any] = {
    name: column.dtype for name, column in schema.TABLES["kernels"].items() if name != "span_id"
}
_SPAN: dict[str, Any] = {
    "process": pl.Int64, "kind": pl.String, "name": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64,
    "correlation": pl.Int64, "row": pl.Int64,
}  # fmt: skip
# `row` is the reader's own number of a row, to which `args` refer; null where it has none.
HOST: dict[str, Any] = {**_SPAN, "thread": pl.Int64, "track": pl.String}
DEVICE: dict[str, Any] = {
    **_SPAN, "device": pl.Int32, "stream": pl.Int64, "size_bytes": pl.Int64, "direction": pl.String, **_GEOMETRY,
}  # fmt: skip
ARGS: dict[str, Any] = {
    "row": pl.Int64, "key": pl.String, "int": pl.Int64, "float": pl.Float64, "text": pl.String,
}  # fmt: skip

REPAIRS = {
    "no-time": "rows without a readable time were left out",
    "negative-duration": "spans have a negative duration, which is not counted",
    "absurd-duration": "spans have a duration of more than 7 days, which is not counted",
    "impossible-start": "rows start more than 7 days away from the rest and were left out",
    "other-processes": "rows of other processes were left out",
}


@dataclass
class Recorded:
    """What a reader found in a file, before it is a Trace."""

    path: Path
    format: str
    host: pl.DataFrame
    device: pl.DataFrame
    args: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ARGS))
    devices: list[dict[str, Any]] = field(default_factory=list)  # with the keys of Kineto's deviceProperties
    meta: Mapping[str, Any] = field(default_factory=dict)
    repairs: dict[str, int] = field(default_factory=dict)


def frame(rows: list[dict[str, Any]], columns: Mapping[str, Any]) -> pl.DataFrame:
    """Rows with some of the columns as a frame with all of them; a value of another type is null."""
    return pl.DataFrame(
        {
            name: pl.Series(name, [row.get(name) for row in rows], dtype, strict=False)
            for name, dtype in columns.items()
        },
        schema=dict(columns),
    )


def whole(value: object) -> int | None:
    """An integer of 64 bits, or null."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        number = int(value)
    except ValueError:
        return None
    return number if -(2**63) < number < 2**63 else None


def nanoseconds(microseconds: object) -> int | None:
    """A time in microseconds, as Chrome traces have them, in whole nanoseconds; null where it is none."""
    if (
        isinstance(microseconds, bool)
        or not isinstance(microseconds, int | float)
        or not abs(microseconds) < 1e15
    ):
        return None
    return round(float(microseconds) * 1000)


def to_trace(recorded: Recorded, *, pid: str | None, file_bytes: int) -> Trace:
    """The Trace: of one process, with nested and linked spans, and its steps where ranges mark them."""
    repairs = dict(recorded.repairs)
    host = _sound(recorded.host.select(*HOST), repairs)
    device = _sound(recorded.device.select(*DEVICE), repairs)
    if host.is_empty() and device.is_empty():
        raise InputError(f"{recorded.path}: nothing that took time can be read in it")
    host, device, processes = _of_one_process(host, device, pid, recorded.path, repairs)
    frames, origin_ns, masked = _tables(host, device, recorded.args)
    meta = {
        "devices": without_known_secrets_in(recorded.devices), "distributed": None, "world_size": None, "header": {},
        "recorded": [], "base_ns": None, "epoch_ns": origin_ns, "steps": [], "windows": [], "window_end_ns": None,
        "processes": processes, "events": host.height + device.height, "flows": 0, "skipped_events": 0, "lost_bytes": 0,
        "op_ids": 0, "op_id_range": 0, "file_bytes": file_bytes, "compression": None, "rank": None, "rank_source": None,
        **recorded.meta, "masked_texts": masked,
    }  # fmt: skip
    told = tuple(Repair(code, REPAIRS[code], count) for code, count in sorted(repairs.items()) if count)
    made = Trace(recorded.path, recorded.format, meta, told, frames.__getitem__, _frames=frames)
    return step_marks.settled(made)


def _sound(rows: pl.DataFrame, repairs: dict[str, int]) -> pl.DataFrame:
    """Rows with a name and a time, and `dur_ns`, which is null where it cannot be."""
    timed = rows.filter(pl.col("start_ns").is_not_null() & pl.col("end_ns").is_not_null())
    repairs["no-time"] = repairs.get("no-time", 0) + rows.height - timed.height
    if timed.is_empty():
        return timed.with_columns(dur_ns=pl.lit(None, pl.Int64))
    middle = int(timed["start_ns"].median() or 0)  # type: ignore[arg-type]
    # In floating point: the difference of two numbers of 64 bits may have more.
    away = (pl.col("start_ns").cast(pl.Float64) - middle).abs() > _SEVEN_DAYS_NS
    near = timed.filter(~away)
    repairs["impossible-start"] = repairs.get("impossible-start", 0) + timed.height - near.height
    length = pl.col("end_ns").cast(pl.Float64) - pl.col("start_ns").cast(pl.Float64)
    negative, absurd = near.filter(length < 0).height, near.filter(length > _SEVEN_DAYS_NS).height
    repairs["negative-duration"] = repairs.get("negative-duration", 0) + negative
    repairs["absurd-duration"] = repairs.get("absurd-duration", 0) + absurd
    possible = (length >= 0) & (length <= _SEVEN_DAYS_NS)
    sound_end = pl.when(possible).then("end_ns")
    named = pl.col("name").fill_null("unnamed")
    return near.with_columns(named, dur_ns=sound_end - pl.col("start_ns"))


def _of_one_process(
    host: pl.DataFrame, device: pl.DataFrame, pid: str | None, path: Path, repairs: dict[str, int]
) -> tuple[pl.DataFrame, pl.DataFrame, list[dict[str, Any]]]:
    """The rows of the process that was asked for, else of the one with most device work, and what processes there are."""
    by_host = host.group_by("process").agg(host_count=pl.len())
    by_device = device.group_by("process").agg(device_count=pl.len(), device_ns=pl.col("dur_ns").sum())
    found = by_host.join(by_device, on="process", how="full", coalesce=True, nulls_equal=True).fill_null(0)
    found = found.sort("device_ns", "host_count", "process", descending=[True, True, False])
    known = [process for process in found["process"].to_list() if process is not None]
    if pid is not None and pid not in {str(process) for process in known}:
        there = f"; there are: {', '.join(map(str, known[:10]))}" if known else ""
        raise UsageError(f"{path.name}: no process {visible(pid)} in it{there}")
    if found.height < 2:
        return host, device, []
    chosen = next(process for process in found["process"].to_list() if pid is None or str(process) == pid)
    own = pl.col("process").eq_missing(pl.lit(chosen, pl.Int64))
    kept_host, kept_device = host.filter(own), device.filter(own)
    left_out = host.height + device.height - kept_host.height - kept_device.height
    repairs["other-processes"] = repairs.get("other-processes", 0) + left_out
    listed = [
        {"pid": row["process"], "host_count": row["host_count"], "device_count": row["device_count"],
         "device_ns": row["device_ns"], "chosen": row["process"] == chosen}
        for row in found.iter_rows(named=True)
    ]  # fmt: skip
    return kept_host, kept_device, sorted(listed, key=lambda process: not process["chosen"])


def _tables(
    host: pl.DataFrame, device: pl.DataFrame, args: pl.DataFrame
) -> tuple[dict[str, pl.DataFrame], int, int]:
    """All tables, when the first span began in the profiler's clock, and how many names held a secret."""
    tracks, host, device = _tracks(host, device)
    shared = ["track_id", "kind", "name", "start_ns", "dur_ns", "correlation", "row", "process"]
    rows = pl.concat(
        [host.select(*shared, on_device=pl.lit(value=False), place=pl.int_range(pl.len())),
         device.select(*shared, on_device=pl.lit(value=True), place=pl.int_range(pl.len()))]
    )  # fmt: skip
    length = pl.col("dur_ns").fill_null(0)
    rows = rows.with_columns(length=length).sort(
        "start_ns", "length", descending=[False, True], maintain_order=True
    )
    origin_ns = int(rows["start_ns"].min() or 0)  # type: ignore[arg-type]
    rows = rows.with_columns(pl.col("start_ns") - origin_ns).with_row_index("id")
    depth, parent = _nested(rows)
    names = rows["name"].unique().to_list()
    plain = list(names)
    masked = mask_texts(plain)
    named = rows["name"].replace_strict(names, plain, return_dtype=pl.String) if masked else rows["name"]
    nothing = {name: pl.lit(None, dtype).alias(name) for name, dtype in schema.polars_schema("spans").items()}
    spans = rows.with_columns(
        named.alias("name"), depth=pl.Series(depth), parent_id=pl.Series(parent, dtype=pl.UInt32)
    )
    spans = spans.with_columns(_launches(rows)).with_columns(nothing["op_id"], nothing["step"])
    of_device = rows.filter("on_device").sort("place").select("id")["id"]
    known = device.with_columns(span_id=of_device).sort("span_id")
    frames = {name: pl.DataFrame(schema=schema.polars_schema(name)) for name in schema.TABLES}
    frames |= {
        "spans": spans,
        "tracks": tracks,
        "kernels": known.filter(pl.col("kind") == "kernel"),
        "copies": known.filter(pl.col("kind").is_in(("copy", "set"))).with_columns(
            pageable=pl.lit(None, pl.Boolean)
        ),
        "args": _args(rows, args),
    }
    return {name: _typed(name, table) for name, table in frames.items()}, origin_ns, masked


def _typed(name: str, table: pl.DataFrame) -> pl.DataFrame:
    return table.select(
        pl.col(column).cast(dtype, strict=False) for column, dtype in schema.polars_schema(name).items()
    )


def _tracks(host: pl.DataFrame, device: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The tracks in order, and both frames with `track_id`."""
    threads = host.group_by("process", "thread", "track", maintain_order=True).len().drop("len")
    streams = (
        device.group_by("device", "stream", maintain_order=True).len().drop("len").sort("device", "stream")
    )
    threads = threads.with_row_index("track_id")
    streams = streams.with_row_index("track_id", offset=threads.height)
    host = host.join(
        threads, on=["process", "thread", "track"], how="left", nulls_equal=True, maintain_order="left"
    )
    device = device.join(
        streams, on=["device", "stream"], how="left", nulls_equal=True, maintain_order="left"
    )
    thread = pl.col("thread").cast(pl.String)
    stream = pl.col("stream").cast(pl.String)
    number = pl.col("device").cast(pl.String)
    tracks = pl.concat(
        [
            threads.select(
                "process", "thread", id="track_id",
                name=pl.coalesce("track", pl.format("thread {}", thread), pl.lit("unnamed")),
            ),
            streams.select(
                "device", "stream", id="track_id",
                name=pl.format("GPU {} {}", number.fill_null("?"), pl.format("stream {}", stream).fill_null("work")),
            ),
        ],
        how="diagonal",
    )  # fmt: skip
    return tracks.with_columns(rank=pl.lit(None, pl.Int32)), host, device


def _nested(rows: pl.DataFrame) -> tuple[Array, list[int | None]]:
    """For each row how deep it lies among the spans of its thread, and which is around it; device work does not nest."""
    depth = np.zeros(rows.height, np.uint16)
    parent: list[int | None] = [None] * rows.height
    opened: dict[int, list[tuple[int, int]]] = {}  # by track: end and row of the spans that are open
    host = rows.filter(~pl.col("on_device")).select("id", "track_id", "start_ns", "length")
    for row, track, start, length in host.iter_rows():
        end = start + length
        around = opened.setdefault(track, [])
        while around and (start >= around[-1][0] or end > around[-1][0]):
            around.pop()
        if around:
            parent[row] = around[-1][1]
        depth[row] = min(len(around), 65_535)
        if length > 0:
            around.append((end, row))
    return depth, parent


def _launches(rows: pl.DataFrame) -> pl.Series:
    """For each device row the call with its correlation id: of several, the last that began before the work did."""
    of = ["process", "correlation"]
    ids = pl.col("correlation").is_not_null() & (pl.col("correlation") != 0)
    calls = rows.filter(ids & (pl.col("kind") == "runtime")).select(*of, "start_ns", call="id")
    work = rows.filter(ids & pl.col("on_device")).select(*of, "start_ns", "id")
    calls = calls.with_columns(pl.col("process").fill_null(-1)).sort("start_ns")
    work = work.with_columns(pl.col("process").fill_null(-1)).sort("start_ns")
    before = work.join_asof(calls, on="start_ns", by=of, strategy="backward", check_sortedness=False)
    first = calls.group_by(of, maintain_order=True).agg(first=pl.col("call").first())
    linked = before.join(first, on=of, how="left").select("id", launch_id=pl.coalesce("call", "first"))
    return (
        rows.select("id")
        .join(linked, on="id", how="left", maintain_order="left")["launch_id"]
        .cast(pl.UInt32)
    )


def _args(rows: pl.DataFrame, args: pl.DataFrame) -> pl.DataFrame:
    """Arguments by span, in order of spans."""
    numbered = rows.select("row", span_id="id").drop_nulls("row")
    joined = args.join(numbered, on="row", how="inner").sort("span_id", maintain_order=True)
    return joined.unique(("span_id", "key"), keep="last", maintain_order=True)
