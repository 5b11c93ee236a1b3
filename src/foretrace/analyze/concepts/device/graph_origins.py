"""Where the nodes of a CUDA graph come from: the operators of its capture, or of the same kernels run eagerly.

A replayed graph's kernels link to the one call that launched the graph. Two sources tell their operators:
- the capture, in this recording or another: ingest has put its operators behind the kernels (ingest/graph_replays.py);
- eager work of the same recording: runs of consecutive kernels with the same names (`RUN` or more, or the
  whole graph if that is shorter), if every such run in eager came from the same operators. Names alone are known then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.trace import Trace

Array = NDArray[Any]

HOW_TO_GET_CAPTURES = (
    "record with shapes and stacks while the graphs are captured, or the same program without graphs (vLLM: enforce_eager, "
    "SGLang: disable_cuda_graph), and add --capture-trace FILE"
)
RUN = 4
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def has_capture() -> pl.Expr:
    """Whether GPU work has its operator from the capture of its graph: see ingest/graph_replays.py."""
    return (pl.col("op_id") > pl.col("launch_id")).fill_null(value=False)


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
