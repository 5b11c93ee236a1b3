"""Where the nodes of a CUDA graph come from: the operators of its capture, or of the same kernels run eagerly.

A replayed graph's kernels link to the one call that launched the graph, not to an operator. Two sources tell:
- the capture, where it lies in the recording: launch calls between StreamBeginCapture and StreamEndCapture start
  no work, and stand in the order of the nodes. Taken only where capture and graph agree in number and kinds;
- eager work of the same recording: runs of consecutive kernels with the same names (`RUN` or more, or the
  whole graph if that is shorter), if every such run in eager came from the same operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.names.runtime_names import Effect, calls_that, does
from foretrace.trace import Trace

Array = NDArray[Any]

RUN = 4
NOBODY = -1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Capture:
    """One capture: when it ended, and the kind of node and the operator of each launch in it."""

    end_ns: int
    kinds: list[str]
    ops: list[int | None]


def captures(trace: Trace) -> list[Capture]:
    """The captures that lie in the recording, in order."""
    calls = trace.spans.lazy().filter(pl.col("kind") == "runtime")
    rows = calls.select("id", "name", "start_ns", "op_id", "parent_id").collect()
    begins = rows.filter(pl.Series(calls_that(rows["name"], Effect.BEGIN_CAPTURE)))
    if begins.is_empty():
        return []
    ends = rows.filter(pl.Series(calls_that(rows["name"], Effect.END_CAPTURE)))["start_ns"].to_numpy()
    launches = rows.filter(pl.Series(calls_that(rows["name"], Effect.KERNEL, Effect.COPY, Effect.FILL)))
    # A driver call inside a runtime call is the same launch.
    launches = launches.filter(~pl.col("parent_id").is_in(launches["id"].implode()).fill_null(value=False))
    at = launches["start_ns"].to_numpy()
    complete = []
    for begin in begins["start_ns"].to_list():
        after = ends[np.searchsorted(ends, begin, side="right") :]
        if len(after):
            first, last = np.searchsorted(at, (begin, after[0]))
            inside = launches.slice(int(first), int(last - first))
            kinds = [_kind(name) for name in inside["name"].cast(pl.String).to_list()]
            complete.append(Capture(int(after[0]), kinds, inside["op_id"].to_list()))
    return complete


def captured_ops(known: list[Capture], kinds: list[str], before_ns: int) -> list[int | None] | None:
    """The operator of each node, from the last capture before a time with these kinds of nodes; None without one."""
    for capture in reversed(known):
        if capture.end_ns < before_ns and capture.kinds == kinds:
            return capture.ops
    return None


def _kind(call: str) -> str:
    """The kind of node that a launch call makes."""
    return "copy" if does(call, Effect.COPY) else "set" if does(call, Effect.FILL) else "kernel"


class Eager:
    """Device work that operators launched themselves, stream by stream in order, by name and operator."""

    def __init__(self, trace: Trace, graph_launches: pl.Series) -> None:
        work = trace.device_spans.filter(
            pl.col("op_id").is_not_null()
            & pl.col("launch_id").is_not_null()
            & ~pl.col("launch_id").is_in(graph_launches.implode())
        )
        ordered = work.sort("track_id", "start_ns", maintain_order=True)
        self.names: Array = ordered["name"].to_physical().to_numpy()
        self.ops = trace.spans["name"].gather(ordered["op_id"]).cast(pl.String)
        self._places: dict[int, dict[int, int]] = {}

    def places(self, run: int) -> dict[int, int]:
        """Where each run of that many kernels stands, if every such run came from the same operators."""
        if run not in self._places:
            codes = self.ops.rank("dense").to_numpy()
            windows = pl.DataFrame({"run": _hashes(self.names, run), "ops": _hashes(codes, run)})
            groups = (
                windows.with_row_index("at")
                .group_by("run")
                .agg(pl.col("at").first(), pl.col("ops").n_unique())
            )
            self._places[run] = dict(groups.filter(pl.col("ops") == 1).select("run", "at").iter_rows())
        return self._places[run]


def ops_by_order(names: Array, eager: Eager) -> list[str | None]:
    """For each node, by name in order, the operator that the same run of kernels came from in eager."""
    run = min(RUN, len(names))
    ops: list[str | None] = [None] * len(names)
    if not run or len(eager.names) < run:
        return ops
    places = eager.places(run)
    for start, value in enumerate(_hashes(names, run).tolist()):
        at = places.get(value)
        if at is not None and (eager.names[at : at + run] == names[start : start + run]).all():
            for offset in range(run):
                ops[start + offset] = ops[start + offset] or eager.ops[at + offset]
    return ops


def _hashes(values: Array, run: int) -> Array:
    """A number for each run of consecutive values: equal runs have equal numbers."""
    total = np.zeros(max(len(values) - run + 1, 0), np.uint64)
    mixed = (values.astype(np.uint64) + np.uint64(1)) * _MULTIPLIER
    mixed ^= mixed >> np.uint64(29)
    for offset in range(run):
        total = total * _MULTIPLIER + mixed[offset : offset + len(total)]
    return total
