"""Rows of an Nsight Systems export in order of start, linked: nesting, launches, operators, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from foretrace.ingest import nesting, nsys_rows
from foretrace.ingest.column_files import ColumnStore, blocks
from foretrace.ingest.columns import NULL_I64, NULL_U32, Array
from foretrace.ingest.nesting import nested
from foretrace.ingest.nsys_rows import LONGEST_NS, Part

_DEVICE = (nsys_rows.KERNEL, nsys_rows.COPY, nsys_rows.SET, nsys_rows.SYNC)
_ROLES = np.full(256, nesting.TAKES_NO_PART, np.uint8)
_ROLES[[nsys_rows.ANNOTATION, nsys_rows.RUNTIME, nsys_rows.OVERHEAD]] = nesting.TAKES_PART
_ROLES[nsys_rows.OP] = nesting.MAY_BE_NAMED


@dataclass
class Spans:
    """The columns of the spans table, in order, and for each part the span of each of its rows (NULL_U32: left out)."""

    columns: dict[str, Array]
    ids: list[Array]
    origin_ns: int
    left_out: int  # rows that start more than a week from the rest


def link(parts: Sequence[Part], store: ColumnStore) -> Spans:
    """All rows of some parts as spans. Takes the columns out of the parts as it goes, so that they can be freed."""
    edges = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    start = _taken(parts, "start", np.int64, store)
    keep = _sound(start)
    origin = int(start[keep].min() if keep is not None else start.min()) if len(start) else 0
    dur = _taken(parts, "dur", np.int64, store)
    order = _in_order(start, dur, keep)
    left_out = len(start) - len(order)
    columns = {"start": store.kept((start[order[block]] - origin for block in blocks(len(order))), np.int64)}
    del start
    columns["dur"] = store.gathered(dur, order)
    del dur
    for name, dtype in (("track", np.uint32), ("name", np.uint32), ("kind", np.uint8)):
        store.release()
        columns[name] = store.gathered(_taken(parts, name, dtype, store), order)
    place = np.full(edges[-1], NULL_U32, np.uint32)
    place[order] = np.arange(len(order), dtype=np.uint32)
    del order
    place = store.kept([place], np.uint32)
    ids = [place[begin:end] for begin, end in pairwise(edges)]
    store.release()
    _nest(columns, store)
    store.release()
    _launches(columns, parts, ids, store)
    return Spans(columns, ids, origin, left_out)


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


def _taken(parts: Sequence[Part], column: str, dtype: type[np.generic], store: ColumnStore) -> Array:
    def pieces() -> Iterator[Array]:
        for part in parts:
            values = getattr(part, column)
            if column != "kind":  # what the rows of a part are is asked for later
                setattr(part, column, None)
            yield from (values[block] for block in blocks(len(values)))

    return store.kept(pieces(), dtype)


def _sound(start: Array) -> Array | None:
    """Which rows start within a week of the median; `None` for all."""
    if not len(start) or int(start.max()) - int(start.min()) <= LONGEST_NS:
        return None
    median = int(np.partition(start, len(start) // 2)[len(start) // 2])
    keep: Array = np.abs(start - median) <= LONGEST_NS
    return keep


def _in_order(start: Array, dur: Array, keep: Array | None) -> Array:
    """Rows by start, of equal starts the longest first; tables are nearly in order, which a stable sort makes use of."""
    if keep is None:
        order = np.argsort(start, kind="stable").astype(np.uint32)
    else:
        rows = np.flatnonzero(keep).astype(np.uint32)
        order = rows[np.argsort(start[rows], kind="stable")]
    same = [np.empty(0, np.int64)]
    for block in blocks(len(order) - 1):
        ordered = start[order[block.start : block.stop + 1]]
        same.append(np.flatnonzero(ordered[1:] == ordered[:-1]) + block.start)
    first = np.concatenate(same)
    if len(first):
        tied = np.unique(np.concatenate((first, first + 1)))
        rows = order[tied]
        order[tied] = rows[np.lexsort((rows, -np.maximum(dur[rows], 0), start[rows]))]
    return order


def _nest(columns: dict[str, Array], store: ColumnStore) -> None:
    """Adds depth, parent and the operator around each call."""
    kind = columns["kind"]
    made = {
        name: store.column(dtype)
        for name, dtype in (("depth", np.uint16), ("parent", np.uint32), ("op", np.uint32))
    }
    for rows, depth, parent, around in nested(
        columns["track"], columns["start"], columns["dur"], role=_ROLES[kind], blocks=blocks(len(kind))
    ):
        made["depth"].append(depth)
        made["parent"].append(parent)
        made["op"].append(np.where(kind[rows] == nsys_rows.RUNTIME, around, np.uint32(NULL_U32)))
    columns |= {name: column.array() for name, column in made.items()}


def _launches(
    columns: dict[str, Array], parts: Sequence[Part], ids: Sequence[Array], store: ColumnStore
) -> None:
    """Adds the call that launched each piece of device work, and takes over its operator."""
    launch = np.full(len(columns["start"]), NULL_U32, np.uint32)
    op = columns["op"].copy()
    calls = [
        (part, span)
        for part, span in zip(parts, ids, strict=True)
        if len(part) and part.kind[0] == nsys_rows.RUNTIME
    ]
    spans, numbers = _by_number(calls)
    for part, work in zip(parts, ids, strict=True):
        if not calls or not len(part) or part.correlation is None or part.kind[0] not in _DEVICE:
            continue
        for block in blocks(len(work)):
            at, called = _linked(part.correlation[block], work[block], spans, numbers)
            launch[at] = called
            op[at] = op[called]
    for part in parts:
        part.correlation = None  # known now
    columns["launch"] = store.kept([launch], np.uint32)
    columns["op"] = store.kept([op], np.uint32)


def _by_number(calls: Sequence[tuple[Part, Array]]) -> tuple[Array, Array]:
    """Calls that have a number, in order of it and then of their start: their spans and numbers."""
    if not calls:
        return np.empty(0, np.uint32), np.empty(0, np.int64)
    spans = np.concatenate([span for _, span in calls])
    numbers = np.concatenate([part.correlation for part, _ in calls if part.correlation is not None])
    usable = (spans != NULL_U32) & (numbers != NULL_I64) & (numbers != 0)
    spans, numbers = spans[usable], numbers[usable]
    order = np.lexsort((spans, numbers))
    return spans[order], numbers[order]


def _linked(asked: Array, work: Array, spans: Array, numbers: Array) -> tuple[Array, Array]:
    """Spans of device work whose call is known, and those of the calls; `asked` are the numbers of the work."""
    rows = np.flatnonzero(work != NULL_U32)
    asked, at = asked[rows], work[rows]
    first = np.searchsorted(numbers, asked, side="left")
    last = np.searchsorted(numbers, asked, side="right") - 1
    there = last >= first
    first, last, at = first[there], last[there], at[there]
    # Of several calls with one id, the last that began before the work did; of none, the first.
    while len(late := np.flatnonzero((last > first) & (spans[last] > at))):
        last[late] -= 1
    return at, spans[last]
