"""Rows of the timeline: which spans stand in one line, so that none covers another.

A stream has one row, and more where its kernels overlap. A host thread has one for each level of calls, Python
frames apart. The modules of a device are its kernels projected on the modules that launched them. Below the streams
of a device stand the gaps in which it was idle, each named by its cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device import device_time
from foretrace.present.web import kinds
from foretrace.present.web.idle_gaps import KINDS as GAP_KINDS
from foretrace.present.web.idle_gaps import first_id, idle_gaps
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.module_rows import ModuleRow, device_title, module_rows
from foretrace.present.web.short_names import short
from foretrace.schema import DEVICE_KINDS, KINDS
from foretrace.trace import Trace

NO_SPAN = 0xFFFFFFFF  # the id of what is drawn and is no span of the recording
_PYTHON = KINDS.index("python")
_ROWS_MOST = 65_000
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """The spans of the timeline, row after row, each row by start."""

    tracks: list[dict[str, Any]]  # as the page has them
    names: list[str]
    start: Numbers
    dur: Numbers
    name: NDArray[np.uint32]
    kind: NDArray[np.uint8]
    id: NDArray[np.uint32]
    finding: NDArray[np.uint8]


def rows(view: RecordingView) -> Rows:
    """All rows of a recording, worked out once."""
    return view.keep("rows", lambda: _rows(view))


def _rows(view: RecordingView) -> Rows:
    trace = view.trace
    spans = trace.spans
    start, dur = spans["start_ns"].to_numpy(), spans["dur_ns"].fill_null(0).to_numpy()
    lane, group = _lanes(trace, start, dur)
    listed, first = _tracks(trace, lane, group)
    row_of = np.minimum(first[group].astype(np.int64) + lane, _ROWS_MOST).astype(np.uint16)
    order = np.argsort(row_of, kind="stable")  # spans come by start, and stay so within a row
    counts = np.bincount(row_of, minlength=int(row_of.max(initial=0)) + 1)
    names = _Names()
    codes = names.of_spans(spans)[order]
    lengths = _apart(row_of[order], start[order], dur[order])
    parts = [_Part(start[order], lengths, codes, _kinds(view)[order], order.astype(np.uint32))]
    tracks = _with_offsets(listed, counts)
    for title, projected in module_rows(view):
        placed = []
        for row in projected:
            placed.append({"offset": sum(len(part.start) for part in parts), "count": len(row.start)})
            parts.append(_projected_part(row, names))
        at = 1 + max(place for place, track in enumerate(tracks) if track["title"] == title)
        tracks.insert(
            at, {"group": "modules", "title": f"{title} by module", "subtitle": "projected", "rows": placed}
        )
    for title, gaps in _idle_parts(view, names):
        placed = [{"offset": sum(len(part.start) for part in parts), "count": len(gaps.start)}]
        parts.append(gaps)
        at = 1 + max(place for place, track in enumerate(tracks) if _is_stream_of(track, title))
        tracks.insert(at, {"group": "idle", "title": f"{title} idle", "subtitle": "by cause", "rows": placed})
    return _joined(tracks, names, parts)


def _is_stream_of(track: dict[str, Any], title: str) -> bool:
    return bool(track["group"] == "gpu" and track["title"] == title)


@dataclass(frozen=True)
class _Part:
    start: Numbers
    dur: Numbers
    name: NDArray[np.uint32]
    kind: NDArray[np.uint8]
    id: NDArray[np.uint32]


class _Names:
    """The names that are shown, each once."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def add(self, name: str) -> int:
        """The place of a name."""
        return self.places.setdefault(name, len(self.places))

    def of_spans(self, spans: pl.DataFrame) -> NDArray[np.uint32]:
        """For each span, the place of its short name: looked up once per name and kind."""
        name = spans["name"].to_physical().to_numpy()
        pair = name.astype(np.int64) * len(KINDS) + spans["kind"].to_physical().to_numpy()
        there = np.zeros(int(pair.max(initial=0)) + 1, bool)
        there[pair] = True
        used = np.flatnonzero(there)
        first = np.full(len(there), -1, np.int64)
        first[pair[::-1]] = np.arange(len(pair) - 1, -1, -1)
        texts = spans["name"].gather(first[used]).cast(pl.String)
        table = np.zeros(len(there), np.uint32)
        table[used] = [
            self.add(short(text, KINDS[number]))
            for text, number in zip(texts, used % len(KINDS), strict=True)
        ]
        found: NDArray[np.uint32] = table[pair]
        return found


def _projected_part(row: ModuleRow, names: _Names) -> _Part:
    """A projected row as spans that are not in the recording."""
    codes = np.array([names.add(label) for label in row.labels], np.uint32)
    count = len(row.start)
    return _Part(
        row.start,
        row.end - row.start,
        codes[row.label] if count else np.empty(0, np.uint32),
        np.full(count, kinds.NUMBER[row.kind], np.uint8),
        np.full(count, NO_SPAN, np.uint32),
    )


