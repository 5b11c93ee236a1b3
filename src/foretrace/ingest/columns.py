"""What a scanner and linker hand over: plain arrays, with text as codes into `names` and `texts`.

The native extension and `kineto_python` both fill this; `kineto_tables` turns it into frames.
An absent value is the NULL of its type, here only: the frames have real nulls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

NULL_U32 = 0xFFFF_FFFF
NULL_U64 = 0xFFFF_FFFF_FFFF_FFFF
NULL_I32 = -(2**31)
NULL_I64 = -(2**63)
NULLS: dict[str, int] = {"u4": NULL_U32, "u8": NULL_U64, "i4": NULL_I32, "i8": NULL_I64}

Array = NDArray[Any]
U8, U16, U32, U64, I32, I64, F64 = (
    np.dtype(name) for name in ("u1", "u2", "u4", "u8", "i4", "i8", "f8")
)  # fmt: skip

# Group -> column -> type. The order is the order in which the extension returns the columns.
GROUPS: dict[str, dict[str, np.dtype[Any]]] = {
    "spans": {
        "track": U32, "kind": U8, "name": U32, "start": I64, "dur": I64, "depth": U16,
        "parent": U32, "launch": U32, "op": U32, "step": I32,
    },
    "kernels": {
        "span": U32, "grid_x": I32, "grid_y": I32, "grid_z": I32, "block_x": I32, "block_y": I32,
        "block_z": I32, "registers": I32, "shared": I64, "blocks_per_sm": F64, "warps_per_sm": F64,
        "occupancy": F64, "graph": I64, "graph_node": I64,
    },
    "copies": {"span": U32, "size": I64},
    "ops": {
        "span": U32, "shapes": U32, "dtypes": U32, "strides": U32, "inputs": U32,
        "sequence": I64, "forward_thread": I32, "forward": U32, "flops": I64, "stack": U32,
        "module": U32, "call_stack": U32,
    },
    "python": {"span": U32, "caller": U32, "stack": U32, "module": U32},
    "counters": {"track": U32, "at": I64, "name": U32, "key": U32, "value": F64},
    "memory": {
        "at": I64, "bytes": I64, "address": U64, "device_type": I64, "device_id": I64,
        "allocated": I64, "reserved": I64, "op": U32, "stack": U32, "module": U32,
    },
    "stacks": {"parent": U32, "name": U32},
    "modules": {"parent": U32, "name": U32},
    "args": {"span": U32, "key": U32, "type": U8, "value": I64},
    "lanes": {"device": I64, "stream": I64},
    "labels": {"track": U32, "name": U32, "text": U32},
    "instants": {"name": U32, "at": I64},
    "windows": {"name": U32, "start": I64, "dur": I64},
    "steps": {"number": I32, "start": I64, "end": I64},
}  # fmt: skip

ARG_INT, ARG_FLOAT, ARG_TEXT = range(3)


@dataclass
class Columns:
    """One recording, scanned and linked."""

    groups: dict[str, dict[str, Array]]
    names: list[str]
    texts: list[str]
    lanes: list[tuple[int | str, int | str]]  # process and thread of each track, as recorded
    header: dict[str, Any]
    origin_ns: int
    counts: dict[str, int]
    repairs: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    processes: tuple[
        dict[str, Any], ...
    ] = ()  # where there are several: the one that was read, then the others


def coded(texts: pl.Series, codes: Array) -> pl.Series:
    """The text behind each code. Codes of the native scanner are replaced where they lie, and gone afterwards."""
    recode = getattr(codes.base, "recode", None)
    if recode is None:
        return texts.gather(nullable(codes))
    recode(texts.to_physical().to_numpy())
    return nullable(codes).cat.to(texts.dtype)  # no gather: its copies were the peak of memory


class _Handed:
    """A column of the native scanner, which polars takes over without a copy."""

    def __init__(self, capsules: tuple[object, object]) -> None:
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._capsules


def nothing(rows: int, dtype: np.dtype[Any], null: float) -> Array:
    """A column that nothing was recorded for: all null, in the memory of one."""
    return np.broadcast_to(np.array(null, dtype), rows)


def is_nothing(values: Array) -> bool:
    """Whether this is the result of `nothing`."""
    return values.strides == (0,)


def nullable(values: Array) -> pl.Series:
    """A series with real nulls where the array has its type's NULL."""
    if is_nothing(values):
        return pl.Series(np.empty(0, values.dtype)).clear(len(values))
    arrow = getattr(values.base, "arrow", None)
    if arrow is not None:
        return pl.Series(_Handed(arrow(values.dtype.str[1:], values.nbytes)))
    series = pl.Series(values)
    if values.dtype.kind == "f":
        return series.fill_nan(None)
    if values.dtype.str[1:] not in NULLS:
        return series
    null = values == NULLS[values.dtype.str[1:]]
    return series.set(pl.Series(null), None) if null.any() else series
