"""Rows of a track: slices that overlap without one being inside the other stand on further rows, so that each is shown.

Perfetto nests the slices of a track, and drops one that begins inside another and ends after it. Kernels of one stream overlap
where one launches before the last has ended, and so do ranges of a thread that begin in one Python call and end in another. Work
of a device is never nested either: a kernel is no part of another.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.trace import Trace

_WORK = {b'"kernel"', b'"gpu_memcpy"', b'"gpu_memset"', b'"Kernel"', b'"Memcpy"', b'"Memset"'}
_KINDS_OF_WORK = ("kernel", "copy", "set")
_FLOWS = (b'"s"', b'"t"', b'"f"')
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb")*+\}"
for _ in range(7):  # objects inside; Kineto has two levels
    _OBJECT = rb'\{(?:[^{}"]++|' + _STRING + rb"|" + _OBJECT + rb")*+\}"
_EVENT = re.compile(_OBJECT, re.DOTALL)
_BETWEEN = re.compile(rb"[\s,]*+")
_MEMBER = re.compile(rb'"(ph|pid|tid|ts|dur|cat|id)"\s*+:\s*+(' + _STRING + rb"|[^,{}\s]++)")
_CORRELATION = re.compile(rb'"correlation"\s*+:\s*+(\d++)')
_LONGEST_EVENT = 64 << 20
# Beyond the numbers that systems give threads, and those of streams.
FIRST_ROW = 1 << 30


def crossing(trace: Trace) -> bool:
    """Whether any slice of the recording needs a further row.

    A span's parent is the innermost one that holds it whole: where none of its elder siblings ends after it begins, all nest.
    """
    spans = trace.spans.select("id", "track_id", "parent_id", "kind", "start_ns", end_ns=_END).drop_nulls(
        "end_ns"
    )
    latest = pl.col("end_ns").cum_max().shift(1).over("track_id", "parent_id", order_by="id")
    if spans.select((latest > pl.col("start_ns")).any()).item():
        return True
    work = spans.filter(pl.col("kind").is_in(_KINDS_OF_WORK))
    return bool(work["parent_id"].drop_nulls().is_in(work["id"].implode()).any())


_END = pl.col("start_ns") + pl.col("dur_ns")


def rows_of(
    tracks: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64], works: NDArray[np.bool_]
) -> NDArray[np.int64]:
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


def is_work(spans: pl.DataFrame) -> NDArray[np.bool_]:
    """Which spans are work of a device."""
    return spans["kind"].is_in(_KINDS_OF_WORK).to_numpy()


def rows_of_spans(trace: Trace) -> NDArray[np.int64]:
    """The row of each span of the recording's tables, on its track."""
    spans = trace.spans.select("track_id", "kind", "start_ns", end_ns=_END.fill_null(pl.col("start_ns")))
    return rows_of(
        spans["track_id"].cast(pl.Int64).to_numpy(),
        spans["start_ns"].to_numpy(),
        spans["end_ns"].to_numpy(),
        is_work(spans),
    )


@dataclass
class Moves:
    """Which events of a recording's text go to another row, in the order of the text."""

    numbers: Mapping[int, bytes]  # of the slice -> its new thread
    by_launch: Mapping[tuple[bytes, bytes, int], bytes]  # process, thread, correlation: of arrows
    by_time: Mapping[tuple[bytes, bytes, int], bytes]  # process, thread, start: of arrows
    tracks: Sequence[str] = ()  # events that name the new threads


@dataclass
class _Slices:
    """The slices of a recording's text, as columns."""

    tracks: dict[tuple[bytes, bytes], int] = field(default_factory=dict)  # process and thread
    track: array[int] = field(default_factory=lambda: array("q"))
    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    work: array[int] = field(default_factory=lambda: array("b"))
    launch: array[int] = field(default_factory=lambda: array("q"))  # -1 where there is none
    named: dict[tuple[bytes, bytes], dict[str, Any]] = field(default_factory=dict)

    def add(self, event: bytes, known: Mapping[bytes, bytes]) -> None:
        start = _nanoseconds(known.get(b"ts", b"0"))
        found = _CORRELATION.search(event)
        self.track.append(self.tracks.setdefault(_place(known), len(self.tracks)))
        self.start.append(start)
        self.end.append(start + max(_nanoseconds(known.get(b"dur", b"0")), 0))
        self.work.append(known.get(b"cat") in _WORK)
        self.launch.append(int(found[1]) if found else -1)


def moves(text: Iterable[bytes]) -> Moves:
    """Reads the list of events once, and says which slices need another row."""
    slices = _Slices()
    for event in _events(text):
        known = _members(event)
        if known.get(b"ph") == b'"X"':
            slices.add(event, known)
        elif known.get(b"ph") == b'"M"':
            _name(slices, event, known)
    columns = [np.array(column, np.int64) for column in (slices.track, slices.start, slices.end)]
    rows = rows_of(columns[0], columns[1], columns[2], np.array(slices.work, bool))
    return _moved(slices, rows)


