"""Graph captures: what a recording tells of how a CUDA graph was made.

Between StreamBeginCapture and StreamEndCapture, launch calls start no work: each becomes a node of the graph, in that order.
A recording of the same program run eagerly tells it, too: by the names of its kernels in order, and the call behind each.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import schema
from foretrace.runtime_names import Effect, calls_that, does
from foretrace.trace import Trace, once_per_trace

Array = NDArray[Any]

_LAUNCHES = (Effect.KERNEL, Effect.COPY, Effect.FILL)


@dataclass(frozen=True, eq=False)
class Capture:
    """One capture: when it began and ended, and the launch calls in it, in order."""

    trace: Trace
    begin_ns: int
    end_ns: int
    calls: Array  # span ids
    kinds: tuple[str, ...]  # the kind of node that each call makes
    names: tuple[str, ...] | None  # of the kernels, where the calls tell them, as on ROCm

    @cached_property
    def ops(self) -> list[int | None]:
        """The operator behind each call."""
        return self.trace.spans["op_id"].gather(self.calls).to_list()

    @cached_property
    def op_names(self) -> list[str | None]:
        """The names of the operators."""
        return self.trace.spans["name"].gather(pl.Series(self.ops, dtype=pl.UInt32)).cast(pl.String).to_list()

    @cached_property
    def shapes(self) -> list[str | None]:
        """The shapes that the operators were called with."""
        of_op = _shapes(self.trace)
        return [None if op is None else of_op.get(op) for op in self.ops]

    @cached_property
    def modules(self) -> list[int | None]:
        """The module around each operator."""
        of_op = _modules(self.trace)
        return [None if op is None else of_op.get(op) for op in self.ops]

    @cached_property
    def rows_count(self) -> int | None:
        """Rows that most operators work on: the tokens of a batch, as servers lay them out."""
        counts = Counter(rows for shapes in self.shapes if (rows := _rows(shapes)) is not None)
        return counts.most_common(1)[0][0] if counts else None


@once_per_trace
def _shapes(trace: Trace) -> dict[int, str]:
    known = trace.ops.select("span_id", pl.col("shapes").cast(pl.String)).drop_nulls()
    return dict(known.iter_rows())


@once_per_trace
def _modules(trace: Trace) -> dict[int, int]:
    return dict(trace.ops.select("span_id", "module_id").drop_nulls().iter_rows())


def _rows(shapes: str | None) -> int | None:
    """The first extent of the first tensor."""
    try:
        listed = json.loads(shapes) if shapes else []
    except ValueError:
        return None
    first = next((shape for shape in listed if isinstance(shape, list) and len(shape) > 1), None)
    return first[0] if first and isinstance(first[0], int) else None


@once_per_trace
def captures(trace: Trace) -> tuple[Capture, ...]:
    """The captures that lie in the recording, in order."""
    calls = trace.spans.lazy().filter(pl.col("kind") == "runtime")
    rows = calls.select("id", "name", "start_ns", "parent_id").collect()
    begins = rows.filter(pl.Series(calls_that(rows["name"], Effect.BEGIN_CAPTURE)))
    if begins.is_empty():
        return ()
    ends = rows.filter(pl.Series(calls_that(rows["name"], Effect.END_CAPTURE)))["start_ns"].to_numpy()
    launches = rows.filter(pl.Series(calls_that(rows["name"], *_LAUNCHES)))
    # A driver call inside a runtime call is the same launch, and one that started work was not captured.
    started = trace.spans["launch_id"].drop_nulls().unique()
    launches = launches.filter(
        ~pl.col("parent_id").is_in(launches["id"].implode()).fill_null(value=False)
        & ~pl.col("id").is_in(started.implode())
    )
    at, kernel_names = launches["start_ns"].to_numpy(), _kernel_names(trace)
    found = []
    for begin in begins["start_ns"].to_list():
        after = ends[np.searchsorted(ends, begin, side="right") :]
        if len(after):
            first, last = np.searchsorted(at, (begin, after[0]))
            inside = launches.slice(int(first), int(last - first))
            found.append(_capture(trace, begin, int(after[0]), inside, kernel_names))
    return tuple(found)


def _capture(
    trace: Trace, begin_ns: int, end_ns: int, calls: pl.DataFrame, kernel_names: dict[int, str]
) -> Capture:
    kinds = tuple(_kind(name) for name in calls["name"].cast(pl.String).to_list())
    names = tuple(
        kernel_names.get(call, "") if kind == "kernel" else kind
        for call, kind in zip(calls["id"].to_list(), kinds, strict=True)
    )
    return Capture(trace, begin_ns, end_ns, calls["id"].to_numpy(), kinds, names if all(names) else None)


def _kernel_names(trace: Trace) -> dict[int, str]:
    """The kernel that each launch call names."""
    named = trace.args.filter(pl.col("key") == "kernel").select("span_id", pl.col("text").cast(pl.String))
    return dict(named.drop_nulls().iter_rows())


def _kind(call: str) -> str:
    """The kind of node that a launch call makes."""
    return "copy" if does(call, Effect.COPY) else "set" if does(call, Effect.FILL) else "kernel"


@dataclass(frozen=True)
class Eager:
    """Device work that operators launched themselves, in order of start."""

    names: tuple[str, ...]
    calls: Array  # the launch call of each


@once_per_trace
def eager(trace: Trace) -> Eager:
    """The eager work of a recording: what no graph launched, and an operator did."""
    work = trace.device_spans.filter(pl.col("op_id").is_not_null() & pl.col("launch_id").is_not_null())
    work = work.filter(~pl.col("launch_id").is_in(graph_launches(trace).implode())).sort("start_ns", "id")
    return Eager(tuple(node_names(work)), work["launch_id"].to_numpy())


@once_per_trace
def eager_kernels(trace: Trace) -> frozenset[tuple[str, str | None, str]]:
    """Which kernels operators were seen to launch: name and shapes of the operator (or no shapes), and the kernel."""
    run = eager(trace)
    capture = Capture(trace, 0, 0, run.calls, (), None)
    seen: set[tuple[str, str | None, str]] = set()
    for op, shapes, name in zip(capture.op_names, capture.shapes, run.names, strict=True):
        if op is not None:
            seen |= {(op, shapes, name), (op, None, name)}
    return frozenset(seen)


@once_per_trace
def graph_launches(trace: Trace) -> pl.Series:
    """Ids of the calls that launch graphs."""
    parts = trace.span_parts("id", "kind", "name")
    return pl.concat([trace.spans["id"].clear(), *map(_launching_graphs, parts)])


def _launching_graphs(spans: pl.DataFrame) -> pl.Series:
    # Every recording that is read comes here: no query, whose engine takes time and memory.
    is_call = spans["kind"].to_physical().to_numpy() == schema.KINDS.index("runtime")
    rows = pl.Series(np.flatnonzero(is_call).astype(np.uint32))
    launches = pl.Series(calls_that(spans["name"].gather(rows), Effect.GRAPH), dtype=pl.Boolean)
    return spans["id"].gather(rows).filter(launches)


def node_names(work: pl.DataFrame) -> list[str]:
    """What tells nodes apart: the names of kernels; copies and fills are named by their kind alone."""
    is_kernel = pl.col("kind") == "kernel"
    name = pl.when(is_kernel).then(pl.col("name").cast(pl.String)).otherwise(pl.col("kind").cast(pl.String))
    return work.select(node=name)["node"].to_list()
