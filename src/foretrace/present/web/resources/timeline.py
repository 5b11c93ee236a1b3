"""`timeline`: every span in its row, with counters and steps, as a binary payload; a window of it where it is too large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.host import launch_queue
from foretrace.analyze.concepts.memory import memory_curve
from foretrace.errors import UsageError
from foretrace.present.web.binary import Column, pack, steps, times
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import lanes
from foretrace.present.web.resources.lanes import Rows
from foretrace.present.web.resources.step_time import minimap
from foretrace.trace import Trace
from foretrace.units import format_value

TILED_ABOVE = 10_000_000
_MINIMAP = 600
_BUSY_BUCKETS = 8192
_POINTS = 20_000
_DEVICES = 4
_FIRST_PIXELS = 2_000
_LEAST_PIXELS = 1.5  # what is drawn on its own
_MOST_PIXELS = 20_000
_LATE = ("name", "id", "id:escapes", "finding")  # columns that the first picture does without


def timeline(
    view: RecordingView, query: Mapping[str, str] | None = None, *, tiled_above: int | None = None
) -> bytes:
    """The whole recording; where it holds too many spans, as much as the first view can show.

    `findings=no` does not wait for the diagnosis: no span then has a finding; `only=finding` is what it then lacks.
    """
    asked = query or {}
    if asked.get("only") == "finding":
        return pack({}, {"finding": Column(lanes.finding_numbers(view))})
    diagnosed = asked.get("findings") != "no"
    rows = _rows(view, diagnosed=diagnosed)
    start, end = _bounds(view)
    tiled = len(rows.start) > (TILED_ABOVE if tiled_above is None else tiled_above)
    shown = _thinned(rows, start, end, _FIRST_PIXELS) if tiled else rows
    counters, columns = _counters(view)
    header = {
        **_header(shown, start, end, tiled=tiled, count=len(rows.start)),
        "counters": counters,
        "steps": _steps(view.trace),
        "minimap": view.keep("minimap", lambda: minimap(view, _MINIMAP)),
    }
    spans = _columns(shown, start, diagnosed=diagnosed)
    # What is drawn first comes first: the page does not wait for names.
    late = {name: spans.pop(name) for name in _LATE if name in spans}
    return pack(header, {**spans, **columns, **late})


def _rows(view: RecordingView, *, diagnosed: bool) -> Rows:
    rows = lanes.rows(view)
    return replace(rows, finding=lanes.finding_numbers(view)) if diagnosed else rows


def window(view: RecordingView, query: Mapping[str, str]) -> bytes:
    """The spans between two times, thinned to what so many pixels can show."""
    start, end, pixels = (_number(query, name) for name in ("from", "to", "px"))
    if not (end > start and 1 <= pixels <= _MOST_PIXELS):
        raise UsageError(f"a window needs from < to, and px from 1 to {_MOST_PIXELS:,}")
    diagnosed = query.get("findings") != "no"
    rows = _rows(view, diagnosed=diagnosed)
    shown = _thinned(rows, int(start), int(end), int(pixels))
    first = min(int(start), int(shown.start.min(initial=int(start))))
    header = {
        **_header(shown, first, int(end), tiled=True, count=len(rows.start)),
        "counters": [], "steps": [], "minimap": {"kinds": [], "columns": []},
    }  # fmt: skip
    return pack(header, _columns(shown, first, diagnosed=diagnosed))


def _number(query: Mapping[str, str], name: str) -> float:
    try:
        value = float(query[name])
    except (KeyError, ValueError):
        raise UsageError(f"a window needs {name}=NUMBER") from None
    if not abs(value) < 2**62:
        raise UsageError(f"{name}={query[name]}: no such time")
    return value


def _bounds(view: RecordingView) -> tuple[int, int]:
    first = view.trace.spans["start_ns"].min()
    return min(int(first), 0) if isinstance(first, int) else 0, view.trace.duration_ns


def _header(rows: Rows, start: int, end: int, *, tiled: bool, count: int) -> dict[str, Any]:
    return {
        "from_ns": start, "to_ns": end, "tiled": tiled, "spans_count": count, "names": rows.names,
        "tracks": rows.tracks,
    }  # fmt: skip


def _columns(rows: Rows, from_ns: int, *, diagnosed: bool) -> dict[str, Column]:
    gaps = np.diff(rows.start, prepend=from_ns)
    first = [row["offset"] for track in rows.tracks for row in track["rows"] if row["count"]]
    gaps[first] = rows.start[first] - from_ns
    name = rows.name.astype("<u2" if len(rows.names) <= 0xFFFF else "<u4")
    return {
        **times("start", gaps, "gaps"),
        **times("dur", rows.dur, "shuffled"),
        "name": Column(name, "shuffled"),
        "kind": Column(rows.kind),
        **steps("id", rows.id),
        **({"finding": Column(rows.finding)} if diagnosed else {}),
    }


def _thinned(rows: Rows, start: int, end: int, pixels: int) -> Rows:
    """Between two times, the spans that are drawn one by one, and of the others the longest of each pixel."""
    width = (end - start) / pixels
    kept: list[NDArray[np.int64]] = []
    tracks = []
    count = 0
    for track in rows.tracks:
        placed = []
        for row in track["rows"]:
            chosen = _visible(rows, row["offset"], row["offset"] + row["count"], start, end, width)
            placed.append({"offset": count, "count": len(chosen)})
            count += len(chosen)
            kept.append(chosen)
        tracks.append({**track, "rows": placed})
    order = np.concatenate(kept) if kept else np.empty(0, np.int64)
    return replace(
        rows,
        tracks=tracks,
        **{name: getattr(rows, name)[order] for name in ("start", "dur", "name", "kind", "id", "finding")},
    )


def _visible(rows: Rows, low: int, high: int, start: int, end: int, width: float) -> NDArray[np.int64]:
    first = low + int(np.searchsorted(rows.start[low:high], start, side="left"))
    past = low + int(np.searchsorted(rows.start[low:high], end, side="left"))
    # No span of a row covers another: only the one before the first can reach into the window.
    if first > low and rows.start[first - 1] + rows.dur[first - 1] > start:
        first -= 1
    begins, lengths = rows.start[first:past], rows.dur[first:past]
    if not len(begins):
        return np.empty(0, np.int64)
    wide = lengths >= _LEAST_PIXELS * width
    small = np.flatnonzero(~wide)
    if len(small):
        pixel = ((begins[small] - start) / width).astype(np.int64)
        opens = np.flatnonzero(np.concatenate(([True], pixel[1:] != pixel[:-1])))
        longest = np.maximum.reduceat(lengths[small], opens)
        size = np.diff(np.append(opens, len(small)))
        best = np.flatnonzero(lengths[small] == np.repeat(longest, size))
        which = np.searchsorted(opens, best, side="right")
        best = best[np.concatenate(([True], which[1:] != which[:-1]))]
        wide[small[best]] = True
    found: NDArray[np.int64] = first + np.flatnonzero(wide)
    return found


def _steps(trace: Trace) -> list[dict[str, Any]]:
    """Each step on the host, and where the work that it launched ran."""
    work = trace.device_spans.drop_nulls("step").group_by("step").agg(
        pl.col("start_ns").min(), pl.col("end_ns").max()
    )  # fmt: skip
    ran = {number: (start, end) for number, start, end in work.iter_rows()}
    shown = []
    for step in trace.steps:
        start, end = ran.get(step.number, (None, None))
        shown.append(
            {"step": step.number, "gpu_from_ns": start, "gpu_to_ns": end, "host_from_ns": step.start_ns,
             "host_to_ns": step.end_ns}
        )  # fmt: skip
    return shown


def _counters(view: RecordingView) -> tuple[list[dict[str, Any]], dict[str, Column]]:
    trace = view.trace
    found = [*_busy(trace), *_filled(trace), *_queue(trace), *_memory(trace)]
    columns = {}
    listed = []
    for number, (about, at, value) in enumerate(found):
        listed.append(about)
        columns[f"counter:{number}:at"] = Column(at.astype("<f8"))
        columns[f"counter:{number}:value"] = Column(
            value.astype("<f8" if about["unit"] == "bytes" else "<f4")
        )
    return listed, columns


Curve = tuple[dict[str, Any], NDArray[Any], NDArray[Any]]


def _busy(trace: Trace) -> list[Curve]:
    """For each device, the share of time in which it ran anything, in short stretches."""
    if not trace.has_device:
        return []
    found = []
    devices = device_time.by_device(trace.device_spans)
    several = len(devices) > 1
    for device, spans in devices[:_DEVICES]:
        edges = _stretches(trace, spans.height)
        busy = intervals.covered_ns(device_time.covered(spans), edges[:-1], edges[1:])
        share = 100 * busy / np.maximum(np.diff(edges), 1)
        title = f"GPU {device} busy" if several else "GPU busy"
        mean = 100 * float(busy.sum()) / max(trace.duration_ns, 1)
        about = {"title": title, "unit": "pct", "says": f"{mean:.1f} % of the recording", "most": 100}
        found.append((about, *_changes(edges[:-1], share)))
    return found


def _filled(trace: Trace) -> list[Curve]:
    """For each device, the estimated share of multiprocessors that had a block, in short stretches."""
    devices = device_time.by_device(device_time.kernel_fill(trace))
    found = []
    for device, kernels in devices[:_DEVICES]:
        edges = _stretches(trace, kernels.height)
        share = device_time.sm_efficiency_within(kernels, edges)
        if share is None:
            continue
        title = f"GPU {device} SM efficiency" if len(devices) > 1 else "SM efficiency"
        mean = float((share * np.diff(edges)).sum()) / max(trace.duration_ns, 1)
        says = f"{mean:.1f} % of the recording, estimated from the kernels' grids"
        about = {"title": title, "unit": "pct", "says": says, "most": 100}
        found.append((about, *_changes(edges[:-1], share)))
    return found


def _stretches(trace: Trace, count: int) -> NDArray[np.int64]:
    """The edges of short stretches of the recording, about as many as there are spans."""
    parts = int(np.clip(count, 64, _BUSY_BUCKETS))
    return np.linspace(0, max(trace.duration_ns, 1), parts + 1).astype(np.int64)


def _queue(trace: Trace) -> list[Curve]:
    """How many launches waited to begin, on all streams together."""
    launches = launch_queue.launched(trace)
    if launches.is_empty():
        return []
    call = launches["call_ns"].to_numpy()
    begun = np.maximum(launches["start_ns"].to_numpy(), call)
    at = np.concatenate((call, begun))
    order = np.argsort(at, kind="stable")
    depth = np.cumsum(np.repeat((1, -1), len(call))[order])
    at = at[order]
    last = np.append(at[1:] > at[:-1], True)
    at, depth = at[last], depth[last]
    most = int(depth.max(initial=0))
    about = {"title": "Launch queue", "unit": "count", "says": f"up to {most:,} deep", "most": most}
    return [(about, *_most_of(at, depth))]


def _memory(trace: Trace) -> list[Curve]:
    """What was allocated on the device with the highest peak."""
    if trace.allocations.is_empty():
        return []
    curve = memory_curve.curves(trace)[0]
    at = curve.points["at_ns"].to_numpy()
    value = curve.points["allocated_bytes"].to_numpy()
    says = f"{format_value('_bytes', curve.peak_bytes)} at most, on {curve.device}"
    about = {"title": "Memory", "unit": "bytes", "says": says, "most": curve.peak_bytes}
    return [(about, *_most_of(at, value))]


def _most_of(at: NDArray[Any], value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The curve, or where it has too many points the highest of each stretch."""
    if len(at) > _POINTS:
        opens = np.linspace(0, len(at), _POINTS, endpoint=False).astype(np.int64)
        at, value = at[opens], np.maximum.reduceat(value, opens)
    return _changes(at, value)


def _changes(at: NDArray[Any], value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Only where the value changes."""
    if not len(at):
        return at, value
    keep = np.concatenate(([True], value[1:] != value[:-1]))
    return at[keep], value[keep]
