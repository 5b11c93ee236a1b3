"""A trace's host spans as arrays, with the calls among them by what they do: see runtime_names.py."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.names.named_spans import ids_like, ids_where, of_kind
from foretrace.runtime_names import Effect, calls_that
from foretrace.trace import Trace

# Kinds of overhead, as Kineto names CUPTI's. A full command buffer is not the profiler's doing.
LOADING = ("Lazy Function Loading", "Runtime Triggered Module Loading", "Driver Compiler")
QUEUE_FULL = "Command Buffer Full"
DATA_LOADING = r"^enumerate\(DataLoader\)#.*\.__next__$|^enumerate\(DataPipe\)#"
NOBODY = -1

Flags = NDArray[np.bool_]
Ids = NDArray[np.int64]


class HostSpans:
    """A trace's spans as arrays, and which of them have a name of some sort."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.spans = trace, trace.spans
        self._named: dict[tuple[str, ...], Flags] = {}
        self.start_ns: Ids = self.spans["start_ns"].to_numpy()
        self.end_ns: Ids = self.start_ns + self.spans["dur_ns"].fill_null(0).to_numpy()

    @cached_property
    def parent(self) -> Ids:
        """The caller of each, or NOBODY."""
        parent: Ids = self.spans["parent_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
        return parent

    def named(self, pattern: str, *kinds: str) -> Flags:
        """For each span, whether it is of one of these kinds and has such a name; not to be changed."""
        asked = (pattern, *kinds)
        if asked not in self._named:
            self._named[asked] = self._flags(ids_like(self.trace, kinds, pattern))
            self._named[asked].flags.writeable = False
        return self._named[asked]

    def calls_that(self, *wanted: Effect) -> Flags:
        """For each span, whether it is a call that does one of these things."""
        return self._flags(ids_where(self.trace, "runtime", lambda names: calls_that(names, *wanted)))

    def _flags(self, ids: Ids) -> Flags:
        flags = np.zeros(len(self.start_ns), bool)
        flags[ids] = True
        return flags

    def kind(self, *kinds: str) -> Flags:
        """For each span, whether it is of one of these kinds."""
        return of_kind(self.trace, kinds)

    def nearest(self, ids: Ids, flags: Flags) -> Ids:
        """For each span, itself or the innermost caller that is flagged; NOBODY where none is."""
        at = ids.copy()
        if not flags.any():
            at[:] = NOBODY
            return at
        rows = np.flatnonzero((at != NOBODY) & ~flags[at])
        while len(rows):
            at[rows] = self.parent[at[rows]]
            rows = rows[(at[rows] != NOBODY)]
            rows = rows[~flags[at[rows]]]
        return at

    def inherited(self, marks: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """For each span, the bits of itself and of all its callers."""
        depth = self.spans["depth"].to_numpy()
        order = np.argsort(depth, kind="stable")
        edges = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
        marks = marks.copy()
        for first, last in pairwise(edges.tolist()):
            rows = order[first:last]
            rows = rows[self.parent[rows] != NOBODY]
            marks[rows] |= marks[self.parent[rows]]
        return marks

    def outermost(self, ids: Ids, flags: Flags) -> Ids:
        """For each span, the outermost of itself and its callers that is flagged; NOBODY where none is."""
        best = np.full(len(ids), NOBODY, np.int64)
        at = self.nearest(ids, flags)
        rows = np.flatnonzero(at != NOBODY)
        while len(rows):
            best[rows] = at[rows]
            at[rows] = self.nearest(self.parent[at[rows]], flags)
            rows = rows[at[rows] != NOBODY]
        return best
