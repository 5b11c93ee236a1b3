"""The Snapshot: what torch's CUDA allocator held at one moment, and the history that led there, as tables.

Tables (polars; bytes are Int64, an address is UInt64, times are Int64 nanoseconds of the Unix clock):

    segments: device, address, total_bytes, allocated_bytes, active_bytes, requested_bytes, stream, kind (small, large), pool,
        expandable, stack. What the allocator took from the driver.
    blocks: segment (row of `segments`), device, address, size_bytes, requested_bytes, state (active, pending, inactive), stack.
        How the segments were divided when the snapshot was made; `pending` is freed, but a stream may still use it.
    events: device, action, address, size_bytes, stream, pool, time_ns, stack, context, note. The history, per device in order.
        Actions: alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap, snapshot, oom,
        annotate. For `oom`, size_bytes is what was asked for and `address` what the device had free. The host's caching
        allocator has device -1.
    stacks: stack, position (0 is the innermost), frame. -1 as a stack: none was recorded.
    frames: file, line, function. A frame is a row number.
    annotations: device, stage (START, END), name, time_ns. What record_function and the profiler named.

`pool` is "0,0" for the common one; another is a private pool, of a CUDA graph for example.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

NO_STACK = -1
HOST = -1  # the device of the host's caching allocator
COMMON_POOL = "0,0"
ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot",
    "oom", "annotate",
)  # fmt: skip
STATES = ("active", "pending", "inactive")

SEGMENTS: Mapping[str, Any] = {
    "device": pl.Int32, "address": pl.UInt64, "total_bytes": pl.Int64, "allocated_bytes": pl.Int64, "active_bytes": pl.Int64,
    "requested_bytes": pl.Int64, "stream": pl.Int64, "kind": pl.String, "pool": pl.String, "expandable": pl.Boolean,
    "stack": pl.Int32,
}  # fmt: skip
BLOCKS: Mapping[str, Any] = {
    "segment": pl.Int32, "device": pl.Int32, "address": pl.UInt64, "size_bytes": pl.Int64, "requested_bytes": pl.Int64,
    "state": pl.Enum(STATES), "stack": pl.Int32,
}  # fmt: skip
EVENTS: Mapping[str, Any] = {
    "device": pl.Int32, "action": pl.Enum(ACTIONS), "address": pl.UInt64, "size_bytes": pl.Int64, "stream": pl.Int64,
    "pool": pl.String, "time_ns": pl.Int64, "stack": pl.Int32, "context": pl.String, "note": pl.String,
}  # fmt: skip
STACKS: Mapping[str, Any] = {"stack": pl.Int32, "position": pl.Int32, "frame": pl.Int32}
FRAMES: Mapping[str, Any] = {"file": pl.String, "line": pl.Int32, "function": pl.String}
ANNOTATIONS: Mapping[str, Any] = {
    "device": pl.Int32, "stage": pl.String, "name": pl.String, "time_ns": pl.Int64
}  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """One snapshot; `notes` says what reading had to leave out or could not know."""

    path: Path
    segments: pl.DataFrame
    blocks: pl.DataFrame
    events: pl.DataFrame
    stacks: pl.DataFrame
    frames: pl.DataFrame
    annotations: pl.DataFrame
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the allocator, as torch names them
    notes: tuple[str, ...] = ()


def baseline_bytes(snapshot: Snapshot) -> dict[int, int]:
    """Per device, the bytes that were held before its history begins: what is held at the end, less what the history adds.

    The history counts what was asked for, not the rounded blocks, and so does this. 0 where the history is whole.
    """
    held = snapshot.blocks.filter(pl.col("state") != "inactive")
    asked = pl.coalesce("requested_bytes", "size_bytes")
    change = (
        pl.when(pl.col("action") == "alloc").then("size_bytes")
        .when(pl.col("action") == "free_completed").then(-pl.col("size_bytes")).otherwise(0)
    )  # fmt: skip
    final = dict(held.group_by("device").agg(asked.sum()).iter_rows())
    net = dict(snapshot.events.group_by("device").agg(change.sum()).iter_rows())
    return {device: final.get(device, 0) - net.get(device, 0) for device in sorted({*final, *net})}


def frees_of_earlier(snapshot: Snapshot, device: int) -> int:
    """How many frees in a device's history are of memory that was allocated before it begins."""
    moved = pl.col("action").is_in(["alloc", "free_completed"]) & (pl.col("device") == device)
    moves = snapshot.events.lazy().filter(moved).select("address", free=pl.col("action") != "alloc").collect()
    address, free = moves["address"].to_numpy(), moves["free"].to_numpy()
    order = address.argsort(kind="stable")  # by address; what happened to one stays in its order
    address, free = address[order], free[order]
    lost = free.copy()
    lost[1:] &= (address[1:] != address[:-1]) | free[:-1]  # nothing before it, or a free
    return int(lost.sum())
