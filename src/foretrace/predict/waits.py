"""Waits: the calls of a program in which the host waits for results of the device."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device.device_time import names_like
from foretrace.analyze.concepts.host.runtime_calls import NOBODY, HostSpans
from foretrace.predict.numbers import Calls
from foretrace.predict.program import BLOCKING_COPY, SYNC, Program
from foretrace.predict.tasks import task_table
from foretrace.runtime_names import Effect, calls_that
from foretrace.trace import Trace

# Operators whose result is as large as the values of their input decide.
_SIZED_BY_VALUES = (
    r"^aten::(?:nonzero|masked_select|_?unique\w*|unique_consecutive|repeat_interleave|argwhere|bincount)\b"
)
# Collectives whose parts may differ in size, and how their recorded inputs give the sizes.
_SPLITS = r"^c10d::(?:alltoall_base_?|alltoall_)$|^_c10d_functional::all_to_all_single$"
_UNEVEN = r"(?i)all_?to_?allv|(?:all_?gather|reduce_?scatter)v"
_SIZES = r"\[\d+(?:, ?\d+)+\]"
_BRINGS = r"^aten::(?:item|_local_scalar_dense|to|_to_copy|copy_|_copy_from)$"
FLOATS = re.compile(r"float|double|Half|BFloat16")


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


def brings_values(host: HostSpans, program: Program, calls: Calls) -> NDArray[np.bool_]:
    """For each of these calls, whether it brings values to the host: .item(), .tolist(), .cpu()."""
    ids = program.call_span[calls].astype(np.int64)
    brings: NDArray[np.bool_] = host.nearest(ids, host.named(_BRINGS, "op")) != NOBODY
    return brings


def for_splits(trace: Trace, host: HostSpans, program: Program, calls: Calls) -> NDArray[np.bool_]:
    """For each of these calls, whether it reads sizes that the next collective with parts of its own sizes takes.

    Values read since the collective of that sort before it are such, but not floating-point ones; where types are not
    recorded, only what is read last.
    """
    feeds = np.zeros(len(calls), bool)
    at = _uneven_ns(trace)
    if not len(at) or not len(calls):
        return feeds
    ends = program.call_end_ns[calls] + program.start_ns
    following = np.searchsorted(at, ends)
    bounds = np.append(program.step_calls[1:], len(program.kind))
    last_call = bounds[np.clip(program.step[calls], 0, len(bounds) - 1)] - 1
    step_end = program.call_end_ns[np.maximum(last_call, 0)] + program.start_ns
    within = (following < len(at)) & (np.append(at, 0)[following] <= step_end)
    types = types_read(trace, host, program, calls)
    whole = np.array([text is not None and not FLOATS.search(text) for text in types])
    reading = np.flatnonzero(within & brings_values(host, program, calls))
    last = np.append(following[reading][1:] != following[reading][:-1], np.ones(min(len(reading), 1), bool))
    untold = np.array([text is None for text in types])
    feeds[reading] = whole[reading] | (untold[reading] & last)
    return feeds


def _uneven_ns(trace: Trace) -> NDArray[np.int64]:
    """When collectives with parts of different sizes were called, in order."""
    spans = trace.spans.select("id", "name", "start_ns", "kind").filter(pl.col("kind") == "op")
    uneven = trace.collectives.filter(pl.col("collective").str.contains(_UNEVEN))["span_id"]
    splitting = spans.filter(pl.col("name").is_in(names_like(spans, _SPLITS)))["id"]
    ops = trace.ops.filter(pl.col("span_id").is_in(splitting.implode()))
    sized = ops.filter(pl.col("inputs").cast(pl.String).str.contains(_SIZES))["span_id"]
    chosen = pl.concat((uneven, sized)).implode()
    return np.sort(spans.filter(pl.col("id").is_in(chosen))["start_ns"].to_numpy())


def types_read(trace: Trace, host: HostSpans, program: Program, calls: Calls) -> list[str | None]:
    """For each call, the recorded types of the outermost operator around it that brings values."""
    ids = program.call_span[calls].astype(np.int64)
    readers = pl.DataFrame({"span_id": host.outermost(ids, host.named(_BRINGS, "op"))})
    known = trace.ops.select(pl.col("span_id").cast(pl.Int64), pl.col("dtypes").cast(pl.String))
    return readers.join(known, on="span_id", how="left", maintain_order="left")["dtypes"].to_list()
