"""What a host thread was doing at every moment: time cut into pieces, each with the innermost span over it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretrace.analyze.concepts.host.runtime_calls import NOBODY, HostSpans, Ids


class Pieces(NamedTuple):
    """Stretches of time in order; `window` is the row of the window that a piece lies in."""

    window: Ids
    start_ns: Ids
    end_ns: Ids
    span_id: Ids  # NOBODY where the thread recorded nothing


def doing(host: HostSpans, members: Ids, start_ns: Ids, end_ns: Ids) -> Pieces:
    """The windows, cut wherever the innermost of a thread's spans changes.

    `members` are the thread's spans in order; windows are sorted and disjoint. The pieces of a window sum to it.
    """
    at, owner = _changes(host, _near(host, members, start_ns, end_ns))
    first = np.searchsorted(at, start_ns, side="right") - 1
    last = np.searchsorted(at, end_ns, side="left")
    count = np.maximum(last - first, 1)
    window = np.repeat(np.arange(len(start_ns)), count)
    place = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(len(window))
    # Before the first change (place -1) the thread had recorded nothing.
    edges = np.append(at, np.iinfo(np.int64).max)
    begin = np.maximum(np.where(place >= 0, edges[place], start_ns[window]), start_ns[window])
    end = np.minimum(edges[place + 1], end_ns[window])
    who = np.append(owner, NOBODY)[place]
    sound = end > begin
    return Pieces(window[sound], begin[sound], end[sound], who[sound])


def _near(host: HostSpans, members: Ids, start_ns: Ids, end_ns: Ids) -> Ids:
    """The spans that have a length and meet a window."""
    start, end = host.start_ns[members], host.end_ns[members]
    if not len(start_ns):
        return members[:0]
    following = np.minimum(np.searchsorted(end_ns, start, side="right"), len(end_ns) - 1)
    meets = (end > start) & (end_ns[following] > start) & (start_ns[following] < end)
    return members[meets]


def _changes(host: HostSpans, members: Ids) -> tuple[Ids, Ids]:
    """When the innermost span changes, and to which; NOBODY where none is open."""
    start, end = host.start_ns[members], host.end_ns[members]
    after = host.parent[members]
    rows = np.flatnonzero(after != NOBODY)
    # What goes on after a span is the innermost caller that has not ended with it.
    while len(rows):
        rows = rows[host.end_ns[after[rows]] <= end[rows]]
        after[rows] = host.parent[after[rows]]
        rows = rows[after[rows] != NOBODY]
    # Of spans that start together the last is the innermost; the others own no time then.
    innermost = np.append(start[1:] > start[:-1], True) if len(start) else np.zeros(0, bool)
    # Doubled, so that of what ends and starts at one moment the start comes last and has the say.
    keys = np.concatenate((2 * end, 2 * start[innermost] + 1))
    order = np.argsort(keys, kind="stable")  # two runs, both nearly in order: merged, not sorted
    return keys[order] >> 1, np.concatenate((after, members[innermost]))[order]
