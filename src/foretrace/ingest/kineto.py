"""Kineto JSON, as torch.profiler writes it: the reader that most recordings go through."""

from __future__ import annotations

import math
import os
import re
from typing import Any

import numpy as np
import polars as pl

from foretrace import schema
from foretrace.errors import FormatError, InputError, UsageError, unknown
from foretrace.ingest import (
    callers,
    hip_geometry,
    kineto_native,
    kineto_python,
    kineto_tables,
    lenient,
    processes,
    step_marks,
)
from foretrace.ingest.columns import NULL_I64, Columns
from foretrace.ingest.formats import Format
from foretrace.ingest.secret_texts import mask_secrets
from foretrace.ingest.source import Progress, Source
from foretrace.trace import Repair, Trace
from foretrace.units import visible

FORMATS = (
    Format(
        "Kineto JSON",
        "*.pt.trace.json, .gz, .zst, .zip",
        "torch.profiler, `foretrace run`",
        "all",
        "what was switched off: shapes, stacks, modules, memory; on ROCm also registers and occupancy",
    ),
)
# What each repair means to the user; `says` of the trust report.
REPAIRS = {
    "truncated": "the recording breaks off; everything before was read",
    "damaged": "damaged places were skipped",
    "broken-stream": "the compressed stream is broken, or the connection broke off; everything before was read",
    "not-an-event": "entries without a phase were left out",
    "no-time": "events without a readable time were left out",
    "no-duration": "spans have no readable duration",
    "negative-duration": "spans have a negative duration, which is not counted",
    "absurd-duration": "spans have a duration of more than 7 days, which is not counted",
    "impossible-start": "events start more than 7 days away from the rest and were left out",
    "bare-word": "events hold bare words such as NaN or N/A, read as absent",
    "bad-escape": "events hold bad escapes, read as text",
    "raw-quote": "events hold unescaped quotes, read as text",
    "control-character": "events hold raw control characters, read as text",
    "other-processes": "events of other processes were left out",
    "not-utf8": "names or values are not UTF-8; what is not shows as \ufffd",
}
_LOOKS_LIKE = re.compile(rb'"(traceEvents|schemaVersion|deviceProperties|distributedInfo|computeProperties)"')
_BARE_LIST = re.compile(rb'\s*\[\s*(\{\s*"|\])')
_LISTED = 10  # processes in a message
_RANK_IN_NAME = re.compile(r"rank[-_]?([0-9]{1,6})(?![0-9])", re.IGNORECASE)


