"""A recording for ui.perfetto.dev: its own events as they are, and tracks of ours beside them.

Ours are a process named Foretrace: the steps on the host and on the GPU, a track for every finding, and counters of the
GPU, the launch queue and memory. They stand at the front of the recording's list of events, so that a recording of
gigabytes passes through in pieces; only what overlaps on one track gets a row of its own. One that is not sound JSON, holds secrets or is of another format than Kineto's is written
anew from its tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.host.launch_queue import queue_depth
from foretrace.analyze.concepts.memory.memory_curve import curves
from foretrace.diagnose.finding import Finding
from foretrace.errors import InputError
from foretrace.ingest.source import open_source
from foretrace.intervals import union
from foretrace.present.export import track_rows
from foretrace.present.text.findings import worths
from foretrace.present.web.recording_view import RecordingView
from foretrace.trace import Step, Trace

# Larger than any process id, and not a device number, which Kineto uses as one too.
PROCESS = 1 << 30
STEPS_ON_HOST, STEPS_ON_GPU, FIRST_FINDING = 1, 2, 10
# Repairs of the text itself: what they were made to is not JSON.
_UNSOUND = {
    "truncated", "damaged", "broken-stream", "bare-word", "bad-escape", "raw-quote", "control-character", "not-utf8",
}  # fmt: skip
_EVENTS_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[\s*(?P<next>[^\s])')
_LIST_BEGINS = re.compile(rb"\s*\[\s*(?P<next>[^\s])")
_LONGEST_HEADER = 64 << 20
_COUNTER_POINTS = 100_000
_BATCH = 5_000
_CATEGORIES = {
    "op": "cpu_op", "python": "python_function", "annotation": "user_annotation", "runtime": "cuda_runtime",
    "kernel": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset", "sync": "cuda_sync", "overhead": "overhead",
}  # fmt: skip

Times = NDArray[np.int64]


def chunks(view: RecordingView) -> Iterator[bytes]:
    """The whole file in pieces."""
    trace = view.trace
    own_text = trace.format == "kineto" and not trace.meta.get("masked_texts")
    if own_text and _UNSOUND.isdisjoint(repair.code for repair in trace.repairs):
        moves = track_rows.moves(trace, _clock_ns(trace))
        yield from _spliced(trace, _joined(chain(moves.tracks, _own_events(view))), moves)
    else:
        yield b'{"traceEvents":['
        yield from _joined(_own_events(view))
        yield from _joined(_recorded_events(trace), after_others=True)
        yield b"]}"


def _spliced(trace: Trace, ours: Iterator[bytes], moves: track_rows.Moves) -> Iterator[bytes]:
    """The recording's own text with our events at the front of its list; what overlaps on rows of its own."""
    before, text = _text(trace)
    first = next(text)
    yield before
    yield from ours
    if not first.startswith(b"]"):
        yield b","
    rest = chain((first,), text)
    yield from track_rows.rewritten(rest, moves) if moves.slices else rest


def _text(trace: Trace) -> tuple[bytes, Iterator[bytes]]:
    """The recording's own text: what stands before its first event, and the rest from there."""
    pieces = open_source(trace.path).chunks()
    head = b""
    for piece in pieces:
        head += piece
        begins = _LIST_BEGINS.match(head.removeprefix(b"\xef\xbb\xbf")) or _EVENTS_BEGIN.search(head)
        if begins or len(head) > _LONGEST_HEADER:
            break
    else:
        begins = None
    if not begins:
        raise InputError(f"{trace.path}: its list of events was not found again; has the file changed?")
    head = head.removeprefix(b"\xef\xbb\xbf") if begins.re is _LIST_BEGINS else head
    at = begins.start("next")
    return head[:at], chain((head[at:],), pieces)


