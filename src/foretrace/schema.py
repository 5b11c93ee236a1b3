"""Every table of a Trace and every column in it, declared once.

Null means "not recorded"; never 0, -1 or "". Times are int64 nanoseconds since the trace began.
Ids are row numbers: `spans.id` in start order, so `spans[i]` is the span with id i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

# Part of the cache key: raise it whenever a table, a column or the meaning of a value changes.
SCHEMA_VERSION = 5

KINDS = ("op", "python", "annotation", "runtime", "kernel", "copy", "set", "sync", "overhead")
DEVICE_KINDS = ("kernel", "copy", "set")
DIRECTIONS = ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "set")

KIND = pl.Enum(KINDS)
DIRECTION = pl.Enum(DIRECTIONS)
LINE_BY = pl.Enum(("entry", "ran"))
TEXT = pl.Categorical


@dataclass(frozen=True)
class Column:
    """A column: its type, whether a value may be absent, and what it holds."""

    dtype: pl.DataType | type[pl.DataType]
    says: str
    nullable: bool = False


def _maybe(dtype: pl.DataType | type[pl.DataType], says: str) -> Column:
    return Column(dtype, says, nullable=True)


TABLES: Mapping[str, Mapping[str, Column]] = {
    "spans": {
        "id": Column(pl.UInt32, "row number, in order of start"),
        "track_id": Column(pl.UInt32, "the thread or stream it ran on"),
        "kind": Column(KIND, "what sort of work: " + ", ".join(KINDS)),
        "name": Column(TEXT, "as recorded"),
        "start_ns": Column(pl.Int64, "since the trace began"),
        "dur_ns": _maybe(pl.Int64, "null where the recorded duration is missing or impossible"),
        "depth": Column(pl.UInt16, "number of ancestors"),
        "parent_id": _maybe(pl.UInt32, "the innermost span of the same track that contains it"),
        "launch_id": _maybe(pl.UInt32, "the runtime call that started this device work"),
        "op_id": _maybe(
            pl.UInt32,
            "the innermost operator behind this call or device work; of a graph's node, that of its capture",
        ),
        "step": _maybe(pl.Int32, "number of the step that it, or its launch, started in"),
    },
    "tracks": {
        "id": Column(pl.UInt32, "row number"),
        "rank": _maybe(pl.Int32, "distributed rank of the process"),
        "process": _maybe(pl.Int64, "process id of a host thread"),
        "device": _maybe(pl.Int32, "device index of a stream"),
        "stream": _maybe(pl.Int64, "stream number on that device"),
        "thread": _maybe(pl.Int64, "thread id of a host thread"),
        "name": Column(pl.String, "as recorded, or made from the ids"),
    },
    "kernels": {
        "span_id": Column(pl.UInt32, "the kernel's span"),
        "grid_x": _maybe(pl.Int32, "blocks in x"),
        "grid_y": _maybe(pl.Int32, "blocks in y"),
        "grid_z": _maybe(pl.Int32, "blocks in z"),
        "block_x": _maybe(pl.Int32, "threads per block in x"),
        "block_y": _maybe(pl.Int32, "threads per block in y"),
        "block_z": _maybe(pl.Int32, "threads per block in z"),
        "registers": _maybe(pl.Int32, "registers per thread"),
        "shared_bytes": _maybe(pl.Int64, "static and dynamic shared memory per block"),
        "blocks_per_sm": _maybe(pl.Float64, "grid size over the number of SMs"),
        "warps_per_sm": _maybe(pl.Float64, "warps of the grid over the number of SMs"),
        "occupancy_pct": _maybe(pl.Float64, "estimated from the launch geometry, not measured"),
        "graph_id": _maybe(pl.Int64, "CUDA graph that it was part of"),
        "graph_node_id": _maybe(pl.Int64, "node of that graph"),
    },
    "copies": {
        "span_id": Column(pl.UInt32, "the copy's or memset's span"),
        "size_bytes": _maybe(pl.Int64, "bytes moved or set"),
        "direction": _maybe(DIRECTION, "from and to, or set for a memset"),
        "pageable": _maybe(pl.Boolean, "whether the host side is pageable memory"),
    },
    "collectives": {
        "span_id": Column(pl.UInt32, "the operator or kernel of the collective"),
        "collective": Column(pl.String, "allreduce, allgather, ..."),
        "group": _maybe(pl.String, "process group"),
        "group_size": _maybe(pl.Int64, "ranks in the group"),
        "ranks": _maybe(pl.String, "the ranks, as recorded"),
        "dtype": _maybe(pl.String, "element type"),
        "in_count": _maybe(pl.Int64, "elements sent"),
        "out_count": _maybe(pl.Int64, "elements received"),
        "size_bytes": _maybe(pl.Int64, "in_count times the element size, where the type is known"),
        "seq": _maybe(pl.Int64, "sequence number within the group"),
        "comms_id": _maybe(pl.String, "id of the collective across ranks; may exceed 64 bits"),
    },
    "ops": {
        "span_id": Column(pl.UInt32, "the operator's span"),
        "shapes": _maybe(TEXT, "input shapes, as JSON"),
        "dtypes": _maybe(TEXT, "input types, as JSON"),
        "strides": _maybe(TEXT, "input strides, as JSON"),
        "inputs": _maybe(TEXT, "values of the scalar inputs, as JSON"),
        "sequence": _maybe(pl.Int64, "autograd sequence number"),
        "forward_thread": _maybe(pl.Int32, "0 in the forward pass, else the forward's thread"),
        "forward_id": _maybe(pl.UInt32, "the forward operator that this backward operator belongs to"),
        "flops": _maybe(pl.Int64, "as counted by with_flops"),
        "stack_id": _maybe(pl.UInt32, "innermost Python frame around it"),
        "module_id": _maybe(pl.UInt32, "innermost nn.Module around it"),
    },
    "python": {
        "span_id": Column(pl.UInt32, "the Python call's span"),
        "caller_id": _maybe(pl.UInt32, "span of the calling Python function, by the profiler's own ids"),
        "stack_id": _maybe(pl.UInt32, "its frame in `stacks`"),
        "module_id": _maybe(pl.UInt32, "innermost nn.Module, this call included"),
    },
    "counters": {
        "track_id": Column(pl.UInt32, "the track it belongs to"),
        "at_ns": Column(pl.Int64, "since the trace began"),
        "name": Column(TEXT, "as recorded"),
        "value": Column(pl.Float64, "in the unit that its name says"),
    },
    "allocations": {
        "start_ns": _maybe(pl.Int64, "null if allocated before the recording"),
        "end_ns": _maybe(pl.Int64, "null if not freed within the recording"),
        "size_bytes": Column(pl.Int64, "as rounded up by the allocator"),
        "device": Column(pl.String, "cpu, cuda:0, ..."),
        "address": _maybe(pl.UInt64, "start address"),
        "op_id": _maybe(pl.UInt32, "innermost operator that allocated it"),
        "stack_id": _maybe(pl.UInt32, "innermost Python frame that allocated it"),
        "module_id": _maybe(pl.UInt32, "innermost nn.Module that allocated it"),
    },
    "stacks": {
        "id": Column(pl.UInt32, "row number; a stack is a frame and its callers"),
        "parent_id": _maybe(pl.UInt32, "the caller"),
        "file": _maybe(pl.String, "source file; null for built-in functions"),
        "line": _maybe(pl.Int32, "what `line_by` says; null where the profiler recorded neither"),
        "line_by": _maybe(
            LINE_BY,
            "entry: the line at which calls began, mostly the function's first; ran: the line that ran",
        ),
        "start_line": _maybe(
            pl.Int32,
            "of a function that ran when recording began: the line of that moment, which says no more than which function it is",
        ),
        "function": Column(pl.String, "function name"),
    },
    "callers": {
        "span_id": Column(pl.UInt32, "an operator or Python call of a Run"),
        "file": Column(TEXT, "the user's file that called it"),
        "function": Column(TEXT, "the user's function that called it"),
        "line": _maybe(pl.Int32, "the line of the call; null where only the function is known"),
        "last_line": _maybe(pl.Int32, "the last line that it may have been, where that is not `line`"),
    },
    "modules": {
        "id": Column(pl.UInt32, "row number"),
        "parent_id": _maybe(pl.UInt32, "the module around it"),
        "name": Column(pl.String, "class and number of the instance"),
    },
    "args": {
        "span_id": Column(pl.UInt32, "the span"),
        "key": Column(TEXT, "an argument that no other table holds"),
        "int": _maybe(pl.Int64, "its value, if an integer"),
        "float": _maybe(pl.Float64, "its value, if another number"),
        "text": _maybe(TEXT, "its value, if text, a list or an object"),
    },
}


def polars_schema(table: str) -> dict[str, pl.DataType | type[pl.DataType]]:
    """The polars schema of one table."""
    return {name: column.dtype for name, column in TABLES[table].items()}
