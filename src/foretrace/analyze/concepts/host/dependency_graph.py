"""What each piece of device work and each blocking call had to wait for: one predecessor per node.

Nodes are device spans, in order of start, then blocking
calls, in order of end. A node is left backwards in three stretches: its own, from the time at which the walk
enters it down to `own_from`; the link, down to `link_from`; then host work, down to `enter`, which is where the
walk enters the predecessor. Every step goes back in time or, at the same time, to a lower row: walks end.

Rules, after HTA's critical path and with its gaps filled:
- device work waits for the latest of: the work before it on its stream; its launch call's start plus the
  latency that launches onto an empty stream have here (the median); and, where the host called
  StreamWaitEvent between the two launches, the last work of another stream to end before it;
- a call that synchronises waits for the last device work that ends inside it; a copy's call that returns after
  its copy, from or to memory not known to be pinned, waits for that copy; cudaFree and cudaHostAlloc wait
  where device work ended just before they returned;
- host threads that take turns (autograd's, while the main thread waits) are one line; one that runs beside the
  main thread is a line of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device import device_time
from foretrace.intervals import Times
from foretrace.runtime_names import Effect, calls_that
from foretrace.trace import Trace

Array = NDArray[Any]

CLASSES = ("host", "input", "launch", "kernel", "copy", "communication", "sync", "gap")
HOST, INPUT, LAUNCH, KERNEL, COPY, COMMUNICATION, SYNC, GAP = range(len(CLASSES))
NOBODY = -1
LONG_AGO = np.iinfo(np.int64).min // 2

# Longest time that a call takes to return once what it waited for is done (measured on H200: 5 to 15 us).
_WAKE_NS = 15_000
# A thread that enters more than one pause of the main thread per this many of its calls does not take turns.
_CALLS_PER_PAUSE = 10


@dataclass(frozen=True)
class DependencyGraph:
    """The nodes as columns; `span_id` is the device span or the blocking call."""

    span_id: Array
    own_class: Array
    own_from: Times
    link_class: Array
    link_from: Times
    predecessor: Array
    enter: Times
    device_count: int

    block_end: Times  # when each blocking call returned
    block_line: Array

    @cached_property
    def steps_back(self) -> tuple[list[int], list[int]]:
        """`predecessor` and `enter` as lists: a walk reads them one by one."""
        return self.predecessor.tolist(), self.enter.tolist()

    def last_return(self, line: int, at_ns: int) -> tuple[int, int]:
        """The last blocking call of a host line that had returned at that time, and when it did."""
        own = np.flatnonzero((self.block_line == line) & (self.block_end <= at_ns))
        if not len(own):
            return NOBODY, LONG_AGO
        return int(own[-1]) + self.device_count, int(self.block_end[own[-1]])


def build(trace: Trace) -> DependencyGraph:
    """The graph of all device work and blocking calls of a recording."""
    work = device_time.device_work(trace)
    calls = _calls(trace)
    blocking = _blocking(trace, work, calls)
    lines = _host_lines(trace, work, blocking)
    count = work.height
    device = _device_nodes(trace, work, calls, blocking, lines)
    blocks = _block_nodes(blocking, lines, count)
    joined = {name: np.concatenate((device[name], blocks[name])) for name in device}
    return DependencyGraph(
        **joined,
        device_count=count,
        block_end=blocking["end_ns"].to_numpy(),
        block_line=lines[blocking["track_id"].to_numpy()],
    )


def _calls(trace: Trace) -> pl.DataFrame:
    """Runtime calls, with `end_ns`."""
    spans = trace.spans.lazy().filter((pl.col("kind") == "runtime") & pl.col("dur_ns").is_not_null())
    end = pl.col("start_ns") + pl.col("dur_ns")
    return spans.select("id", "track_id", "name", "start_ns", "parent_id", end_ns=end).collect()


def _blocking(trace: Trace, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Calls that waited or exist to wait, by end; `awaited` is the row of the device work, `own_from` its end."""
    explicit = calls.filter(pl.Series(calls_that(calls["name"], Effect.SYNC)))
    implicit = calls.filter(pl.Series(calls_that(calls["name"], Effect.FREE | Effect.BLOCKS, Effect.PIN)))
    ends = work["end_ns"].to_numpy()
    by_end = np.argsort(ends, kind="stable")
    sure = _awaiting(explicit, ends, by_end, work["start_ns"].to_numpy())
    maybe = _awaiting(implicit, ends, by_end, work["start_ns"].to_numpy())
    just_before = pl.col("end_ns") - pl.col("own_from") <= _WAKE_NS
    maybe = maybe.filter((pl.col("awaited") != NOBODY) & just_before)
    copies = _blocking_copies(trace, work, calls)
    # A driver call inside a runtime call, or the sync inside a blocking copy's call, is the outer call's.
    waits = pl.concat((sure, maybe, copies)).unique("id", keep="last", maintain_order=True)
    inner = pl.col("parent_id").is_in(waits["id"].implode()) & pl.col("parent_id").is_not_null()
    return waits.filter(~inner).sort("end_ns", maintain_order=True)


