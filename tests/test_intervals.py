"""Against sets of points: small integer intervals, where every operation can be done by enumeration."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace import intervals
from foretrace.intervals import EMPTY, Intervals

SPAN = 24
times = st.integers(-3, SPAN)
pairs = st.lists(st.tuples(times, times), max_size=8)


def points(given: list[tuple[int, int]]) -> set[int]:
    return {point for start, end in given for point in range(start, end)}


def covered(given: Intervals) -> set[int]:
    """The points of a set of intervals that keeps its promise: sorted, disjoint, none empty, none touching."""
    assert given.start.dtype == given.end.dtype == np.int64
    assert (given.start < given.end).all()
    assert (given.end[:-1] <= given.start[1:]).all()
    return points(list(zip(given.start.tolist(), given.end.tolist(), strict=True)))


def union(given: list[tuple[int, int]]) -> Intervals:
    return intervals.union([start for start, _ in given], [end for _, end in given])


@given(pairs)
def test_union(given: list[tuple[int, int]]) -> None:
    made = union(given)
    assert covered(made) == points(given)
    assert made.total_ns == len(points(given))
    assert (made.end[:-1] < made.start[1:]).all()  # what touches is one


@given(pairs, times, times)
def test_clip_and_gaps(given: list[tuple[int, int]], start: int, end: int) -> None:
    window = set(range(start, end))
    assert covered(intervals.clip(union(given), start, end)) == points(given) & window
    assert covered(intervals.gaps(union(given), start, end)) == window - points(given)


@given(pairs, pairs)
def test_either_intersect_and_subtract(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    a, b = union(first), union(second)
    assert covered(intervals.either(a, b)) == points(first) | points(second)
    assert covered(intervals.intersect(a, b)) == points(first) & points(second)
    assert covered(intervals.subtract(a, b)) == points(first) - points(second)
    assert intervals.outside_ns(a, b) == len(points(first) - points(second))


@given(pairs, st.lists(st.tuples(times, st.integers(0, SPAN)), max_size=8))
def test_covered(cover: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in asked], np.int64)
    ends = starts + np.array([length for _, length in asked], np.int64)
    measured = intervals.covered_ns(union(cover), starts, ends)
    expected = [len(points(cover) & set(range(a, b))) for a, b in zip(starts, ends, strict=True)]
    assert measured.tolist() == expected


def test_nothing_in_nothing_out() -> None:
    one = intervals.union([3], [5])
    for made in (
        intervals.union([], []), intervals.intersect(EMPTY, one), intervals.subtract(EMPTY, one),
        intervals.subtract(one, one), intervals.clip(EMPTY, 0, 9), intervals.gaps(one, 3, 5),
    ):  # fmt: skip
        assert made.total_ns == 0
        assert len(made.start) == 0
    assert intervals.covered_ns(EMPTY, [1], [9]).tolist() == [0]
    assert intervals.subtract(one, EMPTY).start.tolist() == [3]


def test_times_of_a_long_recording_are_exact() -> None:
    week = 7 * 24 * 3600 * 10**9
    made = intervals.union([0, week], [1, week + 1])
    assert made.total_ns == 2
    assert intervals.gaps(made, 0, week + 1).total_ns == week - 1
