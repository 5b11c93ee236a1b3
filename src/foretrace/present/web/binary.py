"""A payload: a JSON header followed by typed columns, as `web/src/data/payload.ts` reads it.

"FTRP", u32 version, u32 header length, header, zeros to a multiple of 8, then the columns, each 8-aligned.
Numbers are little-endian. A "shuffled" column has all its first bytes, then all second bytes, and so on, which
compresses better; "gaps" are shuffled differences. A u32 that does not fit is ESCAPE, and its true value, as
f64, stands in the column "NAME:escapes". "steps" are u8 differences to the number before: ids of one row rise slowly,
and so take a quarter of the room; where one does not fit it is SMALL_ESCAPE, and the number itself is in the escapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC, VERSION = b"FTRP", 1
ESCAPE = 0xFFFFFFFF
SMALL_ESCAPE = 0xFF
_IN_ORDER = ("raw", "steps")  # encodings whose bytes are not shuffled
_TYPES = {"u1": "u8", "u2": "u16", "u4": "u32", "f4": "f32", "f8": "f64"}
_DTYPES = {name: f"<{code}" for code, name in _TYPES.items()}


@dataclass(frozen=True)
class Column:
    """Numbers, and how they are written."""

    values: NDArray[Any]
    encoding: str = "raw"


def pack(header: Mapping[str, Any], columns: Mapping[str, Column]) -> bytes:
    """The payload's bytes."""
    places, parts, offset = [], [], 0
    for name, column in columns.items():
        values = np.ascontiguousarray(column.values)
        written = values.tobytes() if column.encoding in _IN_ORDER else _shuffled(values)
        places.append(
            {"name": name, "type": _TYPES[values.dtype.str[1:]], "encoding": column.encoding,
             "length": len(values), "offset": offset, "bytes": len(written)}
        )  # fmt: skip
        padding = -len(written) % 8
        parts += [written, bytes(padding)]
        offset += len(written) + padding
    head = json.dumps({"header": header, "columns": places}, allow_nan=False, separators=(",", ":")).encode()
    first = MAGIC + VERSION.to_bytes(4, "little") + len(head).to_bytes(4, "little") + head
    return b"".join((first, bytes(-len(first) % 8), *parts))


def times(name: str, values: NDArray[np.int64], encoding: str) -> dict[str, Column]:
    """Nanoseconds as u32, with a column of those that do not fit."""
    large = (values < 0) | (values >= ESCAPE)
    columns = {name: Column(np.where(large, ESCAPE, values).astype("<u4"), encoding)}
    if large.any():
        columns[f"{name}:escapes"] = Column(values[large].astype("<f8"))
    return columns


def steps(name: str, values: NDArray[np.uint32]) -> dict[str, Column]:
    """Numbers as differences in one byte, with a column of those that are too far from the one before."""
    differences = np.diff(values.astype(np.int64), prepend=0)
    large = (differences < 0) | (differences >= SMALL_ESCAPE)
    columns = {name: Column(np.where(large, SMALL_ESCAPE, differences).astype(np.uint8), "steps")}
    if large.any():
        columns[f"{name}:escapes"] = Column(values[large].astype("<f8"))
    return columns


def _from_steps(differences: NDArray[np.uint8], escapes: NDArray[np.float64]) -> NDArray[np.uint32]:
    large = differences == SMALL_ESCAPE
    risen = np.cumsum(np.where(large, 0, differences), dtype=np.int64)
    # From each escape on, the number is that of the escape and what it has risen since.
    base = np.concatenate(([0], escapes.astype(np.int64) - risen[large]))
    found: NDArray[np.uint32] = (risen + base[np.cumsum(large)]).astype(np.uint32)
    return found


def _shuffled(values: NDArray[Any]) -> bytes:
    width = values.dtype.itemsize
    return values.view(np.uint8).reshape(-1, width).T.tobytes() if width > 1 else values.tobytes()


def unpack(payload: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and columns, with the bytes in order; gaps stay gaps, steps are numbers again. For tests and for a report that drops detail."""
    if payload[:4] != MAGIC or int.from_bytes(payload[4:8], "little") != VERSION:
        raise ValueError("not a payload of this version")
    length = int.from_bytes(payload[8:12], "little")
    head = json.loads(payload[12 : 12 + length])
    first = 12 + length + (-(12 + length) % 8)
    columns = {}
    for place in head["columns"]:
        at = first + place["offset"]
        part = payload[at : at + place["bytes"]]
        dtype = np.dtype(_DTYPES[place["type"]])
        if place["encoding"] not in _IN_ORDER:
            part = np.frombuffer(part, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
        columns[place["name"]] = np.frombuffer(part, dtype)
    for name in [place["name"] for place in head["columns"] if place["encoding"] == "steps"]:
        columns[name] = _from_steps(columns[name], columns.pop(f"{name}:escapes", np.empty(0)))
    return head["header"], columns
