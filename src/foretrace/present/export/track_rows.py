"""Rows of a track: slices that overlap without one being inside the other stand on further rows, so that each is shown.

Perfetto nests the slices of a track, and drops one that begins inside another and ends after it. Kernels of one stream overlap
where one begins before the last has ended, and so do ranges of a thread that begin in one Python call and end in another. Work
of a device is never nested either: a kernel is no part of another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.intervals import union
from foretrace.trace import Trace

# Threads of further rows: beyond the numbers that systems give threads, and those of streams.
FIRST_ROW = 1 << 30
_KINDS_OF_WORK = ("kernel", "copy", "set")
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
for _ in range(7):  # objects inside; Kineto has two levels
    _OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb"|" + _OBJECT + rb")*+\}"
_EVENT = re.compile(_OBJECT, re.DOTALL)
_TIME = re.compile(rb'"ts"\s*+:\s*+(\d[\d.]*+)')
_MEMBER = re.compile(rb'"(ph|pid|tid|ts|dur)"\s*+:\s*+(' + _STRING + rb"|[^,{}\s]++)")
_AT_ONCE = 4 << 20  # bytes of text
_LONGEST = 256 << 10  # bytes of an event before its time, and behind it
_FLOWS = (b'"s"', b'"t"', b'"f"')

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Place = tuple[int, int]  # process and thread, as events name them


def is_work(spans: pl.DataFrame) -> Flags:
    """Which spans are work of a device."""
    return spans["kind"].is_in(_KINDS_OF_WORK).to_numpy()


def rows_of(tracks: Numbers, starts: Numbers, ends: Numbers, works: Flags) -> Numbers:
    """The row of each slice on its track: the first in which it nests, and overlaps no other work if it is work itself."""
    rows = np.zeros(len(starts), np.int64)
    order = np.lexsort((-ends, starts, tracks))
    open_rows: list[list[tuple[int, bool]]] = []  # of each row, the ends of what is open, and whether work is
    last = None
    columns = (order, tracks[order], starts[order], ends[order], works[order])
    for place, track, start, end, work in zip(*(column.tolist() for column in columns), strict=True):
        if track != last:
            open_rows, last = [], track
        row = next((row for row, opened in enumerate(open_rows) if _fits(opened, start, end, work)), None)
        if row is None:
            row = len(open_rows)
            open_rows.append([])
        opened = open_rows[row]
        opened.append((end, work or bool(opened and opened[-1][1])))
        rows[place] = row
    return rows


def _fits(opened: list[tuple[int, bool]], start: int, end: int, work: bool) -> bool:
    """Whether a slice nests into what is open on a row; closes what has ended."""
    while opened and opened[-1][0] <= start:
        opened.pop()
    return not opened or (end <= opened[-1][0] and not (work and opened[-1][1]))


# --- of a recording's tables -----------------------------------------------------------------------------------


def rows_of_spans(trace: Trace) -> Numbers:
    """The row of each span of a recording on its track."""
    spans = trace.spans.select(
        "id",
        pl.col("track_id").cast(pl.Int64),
        "parent_id",
        "start_ns",
        end_ns=pl.col("start_ns") + pl.col("dur_ns").fill_null(0),
        work=pl.col("kind").is_in(_KINDS_OF_WORK),
    )
    rows = np.zeros(spans.height, np.int64)
    for chosen in _overlapping(spans):
        some = spans[chosen]
        columns = [some[name].to_numpy() for name in ("track_id", "start_ns", "end_ns")]
        rows[chosen] = rows_of(columns[0], columns[1], columns[2], some["work"].to_numpy())
    return rows


def _overlapping(spans: pl.DataFrame) -> Iterator[Numbers]:
    """Of each track, the places of the spans that begin while others overlap without nesting; in most recordings few."""
    windows = pl.concat([_of_siblings(spans), _of_nested_work(spans)])
    for (track,), some in windows.partition_by("track_id", as_dict=True).items():
        joined = union(some["begin_ns"].to_numpy(), some["until_ns"].to_numpy())
        own = spans.filter(pl.col("track_id") == track).select("id", "start_ns")
        starts = own["start_ns"].to_numpy()
        window = np.searchsorted(joined.start, starts, side="right") - 1
        inside = (window >= 0) & (starts < joined.end[window])
        yield own["id"].to_numpy()[inside].astype(np.int64)


def _of_siblings(spans: pl.DataFrame) -> pl.DataFrame:
    """From when to when siblings overlap. A parent is the innermost span that holds another whole: all else must not overlap."""
    group = ("track_id", "parent_id")
    latest = pl.col("end_ns").cum_max().shift(1).over(*group, order_by="id")
    overlaps = (pl.col("start_ns") < latest).fill_null(False)
    clusters = spans.select(
        *group, "id", "start_ns", "end_ns", overlaps=overlaps
    ).with_columns(cluster=(~pl.col("overlaps")).cum_sum().over(*group, order_by="id"))  # fmt: skip
    return (
        clusters.group_by(*group, "cluster")
        .agg(pl.col("start_ns").min().alias("begin_ns"), pl.col("end_ns").max().alias("until_ns"), pl.len())
        .filter(pl.col("len") > 1)
        .select("track_id", "begin_ns", "until_ns")
    )


def _of_nested_work(spans: pl.DataFrame) -> pl.DataFrame:
    """From when to when work holds other work."""
    inner = spans.filter(pl.col("work")).drop_nulls("parent_id")
    outer = spans.filter(pl.col("work")).join(inner, left_on="id", right_on="parent_id", how="semi")
    return outer.select("track_id", begin_ns="start_ns", until_ns="end_ns")


# --- of a recording's text -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moves:
    """Which events of a recording's text stand on another thread."""

    slices: Mapping[
        tuple[Place, int, int], list[int]
    ]  # place, start and length in ns -> threads, one for each such slice
    arrows: Mapping[
        tuple[Place, int], int
    ]  # place and time in ns -> thread, of those that begin or end at such a slice
    times: Mapping[bytes, int]  # the starts, as the text may spell them
    tracks: Sequence[str]  # events that name the new threads


