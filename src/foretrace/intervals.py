"""Set algebra over half-open time intervals held as two int64 arrays, `start` and `end`.

A *set* of intervals is sorted and disjoint; `union` makes one from any arrays.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.int64]


class Intervals(NamedTuple):
    """A sorted, disjoint set of intervals."""

    start: Times
    end: Times

    @property
    def total_ns(self) -> int:
        """Sum of the lengths."""
        return int((self.end - self.start).sum())


# Sets on one clock give a set on that clock: see predict/numbers.py.
Clock = TypeVar("Clock", bound=Intervals)

EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: ArrayLike, end: ArrayLike) -> Intervals:
    """The set covered by any of the given intervals; empty and reversed ones count for nothing."""
    starts, ends = np.asarray(start, np.int64), np.asarray(end, np.int64)
    sound = ends > starts
    if not sound.all():
        starts, ends = starts[sound], ends[sound]
    if not len(starts):
        return EMPTY
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    opens = np.empty(len(starts), bool)
    opens[0] = True
    np.greater(starts[1:], reach[:-1], out=opens[1:])
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(starts)) - 1
    return Intervals(starts[first], reach[last])


def either(a: Clock, b: Clock) -> Clock:
    """The part that one of the sets covers."""
    if not len(a.start) or not len(b.start):
        return a if len(a.start) else b
    together = union(np.concatenate((a.start, b.start)), np.concatenate((a.end, b.end)))
    return a._replace(start=together.start, end=together.end)


def clip(a: Clock, start: int, end: int) -> Clock:
    """The part of `a` between two times."""
    starts, ends = np.maximum(a.start, start), np.minimum(a.end, end)
    sound = ends > starts
    return a._replace(start=starts[sound], end=ends[sound])


def gaps(a: Clock, start: int, end: int) -> Clock:
    """The part of [start, end) that `a` leaves free."""
    inside = clip(a, start, end)
    starts, ends = np.append(start, inside.end), np.append(inside.start, end)
    sound = ends > starts
    return a._replace(start=starts[sound], end=ends[sound])


def intersect(a: Clock, b: Clock) -> Clock:
    """The part that both sets cover."""
    if not len(a.start) or not len(b.start):
        return a._replace(start=EMPTY.start, end=EMPTY.end)
    # Each interval of `a` meets the run of intervals of `b` between these two positions.
    low = np.searchsorted(b.end, a.start, side="right")
    high = np.searchsorted(b.start, a.end, side="left")
    count = np.maximum(high - low, 0)
    which_a = np.repeat(np.arange(len(a.start)), count)
    offset = np.arange(len(which_a)) - np.repeat(np.cumsum(count) - count, count)
    which_b = np.repeat(low, count) + offset
    return a._replace(
        start=np.maximum(a.start[which_a], b.start[which_b]), end=np.minimum(a.end[which_a], b.end[which_b])
    )


def subtract(a: Clock, b: Clock) -> Clock:
    """The part of `a` that `b` does not cover."""
    if not len(a.start):
        return a
    return intersect(a, gaps(b, int(a.start[0]), int(a.end[-1])))


def outside_ns(a: Intervals, b: Intervals) -> int:
    """How much of `a` the other set does not cover."""
    return a.total_ns - int(covered_ns(b, a.start, a.end).sum())


def covered_ns(cover: Intervals, start: ArrayLike, end: ArrayLike) -> Times:
    """For each of the given intervals, how much of it `cover` covers."""
    return _measure_before(cover, end) - _measure_before(cover, start)


def _measure_before(cover: Intervals, at: ArrayLike) -> Times:
    """Length of `cover` before each time."""
    times = np.asarray(at, np.int64)
    if not len(cover.start):
        return np.zeros(times.shape, np.int64)
    whole = np.concatenate(([0], np.cumsum(cover.end - cover.start)))
    index = np.searchsorted(cover.start, times, side="right")
    last = np.maximum(index - 1, 0)
    unfinished = np.where(index > 0, np.maximum(cover.end[last] - times, 0), 0)
    measure: Times = whole[index] - unfinished
    return measure