def accepts(head: bytes) -> bool:
    """Whether a file that begins like this may be Kineto's."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return bool(_BARE_LIST.match(text)) and (b'"ph"' in text or b"]" in text)
    return text.startswith(b"{") and (bool(_LOOKS_LIKE.search(text)) or b'"traceName"' in text)


def read(
    source: Source, *, reader: str | None = None, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """The recording as a Trace, by the named reader ("native" or "python"; the extension if present).

    Of a file with several processes, the one with this `pid`, or the one with most device work.
    """
    columns = _scan(source, reader, pid, progress)
    columns.header = _plain(columns.header)
    masked = mask_secrets(columns)
    name = source.path.name
    if not columns.counts.get("trace_events") and not columns.counts.get("bare_list"):
        raise FormatError(f"{name}: no traceEvents in it")
    if source.broken:
        columns.repairs["broken-stream"] = (1, source.broken[0][1])
    lost = [code for code in ("truncated", "damaged", "broken-stream") if code in columns.repairs]
    if not columns.counts.get("events") and lost:
        where = columns.repairs[lost[0]][1]
        raise InputError(f"{name}: no event can be read: {REPAIRS[lost[0]]} (byte {where})")
    _check_pid(columns, pid, name)
    named_by = columns.header.pop(callers.MEMBER, None)
    meta = {**_meta(columns, source), "masked_texts": masked}
    _drop_counters_of_others(columns)
    frames = kineto_tables.build(columns)
    frames["callers"] = callers.table(named_by, frames["spans"], meta["epoch_ns"])
    if any(name.startswith("hip") for name in columns.names):
        frames = hip_geometry.completed(frames, meta["devices"])
    # The header of a merged file is that of one of its ranks, and does not say of which.
    meta["rank"], meta["rank_source"] = (None, None) if columns.processes else rank_of(columns.header, name)
    if meta["rank"] is not None:
        rank = pl.lit(meta["rank"], pl.Int32).alias("rank")
        frames["tracks"] = frames["tracks"].with_columns(rank).select(*schema.TABLES["tracks"])
    repairs = tuple(
        Repair(code, REPAIRS[code], count, offset)
        for code, (count, offset) in sorted(columns.repairs.items())
    )
    return step_marks.settled(Trace(source.path, "kineto", meta, repairs, frames.__getitem__, _frames=frames))


def _scan(source: Source, reader: str | None, pid: str | None, progress: Progress | None) -> Columns:
    if reader is None:
        reader = "python" if kineto_native.missing or os.environ.get("FORETRACE_PURE_PYTHON") else "native"
    if reader not in ("native", "python"):
        raise unknown(f"no reader named {reader!r}", reader, ("native", "python"))
    if reader == "native" and kineto_native.missing:
        raise UsageError(f"the native reader was not built ({kineto_native.missing})")
    try:
        if reader == "native":
            return kineto_native.scan(source, progress, pid=pid)
        return kineto_python.scan(source.chunks(progress), pid=pid)
    except FormatError as error:
        raise FormatError(f"{source.path.name}: {error}") from error


def _check_pid(columns: Columns, pid: str | None, name: str) -> None:
    """Raises UsageError where no process has the pid that was asked for."""
    if pid is None or (columns.processes and str(columns.processes[0]["pid"]) == pid):
        return
    if not columns.processes and pid in {str(process) for process, _ in columns.lanes}:
        return
    known = ", ".join(visible(str(process["pid"])) for process in columns.processes[:_LISTED])
    raise UsageError(f"{name}: no process {visible(pid)} in it" + (f"; there are: {known}" if known else ""))


def _drop_counters_of_others(columns: Columns) -> None:
    """Leaves out the counters of processes that are not read."""
    others = {process["pid"] for process in columns.processes if not process["chosen"]}
    if not others:
        return
    of_others = np.array([processes.key(process) in others for process, _ in columns.lanes], bool)
    counters = columns.groups["counters"]
    keep = ~of_others[counters["track"]]
    columns.groups["counters"] = {name: values[keep] for name, values in counters.items()}


def _plain(value: Any) -> Any:
    """A value of the header as plain Python: numbers are numbers, and a bare word is none."""
    if isinstance(value, dict):
        return {lenient.clean(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, lenient.Number):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, lenient.BareWord):
        return None
    return lenient.clean(value) if isinstance(value, str) else value


def _meta(columns: Columns, source: Source) -> dict[str, Any]:
    header = columns.header
    base = header.get("baseTimeNanoseconds")
    base_ns = base if isinstance(base, int) else None
    steps = columns.groups["steps"]
    windows = columns.groups["windows"]
    end = [
        int(at)
        for code, at in zip(columns.groups["instants"]["name"], columns.groups["instants"]["at"], strict=True)
        if columns.names[code] == "Record Window End"
    ]
    return {
        "devices": _devices(header),
        "distributed": header.get("distributedInfo")
        if isinstance(header.get("distributedInfo"), dict)
        else None,
        "world_size": _world_size(header),
        "header": {
            key: value
            for key, value in header.items()
            if key not in ("deviceProperties", "distributedInfo", "computeProperties")
        },
        "recorded": [
            flag
            for flag in ("record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops")
            if header.get(flag) in (1, True)
        ],
        "base_ns": base_ns,
        "epoch_ns": (base_ns or 0) + columns.origin_ns,
        "steps": [
            [int(number), int(start), int(end)]
            for number, start, end in zip(steps["number"], steps["start"], steps["end"], strict=True)
        ],
        "windows": [
            [columns.names[code], int(start), None if dur == NULL_I64 else int(dur)]
            for code, start, dur in zip(windows["name"], windows["start"], windows["dur"], strict=True)
        ],
        "window_end_ns": max(end, default=None),
        "processes": list(columns.processes),
        "events": columns.counts.get("events", 0),
        "flows": columns.counts.get("flows", 0),
        "skipped_events": columns.counts.get("skipped_phase", 0),
        "lost_bytes": columns.counts.get("lost_bytes", 0),
        "op_ids": columns.counts.get("op_ids", 0),
        "op_id_range": columns.counts.get("op_id_range", 0),
        "file_bytes": source.size,
        "compression": source.compression or None,
    }


def _devices(header: dict[str, Any]) -> list[dict[str, Any]]:
    """Device properties as recorded, under both the old and the new key."""
    listed = header.get("deviceProperties", header.get("computeProperties"))
    return [device for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []


def _world_size(header: dict[str, Any]) -> int | None:
    info = header.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if isinstance(size, int) else None


def rank_of(header: dict[str, Any], file_name: str) -> tuple[int | None, str | None]:
    """The rank, and where it was found."""
    info = header.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if isinstance(rank, int) and 0 <= rank < 2**31:
        return rank, "metadata"
    match = _RANK_IN_NAME.search(file_name)
    return (int(match[1]), "file name") if match else (None, None)
