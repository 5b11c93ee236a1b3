"""The one table of runtime calls and what each does, for CUDA's runtime and driver, HIP and oneAPI.

A name is a prefix, a stem and perhaps a version or a variant of the stream ("_v7000", "_v2", "_ptsz", "_spt"). HIP has the
stems of both of CUDA's libraries, so a call and its twin do the same here: a row names a stem once for all of them.
"""

from __future__ import annotations

import re
from enum import Flag, auto
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray


class Effect(Flag):
    """What a call does; one may do several things."""

    NOTHING = 0
    SYNC = auto()  # exists to make the host wait
    WHOLE_DEVICE = auto()  # and waits for all streams
    BLOCKS = auto()  # returns when its copy is done, or the device is
    COPY = auto()
    FILL = auto()
    KERNEL = auto()  # launches one kernel
    GRAPH = auto()  # launches a graph
    RECORD = auto()  # marks a point in a stream
    AWAIT = auto()  # makes a stream, not the host, wait for such a point
    ALLOCATE = auto()  # takes memory from the driver
    FREE = auto()  # gives it back
    PIN = auto()  # of the host: pinned memory
    STREAM_ORDERED = auto()  # takes its turn in a stream and returns at once
    LOAD = auto()  # loads code
    BEGIN_CAPTURE = auto()
    END_CAPTURE = auto()


MEMORY = Effect.ALLOCATE | Effect.FREE

_ANY, _RUNTIME, _DRIVER, _HIP, _ONEAPI = "(?:cuda|cu|hip)", "(?:cuda|hip)", "(?:cu|hip)", "hip", ""
_VARIANT = r"(?:_v\d+|_ptsz|_ptds|_spt|R\d{4})*"
# The first row that matches counts, so "Async" and what is special come before what is general.
_TABLE = (
    (_ANY, r"(?:Device|Ctx|Thread)Synchronize", Effect.SYNC | Effect.WHOLE_DEVICE),
    (_ANY, r"(?:Stream|Event)Synchronize", Effect.SYNC),
    (_ONEAPI, r"(?:ur|pi)(?:QueueFinish|Events?Wait)\w*", Effect.SYNC),
    (_ONEAPI, r"ze(?:EventHost|FenceHost|CommandQueue|CommandList)\w*Synchronize", Effect.SYNC),
    (_ANY, r"Memcpy\w*Async", Effect.COPY),
    # hipMemcpyWithStream is cudaMemcpyAsync and cudaStreamSynchronize in one: torch copies with it on ROCm.
    (_ANY, r"Memcpy\w*", Effect.COPY | Effect.BLOCKS),
    (_ONEAPI, r"(?:ur|pi)Enqueue(?:USMMemcpy|MemBuffer)\w*|zeCommandListAppendMemoryCopy\w*", Effect.COPY),
    (_ANY, r"Memset\w*", Effect.FILL),
    (_ANY, r"GraphLaunch", Effect.GRAPH),
    (_ANY, r"\w*Launch\w*Kernel\w*", Effect.KERNEL),
    (_RUNTIME, r"Launch(?:ByPtr)?", Effect.KERNEL),
    (_ONEAPI, r"(?:ur|pi)Enqueue(?:Kernel|Cooperative)\w*|zeCommandListAppendLaunch\w*", Effect.KERNEL),
    (_ANY, r"EventRecord\w*", Effect.RECORD),
    (_ANY, r"StreamWaitEvent", Effect.AWAIT),
    (_ANY, r"StreamBeginCapture\w*", Effect.BEGIN_CAPTURE),
    (_ANY, r"StreamEndCapture", Effect.END_CAPTURE),
    (_RUNTIME, r"(?:Malloc|ExtMalloc)\w*Async", Effect.ALLOCATE | Effect.STREAM_ORDERED),
    (_DRIVER, r"MemAlloc\w*Async", Effect.ALLOCATE | Effect.STREAM_ORDERED),
    (_ANY, r"(?:Mem)?FreeAsync", Effect.FREE | Effect.STREAM_ORDERED),
    (_RUNTIME, r"MallocHost|Host(?:Alloc|Malloc|Register)\w*", Effect.ALLOCATE | Effect.PIN),
    (_DRIVER, r"MemAllocHost|MemHost(?:Alloc|Register)\w*", Effect.ALLOCATE | Effect.PIN),
    (_RUNTIME, r"FreeHost|Host(?:Free|Unregister)", Effect.FREE | Effect.PIN | Effect.BLOCKS),
    (_DRIVER, r"MemFreeHost|MemHostUnregister", Effect.FREE | Effect.PIN | Effect.BLOCKS),
    (_RUNTIME, r"(?:Malloc|ExtMalloc)\w*", Effect.ALLOCATE),
    (_DRIVER, r"Mem(?:Alloc|Create|Map|AddressReserve|SetAccess)\w*", Effect.ALLOCATE),
    (_ANY, r"(?:Free\w*|MemFree\w*)", Effect.FREE | Effect.BLOCKS),
    (_ANY, r"Mem(?:Unmap|Release|AddressFree)\w*", Effect.FREE),
    (_ANY, r"(?:DeviceSet)?MemPool\w*", Effect.ALLOCATE),
    (_ONEAPI, r"(?:ur|pi)USM\w*Alloc\w*|zeMemAlloc\w*", Effect.ALLOCATE),
    (_ONEAPI, r"(?:ur|pi)USM\w*Free\w*|zeMemFree\w*", Effect.FREE),
    (_ANY, r"(?:Module|Library)Load\w*", Effect.LOAD),
)  # fmt: skip
_ROWS = tuple((re.compile(f"{prefix}(?:{stem}){_VARIANT}"), effect) for prefix, stem, effect in _TABLE)


@cache
def effect(name: str) -> Effect:
    """What the call of this name does; nothing, where the table does not hold it."""
    return next((does for pattern, does in _ROWS if pattern.fullmatch(name)), Effect.NOTHING)


def does(name: str, *wanted: Effect) -> bool:
    """Whether a call does one of these things; of several joined by `|`, all."""
    found = effect(name)
    return any(each in found for each in wanted)


def calls_that(names: pl.Series, *wanted: Effect) -> NDArray[np.bool_]:
    """For each name, whether a call of that name does one of these things; looked up once per name."""
    if names.dtype != pl.Categorical:
        names = names.cast(pl.Categorical)
    codes = names.to_physical()
    greatest = codes.max()
    last = greatest + 1 if isinstance(greatest, int) else 0
    # Those without a name have the last place.
    every = (codes.fill_null(last) if codes.null_count() else codes).to_numpy()
    example = np.full(last + 1, -1, np.int32)
    example[every] = np.arange(len(every), dtype=np.int32)
    there = np.flatnonzero(example[:last] >= 0)
    matches = np.zeros(last + 1, bool)
    matches[there] = [does(name, *wanted) for name in names.gather(example[there]).cast(pl.String)]
    flags: NDArray[np.bool_] = matches[every]
    return flags
