"""Spans found by their names: the distinct names of a recording are gathered once, and each is matched once."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import schema
from foretrace.trace import Trace, once_per_trace

Ids = NDArray[np.int64]


@once_per_trace
def _distinct(trace: Trace) -> tuple[pl.Series, NDArray[np.uint32]]:
    """The distinct names of all spans, as text and as codes."""
    names = trace.spans["name"].unique()
    return names.cast(pl.String), names.to_physical().to_numpy()


def ids_like(trace: Trace, kind: str, pattern: str) -> Ids:
    """Ids of the spans of a kind whose names match, in order."""
    text, codes = _distinct(trace)
    found = codes[text.str.contains(pattern).to_numpy()]
    if not len(found):
        return np.zeros(0, np.int64)
    matches = np.zeros(int(codes.max()) + 1, bool)
    matches[found] = True
    ids = np.flatnonzero(matches[trace.spans["name"].to_physical().to_numpy()])
    of_kind: Ids = ids[trace.spans["kind"].to_physical().to_numpy()[ids] == schema.KINDS.index(kind)]
    return of_kind


def operator_rows(trace: Trace, span_ids: Ids) -> Ids:
    """Where the operators with these ids are in `ops`; -1 for those that are not."""
    known = trace.ops["span_id"].to_numpy()
    if not len(known):
        return np.full(len(span_ids), -1, np.int64)
    order = None if _in_order(trace) else np.argsort(known)
    place = np.searchsorted(known, span_ids.astype(known.dtype), sorter=order)
    place = np.minimum(place, len(known) - 1)
    rows = place if order is None else order[place]
    found: Ids = np.where((span_ids >= 0) & (known[rows] == span_ids), rows, -1)
    return found


@once_per_trace
def _in_order(trace: Trace) -> bool:
    return trace.ops["span_id"].is_sorted()
