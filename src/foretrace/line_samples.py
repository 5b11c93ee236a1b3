"""The LineSamples: what the line sampler of a Run saw, of the recorded process and of those that it forked or started.

Null means "not known"; never 0, -1 or "". Times are nanoseconds since 1970: `trace.meta` has the start of the recording's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from foretrace.schema import Column


def _maybe(dtype: pl.DataType | type[pl.DataType], says: str) -> Column:
    return Column(dtype, says, nullable=True)


TABLES: Mapping[str, Mapping[str, Column]] = {
    "processes": {
        "process": Column(pl.Int64, "process id"),
        "parent": Column(pl.Int64, "the process that it comes from"),
        "recorded": Column(pl.Boolean, "whether it is the one whose steps were recorded"),
        "kind": Column(pl.String, "started: by an interpreter of its own; forked"),
        "python": Column(pl.String, "version"),
        "began_ns": Column(pl.Int64, "since 1970"),
        "ended_ns": Column(pl.Int64, "when it last wrote"),
        "ticks_count": Column(pl.Int64, "moments at which all threads were looked at"),
        "torn_count": Column(pl.Int64, "stacks that changed while they were read, three times"),
        "cost_ns": Column(pl.Int64, "processor time of the sampler"),
    },
    "places": {
        "id": Column(pl.UInt32, "row number"),
        "process": Column(pl.Int64, "process id"),
        "file": Column(pl.String, "source file"),
        "function": Column(pl.String, "qualified name"),
        "first_line": Column(pl.Int32, "of the function"),
        "line": _maybe(pl.Int32, "the line that was executed"),
        "column": _maybe(pl.Int32, "where the expression begins in it, in bytes from 0"),
        "end_column": _maybe(pl.Int32, "where it ends, if on the same line"),
        "user": Column(pl.Boolean, "not of the standard library, an installed package or Foretrace"),
    },
    "stacks": {
        "id": Column(pl.UInt32, "row number; a stack is a place and its callers"),
        "parent_id": _maybe(pl.UInt32, "the caller"),
        "place_id": Column(pl.UInt32, "the innermost place"),
    },
    "samples": {
        "process": Column(pl.Int64, "process id"),
        "t_ns": Column(pl.Int64, "since 1970; all threads of a process at one tick have the same"),
        "thread": Column(pl.Int64, "the kernel's number of the thread; of the main thread, the process id"),
        "stack_id": Column(pl.UInt32, "where the thread was"),
        "holds_gil": Column(pl.Boolean, "whether it held the interpreter's lock: Python code runs"),
        "waits": Column(pl.Boolean, "whether the kernel had it waiting, neither running nor ready to"),
        "cpu_ns": _maybe(pl.Int64, "processor time of the thread since its sample before"),
    },
}


@dataclass(frozen=True)
class LineSamples:
    """Samples with what they mean for steps."""

    processes: pl.DataFrame
    places: pl.DataFrame
    stacks: pl.DataFrame
    samples: pl.DataFrame
    recorded: int | None = None  # the process whose steps were recorded
    thread: int | None = None  # that takes the steps
    first_ns: int | None = None  # the first boundary of a step
    last_ns: int | None = None  # the last; null where the program went on when nobody looked any more
    profiled_ns: tuple[tuple[int, int], ...] = ()  # under a profiler: not the program's own times
    notes: tuple[str, ...] = field(default=())  # what could not be read


def frame(table: str, columns: Mapping[str, object]) -> pl.DataFrame:
    """One of the tables."""
    return pl.DataFrame(columns, schema={name: column.dtype for name, column in TABLES[table].items()})