def moves(trace: Trace, clock_ns: int) -> Moves:
    """What has to move, where the recording's own events lie `clock_ns` after ours."""
    rows = rows_of_spans(trace)
    moved = trace.spans.select(
        "track_id", pl.col("start_ns") + clock_ns, pl.col("dur_ns").fill_null(0), row=pl.Series(rows)
    )
    tracks = {each["id"]: each for each in trace.tracks.iter_rows(named=True)}
    threads = further_threads(trace, rows)
    slices: dict[tuple[Place, int, int], list[int]] = {}
    arrows: dict[tuple[Place, int], int] = {}
    stays = moved.filter(pl.col("row") == 0)
    moved = moved.filter(pl.col("row") > 0)
    stays = stays.join(moved, on=["track_id", "start_ns"], how="semi")
    for track, start, dur, row in moved.iter_rows():
        place, thread = place_of(tracks[track]), threads[track, row]
        slices.setdefault((place, start, dur), []).append(thread)
        arrows[place, start] = thread
    # Where two begin at the same time, an arrow's place does not tell which it is of: it stays.
    for track, start in stays.select("track_id", "start_ns").iter_rows():
        arrows.pop((place_of(tracks[track]), start), None)
    times = {text: start for start in moved["start_ns"].unique() for text in _spelled(start)}
    return Moves(slices, arrows, times, tuple(_names(tracks, threads)))


def further_threads(trace: Trace, rows: Numbers) -> dict[tuple[int, int], int]:
    """The threads of further rows, by track and row."""
    used = pl.DataFrame({"track": trace.spans["track_id"], "row": rows}).filter(pl.col("row") > 0)
    pairs = used.unique().sort("track", "row").iter_rows()
    return {(track, row): FIRST_ROW + number for number, (track, row) in enumerate(pairs)}


def place_of(track: Mapping[str, int | None]) -> Place:
    """The process and thread that Kineto writes for a track."""
    if track["device"] is not None:
        return track["device"], track["stream"] or 0
    return track["process"] or 0, track["thread"] or 0


def row_name(name: str, row: int) -> str:
    """What a row is called; the first one is the track itself."""
    return f"{name.strip()} (row {row + 1}: overlapping)" if row else name