def _idle_parts(view: RecordingView, names: _Names) -> Iterator[tuple[str, _Part]]:
    """For each device its idle gaps, by start, with ids behind those of the spans."""
    found = idle_gaps(view)
    if found is None:
        return
    gaps = found.gaps.with_row_index("number", offset=first_id(view.trace))
    for (device,), rows in gaps.group_by("device", maintain_order=True):
        causes = rows["cause"].to_list()
        yield (
            device_title(device if isinstance(device, int) else None),
            _Part(
                rows["start_ns"].to_numpy(),
                rows["idle_ns"].to_numpy(),
                np.array([names.add(cause) for cause in causes], np.uint32),
                np.array([kinds.NUMBER[GAP_KINDS.get(cause, "idle")] for cause in causes], np.uint8),
                rows["number"].to_numpy().astype(np.uint32),
            ),
        )


def _kinds(view: RecordingView) -> NDArray[np.uint8]:
    """For each span the number of its kind."""
    trace = view.trace
    found = kinds.host_kinds(trace.spans)
    found[trace.spans["kind"].is_in(DEVICE_KINDS).to_numpy()] = kinds.NUMBER["elem"]
    if trace.has_device:
        found[trace.device_spans["id"].to_numpy()] = view.kinds
    return found


# A track's spans may be drawn apart: device work, marks on a device, calls, Python.
_GROUPS = ("gpu", "marks", "host", "python")
_GPU, _MARKS, _HOST, _PY = range(4)


def _lanes(trace: Trace, start: Numbers, dur: Numbers) -> tuple[Numbers, Numbers]:
    """For each span its row within its group of its track, and the number of that group (track × 4 + group)."""
    spans = trace.spans
    track = spans["track_id"].to_numpy().astype(np.int64)
    kind = spans["kind"].to_physical().to_numpy()
    on_device = np.isin(track, trace.tracks.filter(pl.col("stream").is_not_null())["id"].to_numpy())
    work = np.isin(kind, [KINDS.index(device_kind) for device_kind in DEVICE_KINDS])
    python = kind == _PYTHON
    part = np.where(work, _GPU, np.where(on_device, _MARKS, np.where(python, _PY, _HOST)))
    group = track * len(_GROUPS) + part
    lane = _levels(spans, python)
    flat = work | on_device
    lane[flat] = 0
    for number in np.unique(group[flat]).tolist():
        members = np.flatnonzero(group == number)
        lane[members] = stacked(start[members], dur[members])
    return lane, group


def _levels(spans: pl.DataFrame, python: NDArray[np.bool_]) -> Numbers:
    """For each span the number of spans around it that are Python frames, if it is one, or else that are not."""
    depth = spans["depth"].to_numpy()
    parent = spans["parent_id"].fill_null(0).to_numpy()
    order = np.argsort(depth, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(depth))))
    # Both counts in one number, so that each level is gathered once: calls in the upper half, frames in the lower.
    inside = np.where(python, np.int32(1), np.int32(1 << 16))  # what a span counts for those directly in it
    around = np.zeros(len(depth), np.int32)
    for level in range(1, len(bounds) - 1):
        here = order[bounds[level] : bounds[level + 1]]
        count = inside[parent[here]]
        around[here] = count
        inside[here] += count
    return np.where(python, around & 0xFFFF, around >> 16).astype(np.int64)


def stacked(start: Numbers, dur: Numbers) -> Numbers:
    """For spans by start, rows in which none covers another, as few as there can be."""
    lane = np.zeros(len(start), np.int64)
    if len(start) < 2:
        return lane
    end = start + dur
    reach = np.maximum.accumulate(end)
    # A cluster begins where all before has ended: only clusters of several spans need more than one row.
    opens = np.concatenate(([True], start[1:] >= reach[:-1]))
    if opens.all():
        return lane
    first = np.flatnonzero(opens)
    size = np.diff(np.append(first, len(start)))
    members = np.flatnonzero(np.repeat(size > 1, size))
    free: list[int] = []
    starts, ends, fresh = start[members].tolist(), end[members].tolist(), opens[members].tolist()
    found = [0] * len(members)
    for place, (begin, until, opening) in enumerate(zip(starts, ends, fresh, strict=True)):
        if opening:
            free = [until]
            continue
        for row, busy in enumerate(free):
            if busy <= begin:
                free[row] = until
                found[place] = row
                break
        else:
            found[place] = len(free)
            free.append(until)
    lane[members] = found
    return lane


