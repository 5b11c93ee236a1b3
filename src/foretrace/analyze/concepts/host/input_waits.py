"""When the program waited for its DataLoader or DataPipe."""

from __future__ import annotations

import numpy as np

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import DATA_LOADING
from foretrace.analyze.concepts.names.named_spans import ids_like, on_host
from foretrace.intervals import Intervals
from foretrace.trace import Trace, once_per_trace


@once_per_trace
def input_waits(trace: Trace) -> Intervals:
    """The time in a loader's __next__, on any thread of the host; empty where nothing was waited for."""
    ids = ids_like(trace, ("op", "annotation"), DATA_LOADING)
    if not len(ids):
        return intervals.EMPTY
    ids = ids[on_host(trace)[ids]]
    waits = trace.spans.select("start_ns", "dur_ns")[ids].drop_nulls()
    start = waits["start_ns"].to_numpy()
    return intervals.union(start, start + waits["dur_ns"].to_numpy().astype(np.int64))