def _names(
    tracks: Mapping[int, Mapping[str, int | None]], threads: Mapping[tuple[int, int], int]
) -> Iterator[str]:
    for (track, row), thread in threads.items():
        process, own = place_of(tracks[track])
        begin = f'{{"ph":"M","pid":{process},"tid":{thread},"ts":0,"name":'
        name = json.dumps(row_name(str(tracks[track]["name"]), row))
        yield f'{begin}"thread_name","args":{{"name":{name}}}}}'
        yield f'{begin}"thread_sort_index","args":{{"sort_index":{own}}}}}'


def _spelled(at_ns: int) -> set[bytes]:
    """A time in microseconds, as Kineto and as other programs write it."""
    whole = f"{at_ns // 1000}.{at_ns % 1000:03d}"
    short = whole.rstrip("0")
    return {text.encode() for text in (whole, short, f"{short}0", short.rstrip("."))}


def rewritten(text: Iterable[bytes], moved: Moves) -> Iterator[bytes]:
    """The text with what moves on its new thread; everything else as it is.

    Only events whose time is that of something which moves are looked at: a gigabyte is searched, not parsed.
    """
    kept, searched = b"", 0
    parts: list[bytes]
    for piece in _larger(text):
        kept += piece
        last = len(kept) - _LONGEST  # an event that began before, and its end, are in the text at hand
        done, parts = 0, []
        for found in _TIME.finditer(kept, searched):
            if found.start() > last:
                break
            done = _replaced(kept, found, done, moved, parts)
        searched = max(last + 1, done, searched)
        safe = max(min(searched - _LONGEST, len(kept)), done)
        yield b"".join([*parts, kept[done:safe]])
        kept, searched = kept[safe:], searched - safe
    done, parts = 0, []
    for found in _TIME.finditer(kept, searched):
        done = _replaced(kept, found, done, moved, parts)
    yield b"".join([*parts, kept[done:]])


def _larger(text: Iterable[bytes]) -> Iterator[bytes]:
    """The text in pieces of some size: what is kept back of each is searched once more."""
    held: list[bytes] = []
    size = 0
    for piece in text:
        held.append(piece)
        size += len(piece)
        if size >= _AT_ONCE:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _replaced(text: bytes, found: re.Match[bytes], done: int, moved: Moves, parts: list[bytes]) -> int:
    """Where the text is written to: behind the thread of this event, if it is one that moves."""
    start = moved.times.get(found[1])
    if start is None or found.start() < done:
        return done
    known = _event_around(text, found, done)
    thread = _thread(known, start, moved) if known else None
    if thread is None:
        return done
    parts += [text[done : known[b"tid"].start(2)], str(thread).encode()]
    return known[b"tid"].end(2)


def _event_around(text: bytes, found: re.Match[bytes], done: int) -> dict[bytes, re.Match[bytes]]:
    """The members of the event whose time this is; nothing where it is not an event's own.

    What stands before the time may hold braces too, as names of lambdas do: the event is the innermost object around it that
    has a phase.
    """
    least = max(done, found.start() - _LONGEST)
    begin = text.rfind(b"{", least, found.start())
    while begin >= 0:
        event = _EVENT.match(text, begin)
        if event is not None and event.end() > found.start():
            inner = [match.span() for match in _EVENT.finditer(text, begin + 1, event.end() - 1)]
            known = {
                match[1]: match
                for match in _MEMBER.finditer(text, begin, event.end())
                if not any(first <= match.start() < end for first, end in inner)
            }
            if known.keys() >= {b"ph", b"pid", b"tid", b"ts"}:
                return known if known[b"ts"].start() == found.start() else {}
        begin = text.rfind(b"{", least, begin)
    return {}


def _thread(known: Mapping[bytes, re.Match[bytes]], start: int, moved: Moves) -> int | None:
    """The thread that an event moves to."""
    process, own, phase = (known[name][2] for name in (b"pid", b"tid", b"ph"))
    try:
        place = (int(process), int(own))
    except ValueError:
        return None
    if phase in _FLOWS:
        return moved.arrows.get((place, start))
    if phase != b'"X"' or b"dur" not in known:
        return None
    threads = moved.slices.get((place, start, _nanoseconds(known[b"dur"][2])))
    return threads.pop(0) if threads else None


def _nanoseconds(text: bytes) -> int:
    """Of microseconds as text."""
    try:
        return round(float(text) * 1000)
    except (ValueError, OverflowError):
        return -1
