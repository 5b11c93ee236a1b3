"""Nesting: for spans of host threads, in order of start, how deep each lies and which span is around it.

The rule of the Kineto linker (`kineto_link`), for columns: of spans that contain another, the one that began last is its
parent. Threads nest properly but for some; those blocks of spans alone are gone through one by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from foretrace.ingest.columns import NULL_U32, Array

try:
    from foretrace._scan import Nester
except ImportError:  # not built, or built before: the columns below give the same
    Nester = None

_DEEPEST = 65_535
TAKES_NO_PART, TAKES_PART, MAY_BE_NAMED = range(
    3
)  # the role of a row; the last may be the nearest chosen one


def nested(
    track: Array, start: Array, dur: Array, *, role: Array, blocks: Iterable[slice]
) -> Iterator[tuple[slice, Array, Array, Array]]:
    """Depth, parent and nearest chosen row around (or NULL_U32) of rows in order of start, some rows at a time.

    A duration may be NULL_I64. Of equal starts the longest comes first. Without the extension all rows come at once.
    """
    if Nester is None or os.environ.get("FORETRACE_PURE_PYTHON"):
        yield slice(0, len(start)), *_by_columns(track, start, dur, role)
        return
    nester = Nester()
    for block in blocks:
        columns = (np.ascontiguousarray(column[block]) for column in (track, start, dur, role))
        depth, parent, around = nester.add(*columns)
        yield (
            block,
            np.frombuffer(depth, np.uint16),
            np.frombuffer(parent, np.uint32),
            np.frombuffer(around, np.uint32),
        )


def _by_columns(track: Array, start: Array, dur: Array, role: Array) -> tuple[Array, Array, Array]:
    host, chosen = role != TAKES_NO_PART, role == MAY_BE_NAMED
    rows = np.flatnonzero(host).astype(np.uint32)
    known = np.maximum(dur[rows], 0)  # NULL_I64 is below zero
    inner_depth, inner_parent = nest(track[rows], start[rows], known)
    around = ancestor(inner_parent, inner_depth, chosen[rows])
    depth = np.zeros(len(start), np.uint16)
    depth[rows] = inner_depth
    found = []
    for inner in (inner_parent, around):
        outer = np.full(len(start), NULL_U32, np.uint32)
        there = inner != NULL_U32
        outer[rows[there]] = rows[inner[there]]
        found.append(outer)
    return depth, found[0], found[1]


def nest(track: Array, start: Array, dur: Array) -> tuple[Array, Array]:
    """Depth and parent (a row, or NULL_U32) of rows in order of start, of equal starts the longest first."""
    depth, parent = np.zeros(len(start), np.uint16), np.full(len(start), NULL_U32, np.uint32)
    by_track = np.argsort(track, kind="stable")
    edges = np.flatnonzero(np.diff(track[by_track])) + 1
    for rows in np.split(by_track, edges):
        if len(rows):
            depth[rows], inner = _nest_thread(start[rows], start[rows] + dur[rows])
            parent[rows] = np.where(inner >= 0, rows[np.maximum(inner, 0)], NULL_U32)
    return depth, parent


def ancestor(parent: Array, depth: Array, chosen: Array) -> Array:
    """For each row the nearest row around it that is chosen, or NULL_U32."""
    found = np.full(len(parent), NULL_U32, np.uint32)
    order = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
    for begin, end in pairwise(edges.tolist()):
        rows = order[begin:end]
        above = parent[rows]
        rows, above = rows[above != NULL_U32], above[above != NULL_U32]
        found[rows] = np.where(chosen[above], above, found[above])
    return found


def _nest_thread(start: Array, end: Array) -> tuple[Array, Array]:
    """Depth and parent (a place, or -1) of one thread's spans."""
    holds = end > start  # a span without length holds nothing
    depth: Array = np.cumsum(holds, dtype=np.int32) - holds
    depth -= np.searchsorted(np.sort(end[holds]), start, side="right").astype(np.int32)
    parent = np.full(len(start), -1, np.int32)
    holders = np.flatnonzero(holds).astype(np.int32)
    deepest = int(depth.max(initial=0))
    if deepest > _DEEPEST:  # too deep for what follows, and for any thread that was recorded
        depth[:] = 0
        _one_by_one(start, end, depth, parent, np.ones(len(start), bool))
        return np.minimum(depth, _DEEPEST).astype(np.uint16), parent
    by_depth = holders[np.argsort(depth[holders].astype(np.uint16), kind="stable")]
    edges = np.searchsorted(depth[by_depth], np.arange(deepest + 2))
    inner = np.argsort(depth.astype(np.uint16), kind="stable").astype(np.int32)
    inner_edges = np.searchsorted(depth[inner], np.arange(deepest + 2))
    for level in range(1, deepest + 1):
        rows, above = (
            inner[inner_edges[level] : inner_edges[level + 1]],
            by_depth[edges[level - 1] : edges[level]],
        )
        place = np.searchsorted(above, rows) - 1
        parent[rows] = np.where(place >= 0, above[np.maximum(place, 0)], -1) if len(above) else -1
    known = parent >= 0
    wrong = (depth > 0) & (~known | (end[np.maximum(parent, 0)] < end))
    if wrong.any():
        _one_by_one(start, end, depth, parent, wrong)
    return np.minimum(depth, _DEEPEST).astype(np.uint16), parent


def _one_by_one(start: Array, end: Array, depth: Array, parent: Array, wrong: Array) -> None:
    """Sets depth and parent of all blocks that hold a span which ends after what it began in."""
    block = np.cumsum(depth == 0)
    redo = np.isin(block, np.unique(block[wrong]))
    opened: list[tuple[int, int]] = []
    for row in np.flatnonzero(redo).tolist():
        begin, stop = int(start[row]), int(end[row])
        while opened and (begin >= opened[-1][0] or stop > opened[-1][0]):
            opened.pop()
        parent[row] = opened[-1][1] if opened else -1
        depth[row] = len(opened)
        if stop > begin:
            opened.append((stop, row))