def _awaiting(calls: pl.DataFrame, ends: Times, by_end: Array, starts: Times) -> pl.DataFrame:
    """The calls with the last device work that ended inside each; without one, `own_from` is the call's start."""
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    place = np.searchsorted(ends[by_end], end, side="right") - 1
    row = np.where(place >= 0, by_end[place] if len(by_end) else NOBODY, NOBODY)
    inside = row != NOBODY
    inside[inside] = (ends[row[inside]] > start[inside]) & (starts[row[inside]] < end[inside])
    awaited = np.where(inside, row, NOBODY)
    own_from = np.where(inside, ends[awaited] if len(ends) else start, start)
    return calls.with_columns(awaited=pl.Series(awaited, dtype=pl.Int64), own_from=pl.Series(own_from))


def _blocking_copies(trace: Trace, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Calls that returned only after their copy was done, where its host memory is not known to be pinned."""
    pageable = trace.copies.filter(pl.col("pageable").fill_null(value=True))["span_id"]
    rows = work.with_row_index("awaited").filter(
        (pl.col("kind") == "copy")
        & pl.col("launch_id").is_not_null()
        & pl.col("id").is_in(pageable.implode())
        & (pl.col("dur_ns") > 0)
    )
    copied = rows.select(pl.col("awaited").cast(pl.Int64), id="launch_id", own_from="end_ns")
    copied = copied.unique("id", keep="last", maintain_order=True)
    joined = calls.join(copied, on="id", how="inner")
    return joined.filter(pl.col("own_from") <= pl.col("end_ns"))


def _host_lines(trace: Trace, work: pl.DataFrame, blocking: pl.DataFrame) -> Array:
    """For each track that launches or blocks its host line; the main line is 0."""
    line = np.full(trace.tracks.height, NOBODY)
    track_of = trace.spans["track_id"].to_numpy()
    launched = work["launch_id"].drop_nulls().to_numpy()
    tracks, counts = np.unique(np.concatenate((track_of[launched], blocking["track_id"])), return_counts=True)
    if not len(tracks):
        return line
    main = _main_track(trace, tracks, counts)
    line[tracks] = np.arange(1, len(tracks) + 1)
    line[main] = 0
    if len(tracks) == 1:
        return line
    on_main = trace.spans.filter((pl.col("track_id") == main) & pl.col("kind").is_in(("op", "runtime")))
    own = np.sort(
        np.concatenate((on_main["start_ns"], on_main["start_ns"] + on_main["dur_ns"].fill_null(0))),
        kind="stable",
    )
    starts = trace.spans["start_ns"].to_numpy()
    for track in tracks[tracks != main].tolist():
        at = np.append(
            starts[launched[track_of[launched] == track]],
            blocking.filter(pl.col("track_id") == track)["start_ns"],
        )
        pauses = len(np.unique(np.searchsorted(own, at)))
        if pauses <= max(1, len(at) // _CALLS_PER_PAUSE):
            line[track] = 0
    return line


def _main_track(trace: Trace, tracks: Array, counts: Array) -> int:
    """The thread that marks the steps if it launches or blocks, else the one that does so most."""
    mark = trace.spans.lazy().filter(pl.col("kind") == "annotation").select("track_id", "name").collect()
    steps = mark.filter(pl.col("name").is_in(device_time.names_like(mark, r"^ProfilerStep")))["track_id"]
    marked = [track for track in steps.unique(maintain_order=True).to_list() if track in tracks]
    return int(marked[0]) if marked else int(tracks[np.argmax(counts)])


def _device_nodes(
    trace: Trace, work: pl.DataFrame, calls: pl.DataFrame, blocking: pl.DataFrame, lines: Array
) -> dict[str, Array]:
    """For each device span, what bounded its start."""
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    track = work["track_id"].to_numpy()
    launch = work["launch_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    has_launch = launch != NOBODY
    called = np.where(has_launch, trace.spans["start_ns"].to_numpy()[launch], LONG_AGO)
    called = np.minimum(called, start)  # a clock that is off must not make time run forward
    before = _before_on_stream(track)
    free = np.where(before != NOBODY, np.minimum(end[before], start), LONG_AGO)
    ready = np.where(
        has_launch, np.minimum(start, called + _latency(start, called, free, has_launch)), LONG_AGO
    )
    other = _awaited_stream(work, calls, before, called)
    other_end = np.where(other != NOBODY, end[other], LONG_AGO)
    by_other = other_end > np.maximum(ready, free)
    by_launch = ~by_other & has_launch & ((ready > free) | (before == NOBODY))
    by_stream = ~by_other & ~by_launch & (before != NOBODY)
    waits_for = np.select((by_other, by_stream), (other, before), NOBODY)
    link_from = np.select((by_other, by_stream, by_launch), (other_end, free, called), start)
    line = np.where(has_launch, lines[trace.spans["track_id"].to_numpy()[launch]], 0)
    on_host = waits_for == NOBODY
    block, returned = _last_returns(blocking, lines, line[on_host], link_from[on_host])
    waits_for[on_host] = np.where(block == NOBODY, NOBODY, block + len(start))
    enter = link_from.copy()
    enter[on_host] = returned
    kind = np.where((work["kind"] == "copy").to_numpy(), COPY, KERNEL)
    return {
        "span_id": work["id"].to_numpy(),
        "own_class": np.where(work["communication"].to_numpy(), COMMUNICATION, kind),
        "own_from": start,
        "link_class": np.where(by_launch, LAUNCH, GAP),
        "link_from": link_from,
        "predecessor": waits_for,
        "enter": enter,
    }


def _before_on_stream(track: Array) -> Array:
    """For each row, the row before it on its track, or NOBODY."""
    order = np.argsort(track, kind="stable")
    before = np.full(len(track), NOBODY)
    same = track[order[1:]] == track[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _latency(start: Times, called: Times, free: Times, has_launch: Array) -> int:
    """From a call to the start of its work where the stream was empty: the median, else the least of all."""
    idle = has_launch & (free <= called)
    if idle.any():
        return int(np.median(start[idle] - called[idle]))
    return int((start[has_launch] - called[has_launch]).min(initial=0)) if has_launch.any() else 0


def _awaited_stream(work: pl.DataFrame, calls: pl.DataFrame, before: Array, called: Times) -> Array:
    """For work whose stream was told to wait: the last work to end before it, if on another stream."""
    waits = calls.filter(pl.Series(calls_that(calls["name"], Effect.AWAIT)))["start_ns"].to_numpy()
    awaited = np.full(len(before), NOBODY)
    if not len(waits):
        return awaited
    since = np.where(before != NOBODY, called[before], LONG_AGO)
    must_wait = np.searchsorted(waits, called) > np.searchsorted(waits, since)
    rows = np.flatnonzero(must_wait & (called > LONG_AGO))
    start, end, track = (work[name].to_numpy() for name in ("start_ns", "end_ns", "track_id"))
    by_end = np.argsort(end, kind="stable")
    place = np.searchsorted(end[by_end], start[rows], side="right") - 1
    last = np.where(place >= 0, by_end[place], NOBODY)
    elsewhere = (last != NOBODY) & (track[last] != track[rows]) & (last < rows)
    awaited[rows[elsewhere]] = last[elsewhere]
    return awaited


def _last_returns(blocking: pl.DataFrame, lines: Array, line: Array, at: Times) -> tuple[Array, Times]:
    """For each time on a host line, the row of the last blocking call that had returned, and when it did."""
    row, returned = np.full(len(at), NOBODY), np.full(len(at), LONG_AGO)
    ends = blocking["end_ns"].to_numpy()
    block_line = lines[blocking["track_id"].to_numpy()]
    for number in np.unique(line).tolist():
        own = np.flatnonzero(block_line == number)
        asked = np.flatnonzero(line == number)
        place = np.searchsorted(ends[own], at[asked], side="right") - 1
        known = place >= 0
        row[asked[known]] = own[place[known]]
        returned[asked[known]] = ends[own[place[known]]]
    return row, returned


def _block_nodes(blocking: pl.DataFrame, lines: Array, count: int) -> dict[str, Array]:
    """For each blocking call what it waited for, or without that the blocking call before it."""
    awaited, own_from = blocking["awaited"].to_numpy(), blocking["own_from"].to_numpy()
    line = lines[blocking["track_id"].to_numpy()]
    rows = np.arange(len(awaited))
    previous, returned = _last_returns(blocking, lines, line, own_from)
    # An empty call returns when it starts: what is before it is then the row above in its line, not itself.
    itself = previous >= rows
    previous[itself] = _before_on_stream(line)[itself]
    ends = blocking["end_ns"].to_numpy()
    returned[itself] = np.where(previous[itself] != NOBODY, ends[previous[itself]], LONG_AGO)
    waited = awaited != NOBODY
    return {
        "span_id": blocking["id"].to_numpy(),
        "own_class": np.full(len(rows), SYNC),
        "own_from": own_from,
        "link_class": np.full(len(rows), SYNC),
        "link_from": own_from,
        "predecessor": np.where(waited, awaited, np.where(previous == NOBODY, NOBODY, previous + count)),
        "enter": np.where(waited, own_from, returned),
    }