def _joined(events: Iterable[str], *, after_others: bool = False) -> Iterator[bytes]:
    batch: list[str] = []
    comma = after_others
    for event in events:
        batch.append(event)
        if len(batch) >= _BATCH:
            yield ("," if comma else "").encode() + ",".join(batch).encode()
            batch, comma = [], True
    if batch:
        yield ("," if comma else "").encode() + ",".join(batch).encode()


def _own_events(view: RecordingView) -> Iterator[str]:
    """Every event of our tracks, as JSON."""
    trace = view.trace
    yield _named("process_name", 0, "Foretrace: steps, findings and counters")
    yield f'{{"ph":"M","name":"process_sort_index","pid":{PROCESS},"tid":0,"args":{{"sort_index":-1000}}}}'
    yield from _steps(trace)
    yield from _findings(view)
    for name, unit, at, value in _counters(trace):
        yield from _counter(trace, name, unit, *_thinned(at, value))


def _steps(trace: Trace) -> Iterator[str]:
    if trace.steps:
        yield _named("thread_name", STEPS_ON_HOST, "Steps on the host")
    for step in trace.steps:
        yield _span(trace, STEPS_ON_HOST, _step_name(step), step.start_ns, step.end_ns - step.start_ns, {})
    device = (
        trace.device_spans.drop_nulls("step")
        .group_by("step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    )
    if device.height:
        yield _named("thread_name", STEPS_ON_GPU, "Steps on the GPU")
    before = 0
    names = {step.number: _step_name(step) for step in trace.steps}
    for number, start, end in device.sort("start_ns").iter_rows():
        start = max(start, before)  # streams may overlap steps; slices of one track may not cross
        before = max(end, before)
        yield _span(trace, STEPS_ON_GPU, names[number], start, max(end - start, 0), {})


def _step_name(step: Step) -> str:
    return f"Step {step.number} {step.kind}" if step.kind else f"Step {step.number}"


def _findings(view: RecordingView) -> Iterator[str]:
    """A track for each finding, with the spans that it is about; those that overlap on further rows of it."""
    spans = view.trace.spans
    tid = FIRST_FINDING
    for number, (finding, ids) in enumerate(zip(view.diagnosis.findings, view.finding_spans, strict=True), 1):
        about = spans[ids].drop_nulls("dur_ns").sort("start_ns", "id")
        if about.is_empty():
            continue
        starts = about["start_ns"].to_numpy()
        on_one = np.zeros(about.height, np.int64)
        rows = track_rows.rows_of(
            on_one, starts, starts + about["dur_ns"].to_numpy(), track_rows.is_work(about)
        )
        for row in range(int(rows.max()) + 1):
            more = f" (row {row + 1}: overlapping)" if row else ""
            yield _named("thread_name", tid + 1 + row, f"Finding {number}: {finding.rule}{more}")
        says = _told(number, finding)
        names = about["name"].cast(pl.String)
        for name, start, dur, row in zip(names, starts.tolist(), about["dur_ns"], rows.tolist(), strict=True):
            yield _span(view.trace, tid + 1 + row, name, start, dur, says)
        tid += 1 + int(rows.max())


def _told(number: int, finding: Finding) -> dict[str, object]:
    """What a slice of a finding says when it is chosen."""
    told = {
        "finding": number,
        "says": finding.says,
        "rule": finding.rule,
        "worth": worths(finding),
        "fix": finding.fix.says,
        "at": ", ".join(place.text for place in finding.where[:3]),
    }
    return {name: value for name, value in told.items() if value}


def _counters(trace: Trace) -> Iterator[tuple[str, str, Times, Times]]:
    """Name, unit, times and values of every counter."""
    device = trace.device_spans
    for (index,), rows in sorted(device.partition_by("device", as_dict=True).items(), key=str):
        busy = union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        at = np.stack((busy.start, busy.end), axis=1).ravel()
        yield f"GPU {index} busy", "busy", at, np.tile(np.array((1, 0), np.int64), len(busy.start))
    if device.height:
        for (index, stream), rows in sorted(
            queue_depth(trace).partition_by("device", "stream", as_dict=True).items(), key=str
        ):
            name = f"Launch queue, GPU {index} stream {stream}"
            yield name, "launches", rows["at_ns"].to_numpy(), rows["depth_count"].to_numpy()
    if trace.allocations.height:
        for curve in curves(trace):
            points = curve.points.drop_nulls("allocated_bytes")
            yield (
                f"Memory, {curve.device}",
                "bytes",
                points["at_ns"].to_numpy(),
                points["allocated_bytes"].to_numpy(),
            )


def _thinned(at: Times, value: Times) -> tuple[Times, Times]:
    """At most so many points as a screen could show; of neighbours the highest stays."""
    group = -(-len(at) // _COUNTER_POINTS)
    if group <= 1:
        return at, value
    whole = len(at) // group * group
    highest = value[:whole].reshape(-1, group).argmax(axis=1) + np.arange(0, whole, group)
    kept = np.append(highest, np.arange(whole, len(at)))
    return at[kept], value[kept]


def _counter(trace: Trace, name: str, unit: str, at: Times, value: Times) -> Iterator[str]:
    start = f'{{"ph":"C","name":{json.dumps(name)},"pid":{PROCESS},"tid":0,"ts":'
    for when, much in zip(at.tolist(), value.tolist(), strict=True):
        yield f'{start}{_stamp(trace, when)},"args":{{"{unit}":{much}}}}}'


def _recorded_events(trace: Trace) -> Iterator[str]:
    """The spans of the tables, for a recording whose own text is not sound."""
    tracks = {row["id"]: row for row in trace.tracks.iter_rows(named=True)}
    rows = track_rows.rows_of_spans(trace)
    threads = {(track, 0): track_rows.place_of(row)[1] for track, row in tracks.items()}
    threads |= track_rows.further_threads(trace, rows)
    for (track, row), thread in threads.items():
        process = track_rows.place_of(tracks[track])[0]
        name = json.dumps(track_rows.row_name(tracks[track]["name"], row))
        yield f'{{"ph":"M","name":"thread_name","pid":{process},"tid":{thread},"args":{{"name":{name}}}}}'
    spans = trace.spans.select(
        "track_id", pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String), "start_ns", "dur_ns"
    )
    for (track, kind, name, start, dur), row in zip(spans.iter_rows(), rows.tolist(), strict=True):
        process = track_rows.place_of(tracks[track])[0]
        yield (
            f'{{"ph":"X","cat":"{_CATEGORIES[kind]}","name":{json.dumps(name)},"pid":{process},"tid":{threads[track, row]},'
            f'"ts":{_stamp(trace, start)},"dur":{_microseconds(dur or 0)}}}'
        )


def _span(trace: Trace, tid: int, name: str, start_ns: int, dur_ns: int, args: dict[str, object]) -> str:
    return (
        f'{{"ph":"X","cat":"foretrace","name":{json.dumps(name)},"pid":{PROCESS},"tid":{tid},'
        f'"ts":{_stamp(trace, start_ns)},"dur":{_microseconds(dur_ns)},"args":{json.dumps(args)}}}'
    )


def _named(what: str, tid: int, name: str) -> str:
    return f'{{"ph":"M","name":"{what}","pid":{PROCESS},"tid":{tid},"args":{{"name":{json.dumps(name)}}}}}'


def _stamp(trace: Trace, at_ns: int) -> str:
    """A time on the clock of the recording's own events."""
    return _microseconds(at_ns + _clock_ns(trace))


def _clock_ns(trace: Trace) -> int:
    """What the recording's own events have at the time that is 0 here."""
    clock: int = trace.meta.get("epoch_ns", 0) - (trace.meta.get("base_ns") or 0)
    return clock


def _microseconds(ns: int) -> str:
    """Written as text: a double would lose nanoseconds of a clock that began in 1970."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"