def _moved(slices: _Slices, rows: NDArray[np.int64]) -> Moves:
    places = list(slices.tracks)
    threads: dict[tuple[int, int], bytes] = {}  # track and row
    made: list[str] = []
    taken = {thread for _, thread in places}
    numbers, by_launch, by_time = {}, {}, {}
    for number in np.flatnonzero(rows).tolist():
        track, row = slices.track[number], int(rows[number])
        if (track, row) not in threads:
            threads[track, row] = _new_thread(taken)
            made += _names(slices, places[track], threads[track, row], row)
        thread = threads[track, row]
        numbers[number] = thread
        by_time[(*places[track], slices.start[number])] = thread
        if slices.launch[number] >= 0:
            by_launch[(*places[track], slices.launch[number])] = thread
    # What begins at the same time and stays where it is keeps its arrows, unless their launch tells them apart.
    for number in np.flatnonzero(rows == 0).tolist() if by_time else ():
        by_time.pop((*places[slices.track[number]], slices.start[number]), None)
    return Moves(numbers, by_launch, by_time, made)


def _new_thread(taken: set[bytes]) -> bytes:
    number = FIRST_ROW
    while str(number).encode() in taken:
        number += 1
    taken.add(str(number).encode())
    return str(number).encode()


def _name(slices: _Slices, event: bytes, known: Mapping[bytes, bytes]) -> None:
    told = json.loads(event)
    arguments = told.get("args")
    if told.get("name") in ("thread_name", "thread_sort_index") and isinstance(arguments, dict):
        slices.named.setdefault(_place(known), {}).update(arguments)


def _names(slices: _Slices, place: tuple[bytes, bytes], thread: bytes, row: int) -> Iterator[str]:
    """Events that name a row after its track, and put it below."""
    process, own = (part.decode() for part in place)
    told = slices.named.get(place, {})
    plain = str(json.loads(own)) if own else ""
    name = " ".join(str(told.get("name") or f"track {plain}").split()) + f" (row {row + 1}: overlapping)"
    begin = f'{{"ph":"M","pid":{process},"tid":{thread.decode()},"name":'
    yield f'{begin}"thread_name","args":{{"name":{json.dumps(name)}}}}}'
    if isinstance(told.get("sort_index"), int):
        yield f'{begin}"thread_sort_index","args":{{"sort_index":{told["sort_index"]}}}}}'


def rewritten(text: Iterable[bytes], moved: Moves) -> Iterator[bytes]:
    """The list of events with what moves on its new thread; everything else as it is."""
    number = -1
    for piece, is_event in _split(text):
        if not is_event:
            yield piece
            continue
        known = _members(piece)
        thread = None
        if known.get(b"ph") == b'"X"':
            number += 1
            thread = moved.numbers.get(number)
        elif known.get(b"ph") in _FLOWS:
            thread = _of_arrow(known, moved)
        yield piece if thread is None else _with_thread(piece, thread)


def _of_arrow(known: Mapping[bytes, bytes], moved: Moves) -> bytes | None:
    identity = known.get(b"id", b"")
    if identity.isdigit():
        thread = moved.by_launch.get((*_place(known), int(identity)))
        if thread is not None:
            return thread
    return moved.by_time.get((*_place(known), _nanoseconds(known.get(b"ts", b"0"))))


def _with_thread(event: bytes, thread: bytes) -> bytes:
    """The event with another thread; a `tid` inside its arguments is left alone."""
    inner = [match.span() for match in _EVENT.finditer(event, 1)]
    for match in _MEMBER.finditer(event):
        if match[1] == b"tid" and not any(begin <= match.start() < end for begin, end in inner):
            return event[: match.start(2)] + thread + event[match.end(2) :]
    return event


def _events(text: Iterable[bytes]) -> Iterator[bytes]:
    return (piece for piece, is_event in _split(text) if is_event)


def _split(text: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The text from the first event on, in pieces: each event, and what stands between and behind them."""
    pieces = iter(text)
    kept = b""
    for piece in pieces:
        kept += piece
        at = 0
        while True:
            between = _BETWEEN.match(kept, at)
            begin = between.end() if between else at
            if begin == len(kept):
                break
            event = _EVENT.match(kept, begin) if kept[begin] == ord("{") else None
            if event is None:
                if kept[begin] == ord("{") and len(kept) - begin <= _LONGEST_EVENT:
                    break  # the rest of it is in the next piece
                yield kept[at:], False  # behind the list
                yield from ((rest, False) for rest in pieces)
                return
            if begin > at:
                yield kept[at:begin], False
            yield event[0], True
            at = event.end()
        kept = kept[at:]
    yield kept, False


def _members(event: bytes) -> dict[bytes, bytes]:
    """The event's own members that matter; those of its arguments are not its own."""
    arguments = event.find(b'"args"')
    known = dict(_MEMBER.findall(event, 0, arguments if arguments >= 0 else len(event)))
    if arguments < 0 or {b"ph", b"pid", b"tid", b"ts"} <= known.keys():
        return known
    return dict(_MEMBER.findall(event[:1] + _EVENT.sub(b"0", event[1:])))


def _place(known: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    return known.get(b"pid", b"0"), known.get(b"tid", b"0")


def _nanoseconds(text: bytes) -> int:
    """Of microseconds as text: a double would lose nanoseconds of a clock that began in 1970."""
    whole, _, fraction = text.strip(b'"').partition(b".")
    if whole.isdigit() and (fraction.isdigit() or not fraction):
        return int(whole) * 1000 + (round(float(b"0." + fraction) * 1000) if fraction else 0)
    try:
        return round(float(text.strip(b'"')) * 1000)
    except (ValueError, OverflowError):
        return 0