def _tracks(trace: Trace, lane: Numbers, group: Numbers) -> tuple[list[dict[str, Any]], Numbers]:
    """The groups that have spans, in the page's order, and for each group its first row."""
    count = trace.tracks.height * len(_GROUPS)
    most = np.full(count, -1, np.int64)
    _maximum(most, group, lane)
    size = np.bincount(group, minlength=count)
    overhead = np.bincount(group[(trace.spans["kind"] == "overhead").to_numpy()], minlength=count)
    marked = _step_tracks(trace)
    named = trace.tracks.to_dicts()

    def order(number: int) -> tuple[Any, ...]:
        track = named[number // len(_GROUPS)]
        aside = number // len(_GROUPS) not in marked
        if number % len(_GROUPS) < _HOST:
            return number % len(_GROUPS), track["device"] or 0, aside, track["stream"] or 0
        return number % len(_GROUPS), bool(overhead[number] == size[number]), aside, -int(size[number])

    used = sorted(np.flatnonzero(size).tolist(), key=order)
    first = np.zeros(count, np.int64)
    listed = []
    row = 0
    for number in used:
        first[number] = row
        track = named[number // len(_GROUPS)]
        rows_count = int(most[number]) + 1
        group_name = _GROUPS[number % len(_GROUPS)]
        subtitle = "overhead" if overhead[number] == size[number] else _subtitle(track, group_name, marked)
        title = _title(track, group_name)
        listed.append(
            {"group": group_name, "title": title, "subtitle": subtitle, "rows": [(row, rows_count)]}
        )
        row += rows_count
    return listed, first


def _maximum(most: Numbers, group: Numbers, lane: Numbers) -> None:
    """The highest row of each group: rows are few, so each pair is marked, which is quicker than maximum.at."""
    width = int(lane.max(initial=0)) + 1
    there = np.zeros(len(most) * width, bool)
    there[group * width + lane] = True
    grid = there.reshape(len(most), width)
    most[:] = np.where(grid.any(axis=1), width - 1 - grid[:, ::-1].argmax(axis=1), -1)


def _step_tracks(trace: Trace) -> frozenset[int]:
    """The threads that marked steps: the main thread."""
    marks = trace.spans.filter(pl.col("kind") == "annotation")
    marks = marks.filter(pl.col("name").is_in(device_time.names_like(marks, r"^ProfilerStep#")))
    return frozenset(marks["track_id"].unique().to_list())


def _title(track: dict[str, Any], group: str) -> str:
    device = device_title(track["device"])
    return {"gpu": device, "marks": f"{device} marks", "host": "Host", "python": "Python"}[group]


def _subtitle(track: dict[str, Any], group: str, marked: frozenset[int]) -> str:
    if track["stream"] is not None:
        return f"stream {track['stream']}"
    first = track["id"] in marked or (track["thread"] is not None and track["thread"] == track["process"])
    name = "main thread" if first and group == "host" else str(track["name"])
    return name if track["rank"] is None else f"rank {track['rank']}, {name}"


def _apart(row: NDArray[np.uint16], start: Numbers, dur: Numbers) -> Numbers:
    """The durations, cut where the next span of the row begins.

    torch loses the return of some Python calls, which then seem to last until the recording ends.
    """
    if len(start) < 2:
        return dur
    room = np.diff(start)
    over = np.flatnonzero((row[1:] == row[:-1]) & (dur[:-1] > room))
    if len(over):
        dur = dur.copy()
        dur[over] = room[over]
    return dur


def _with_offsets(listed: list[dict[str, Any]], counts: Numbers) -> list[dict[str, Any]]:
    """The tracks with the place of each row among the spans."""
    offsets = np.concatenate(([0], np.cumsum(counts)))
    for track in listed:
        begin, count = track["rows"][0]
        track["rows"] = [
            {"offset": int(offsets[row]), "count": int(counts[row])}
            for row in range(begin, min(begin + count, len(counts)))
        ]
    return listed


def finding_numbers(view: RecordingView) -> NDArray[np.uint8]:
    """For each span of the rows, the number of the first finding that it belongs to, or 0."""

    def make() -> NDArray[np.uint8]:
        identity = rows(view).id
        # What is no span of the recording takes the last place, which stays 0.
        mark = np.zeros(view.trace.spans.height + 1, np.uint8)
        for number in range(len(view.finding_spans), 0, -1):
            mark[view.finding_spans[number - 1]] = min(number, 255)
        found: NDArray[np.uint8] = mark[np.minimum(identity, len(mark) - 1)]
        return found

    return view.keep("finding numbers", make)


def _joined(tracks: list[dict[str, Any]], names: _Names, parts: list[_Part]) -> Rows:
    identity = np.concatenate([part.id for part in parts])
    return Rows(
        tracks=tracks,
        names=list(names.places),
        start=np.concatenate([part.start for part in parts]),
        dur=np.concatenate([part.dur for part in parts]),
        name=np.concatenate([part.name for part in parts]),
        kind=np.concatenate([part.kind for part in parts]),
        id=identity,
        finding=np.zeros(len(identity), np.uint8),
    )
