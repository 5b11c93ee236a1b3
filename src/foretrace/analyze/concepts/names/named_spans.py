"""Spans found by their names: the distinct names of a recording are gathered once, and each is matched once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import schema
from foretrace.analyze.concepts.names.per_name import by_code
from foretrace.trace import Trace, once_per_trace

Ids = NDArray[np.int64]


Chosen = Callable[[pl.Series], NDArray[np.bool_]]


@once_per_trace
def _distinct(trace: Trace) -> tuple[pl.Series, NDArray[np.intp], NDArray[np.bool_]]:
    """The distinct names of all spans, as text and as codes, and for each kind which of them its spans have."""
    names, kinds = trace.spans["name"], trace.spans["kind"].to_physical().to_numpy()
    every = names.to_physical().to_numpy()
    count = int(every.max(initial=0)) + 1
    there = np.zeros((len(schema.KINDS), count), bool)
    there.reshape(-1)[kinds * np.uint32(count) + every] = True
    codes = np.flatnonzero(there.any(axis=0))
    example = np.zeros(count, np.uint32)
    example[every] = np.arange(len(every), dtype=np.uint32)
    return names.gather(example[codes]).cast(pl.String), codes, there[:, codes]


def _matches(trace: Trace, kinds: tuple[str, ...], chosen: Chosen) -> NDArray[np.bool_] | None:
    """For each code of a name, whether it is chosen; None where none is."""
    text, codes, there = _distinct(trace)
    asked = np.flatnonzero(there[[schema.KINDS.index(kind) for kind in kinds]].any(axis=0))
    found = asked[chosen(text.gather(asked))]
    if not len(found):
        return None
    matches = np.zeros(int(codes.max()) + 1, bool)
    matches[codes[found]] = True
    return matches


def ids_like(trace: Trace, kinds: str | tuple[str, ...], pattern: str) -> Ids:
    """Ids of the spans of a kind whose names match, in order."""
    return ids_where(trace, kinds, lambda names: names.str.contains(pattern).to_numpy())


def ids_where(trace: Trace, kinds: str | tuple[str, ...], chosen: Chosen) -> Ids:
    """Ids of the spans of some kinds whose names are chosen, in order; `chosen` is asked once for all distinct names."""
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    matches = _matches(trace, kinds, chosen)
    if matches is None:
        return np.zeros(0, np.int64)
    if kinds == ("annotation",):
        labels = _annotations(trace)
        labelled: Ids = labels[matches[trace.spans["name"].gather(labels).to_physical().to_numpy()]]
        return labelled
    ids = np.flatnonzero(by_code(matches, trace.spans["name"].to_physical().to_numpy()))
    of_kinds: Ids = ids[_wanted(kinds)[trace.spans["kind"].to_physical().to_numpy()[ids]]]
    return of_kinds


@once_per_trace
def _annotations(trace: Trace) -> Ids:
    """Ids of all annotations: few, and asked for often."""
    return np.flatnonzero(of_kind(trace, "annotation"))


def any_like(trace: Trace, pattern: str) -> bool:
    """Whether a span has a name that matches."""
    return bool(_distinct(trace)[0].str.contains(pattern).any())


def named_like(trace: Trace, pattern: str) -> NDArray[np.bool_]:
    """For each span, whether its name matches."""
    matches = _matches(trace, schema.KINDS, lambda names: names.str.contains(pattern).to_numpy())
    if matches is None:
        return np.zeros(trace.spans.height, bool)
    return by_code(matches, trace.spans["name"].to_physical().to_numpy())


def _wanted(kinds: tuple[str, ...]) -> NDArray[np.bool_]:
    """For each kind, whether it is one of these."""
    return np.isin(schema.KINDS, kinds)


def of_kind(trace: Trace, kinds: str | tuple[str, ...]) -> NDArray[np.bool_]:
    """For each span, whether it is of one of these kinds."""
    codes = trace.spans["kind"].to_physical().to_numpy()
    first, *others = (kinds,) if isinstance(kinds, str) else kinds
    chosen: NDArray[np.bool_] = codes == schema.KINDS.index(first)
    for kind in others:
        chosen |= codes == schema.KINDS.index(kind)
    return chosen


def on_host(trace: Trace) -> NDArray[np.bool_]:
    """For each span, whether it is on a track of the host."""
    host = trace.tracks.select(pl.col("device").is_null() & pl.col("stream").is_null()).to_series().to_numpy()
    return by_code(np.append(host, False), trace.spans["track_id"].to_numpy())


def operator_rows(trace: Trace, span_ids: Ids) -> Ids:
    """Where the operators with these ids are in `ops`; -1 for those that are not."""
    return _rows(trace, "ops", span_ids)


def rows_of(trace: Trace, table: str, span_ids: pl.Series) -> pl.Series:
    """Where the spans with these ids are in `ops` or `kernels`; null for those that are not."""
    rows = _rows(trace, table, span_ids.cast(pl.Int64).fill_null(-1).to_numpy())
    return pl.Series(rows).set(pl.Series(rows < 0), None)


def _rows(trace: Trace, table: str, span_ids: Ids) -> Ids:
    known = trace.table(table)["span_id"].to_numpy()
    if not len(known):
        return np.full(len(span_ids), -1, np.int64)
    order = None if _IN_ORDER[table](trace) else np.argsort(known)
    place = np.searchsorted(known, span_ids.astype(known.dtype), sorter=order)
    place = np.minimum(place, len(known) - 1)
    rows = place if order is None else order[place]
    found: Ids = np.where((span_ids >= 0) & (known[rows] == span_ids), rows, -1)
    return found


@once_per_trace
def _ops_in_order(trace: Trace) -> bool:
    return trace.ops["span_id"].is_sorted()


@once_per_trace
def _kernels_in_order(trace: Trace) -> bool:
    return trace.kernels["span_id"].is_sorted()


_IN_ORDER = {"ops": _ops_in_order, "kernels": _kernels_in_order}
