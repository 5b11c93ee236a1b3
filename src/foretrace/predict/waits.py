"""Waits: the calls of a program in which the host waits for results of the device."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.host.runtime_calls import NOBODY, HostSpans
from foretrace.analyze.concepts.names.runtime_names import Effect, calls_that
from foretrace.predict.numbers import Calls
from foretrace.predict.program import BLOCKING_COPY, SYNC, Program
from foretrace.predict.tasks import task_table
from foretrace.trace import Trace

# Operators whose result is as large as the values of their input decide.
_SIZED_BY_VALUES = (
    r"^aten::(?:nonzero|masked_select|_?unique\w*|unique_consecutive|repeat_interleave|argwhere|bincount)\b"
)


def waiting_calls(trace: Trace, program: Program) -> Calls:
    """Calls that wait for the device, other than for a copy to it or to free memory."""
    to_device = trace.copies.filter(pl.col("direction") == "HtoD")["span_id"]
    copied = task_table(trace, program).filter(pl.col("id").is_in(to_device.implode()))
    waits = np.isin(program.kind, (SYNC, BLOCKING_COPY))
    waits[copied["call"].to_numpy()] = False
    ops = trace.spans["op_id"].gather(program.call_span)
    after_copy = ops.is_in(copied["op_id"].drop_nulls().implode()).fill_null(value=False)
    memory = calls_that(trace.spans["name"].gather(program.call_span), Effect.ALLOCATE, Effect.FREE)
    return Calls(np.flatnonzero(waits & ~after_copy.to_numpy() & ~memory))


def for_sizes(host: HostSpans, program: Program, calls: Calls) -> NDArray[np.bool_]:
    """For each of these calls, whether it waits for the size of a result, such as that of nonzero or of a mask as index."""
    ids = program.call_span[calls].astype(np.int64)
    within: NDArray[np.bool_] = host.nearest(ids, host.named(_SIZED_BY_VALUES, "op")) != NOBODY
    return within
