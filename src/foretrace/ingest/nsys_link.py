"""Rows of an Nsight Systems export in order of start, linked: nesting, launches, operators, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from foretrace.ingest import nsys_rows
from foretrace.ingest.columns import NULL_I64, NULL_U32, Array
from foretrace.ingest.nesting import nested
from foretrace.ingest.nsys_rows import LONGEST_NS, Part

_HOST = (nsys_rows.OP, nsys_rows.ANNOTATION, nsys_rows.RUNTIME, nsys_rows.OVERHEAD)
_DEVICE = (nsys_rows.KERNEL, nsys_rows.COPY, nsys_rows.SET, nsys_rows.SYNC)


@dataclass
class Spans:
    """The columns of the spans table, in order, and for each part the span of each of its rows (NULL_U32: left out)."""

    columns: dict[str, Array]
    ids: list[Array]
    origin_ns: int
    left_out: int  # rows that start more than a week from the rest


def link(parts: Sequence[Part]) -> Spans:
    """All rows of some parts as spans. Takes the columns out of the parts as it goes, so that they can be freed."""
    edges = np.cumsum([0, *(len(part) for part in parts)])
    start = _taken(parts, "start", np.int64)
    keep = _sound(start)
    origin = int(start[keep].min()) if keep.any() else 0
    dur = _taken(parts, "dur", np.int64)
    order = _in_order(start, dur, keep)
    columns = {"start": start[order]}
    columns["start"] -= origin
    del start
    columns["dur"] = dur[order]
    del dur
    for name, dtype in (("track", np.uint32), ("name", np.uint32), ("kind", np.uint8)):
        columns[name] = _taken(parts, name, dtype)[order]
    place = np.full(len(keep), NULL_U32, np.uint32)
    place[order] = np.arange(len(order), dtype=np.uint32)
    ids = [place[begin:end] for begin, end in pairwise(edges.tolist())]
    _nest(columns)
    _launches(columns, parts, ids)
    return Spans(columns, ids, origin, int((~keep).sum()))


def forwards(span: Array, sequence: Array, backward: Array) -> Array:
    """For each operator of a backward pass the last forward operator with its sequence number, else NULL_U32.

    Rows are in order of start. `backward` marks operators of a backward pass.
    """
    found = np.full(len(span), NULL_U32, np.uint32)
    known = sequence != NULL_I64
    forward = np.flatnonzero(known & ~backward)
    asked = np.flatnonzero(known & backward)
    if not len(forward) or not len(asked):
        return found
    ordered = forward[np.argsort(sequence[forward], kind="stable")]
    numbers = sequence[ordered]
    last = np.searchsorted(numbers, sequence[asked], side="right") - 1
    first = np.searchsorted(numbers, sequence[asked], side="left")
    # Of several with one number, the last that began before; where all began later, none.
    while len(late := np.flatnonzero((last >= first) & (ordered[np.maximum(last, 0)] > asked))):
        last[late] -= 1
    there = last >= first
    found[asked[there]] = span[ordered[last[there]]]
    return found


def _taken(parts: Sequence[Part], column: str, dtype: type[np.generic]) -> Array:
    arrays = [getattr(part, column) for part in parts]
    for part in parts:
        if column != "kind":  # what the rows of a part are is asked for later
            setattr(part, column, None)
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.empty(0, dtype)


def _sound(start: Array) -> Array:
    """Which rows start within a week of the median."""
    keep = np.ones(len(start), bool)
    if len(start) and int(start.max()) - int(start.min()) > LONGEST_NS:
        median = int(np.partition(start, len(start) // 2)[len(start) // 2])
        keep = np.abs(start - median) <= LONGEST_NS
    return keep


def _in_order(start: Array, dur: Array, keep: Array) -> Array:
    """Rows by start, of equal starts the longest first; tables are nearly in order, which a stable sort makes use of."""
    if keep.all():
        order = np.argsort(start, kind="stable").astype(np.uint32)
    else:
        rows = np.flatnonzero(keep).astype(np.uint32)
        order = rows[np.argsort(start[rows], kind="stable")]
    same = np.flatnonzero(np.diff(start[order]) == 0)
    if len(same):
        tied = np.unique(np.concatenate((same, same + 1)))
        rows = order[tied]
        order[tied] = rows[np.lexsort((rows, -np.maximum(dur[rows], 0), start[rows]))]
    return order


def _nest(columns: dict[str, Array]) -> None:
    """Adds depth, parent and the operator around each call."""
    kind = columns["kind"]
    columns["depth"], columns["parent"], around = nested(
        columns["track"],
        columns["start"],
        columns["dur"],
        host=np.isin(kind, _HOST),
        chosen=kind == nsys_rows.OP,
    )
    columns["op"] = np.where(kind == nsys_rows.RUNTIME, around, np.uint32(NULL_U32))


def _launches(columns: dict[str, Array], parts: Sequence[Part], ids: Sequence[Array]) -> None:
    """Adds the call that launched each piece of device work, and takes over its operator."""
    columns["launch"] = np.full(len(columns["start"]), NULL_U32, np.uint32)
    calls = [
        (part, span)
        for part, span in zip(parts, ids, strict=True)
        if len(part) and part.kind[0] == nsys_rows.RUNTIME
    ]
    if not calls:
        return
    spans = np.concatenate([span for _, span in calls])
    numbers = np.concatenate([part.correlation for part, _ in calls if part.correlation is not None])
    usable = (spans != NULL_U32) & (numbers != NULL_I64) & (numbers != 0)
    spans, numbers = spans[usable], numbers[usable]
    order = np.lexsort((spans, numbers))
    spans, numbers = spans[order], numbers[order]
    for part, work in zip(parts, ids, strict=True):
        if not len(part) or part.correlation is None or part.kind[0] not in _DEVICE:
            continue
        rows = np.flatnonzero(work != NULL_U32)
        asked, at = part.correlation[rows], work[rows]
        first, last = (
            np.searchsorted(numbers, asked, side="left"),
            np.searchsorted(numbers, asked, side="right") - 1,
        )
        there = last >= first
        first, last, at = first[there], last[there], at[there]
        # Of several calls with one id, the last that began before the work did; of none, the first.
        while len(late := np.flatnonzero((last > first) & (spans[last] > at))):
            last[late] -= 1
        columns["launch"][at] = spans[last]
        columns["op"][at] = columns["op"][spans[last]]
