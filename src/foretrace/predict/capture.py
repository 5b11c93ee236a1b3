"""Launches captured in CUDA graphs: which calls a graph would replay, what stands against it, and the edit."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze import runtime_calls
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.edits import Edit
from foretrace.predict.program import BLOCKING_COPY, SYNC, Program
from foretrace.predict.tasks import task_table
from foretrace.trace import Trace

_GRAPH_LAUNCH_NS = 15_000  # replaying a graph from Python, as measured on the H200's host
_GRAPH = r"^(?:cuda|hip|cu)GraphLaunch"
_COMMUNICATES = r"(?i)nccl|rccl|all_?reduce|reduce_?scatter|all_?gather"
_FREES = r"^(?:cuda|hip)(?:Free|HostFree)|^cuMem"


def loading_ns(trace: Trace, program: Program) -> NDArray[np.int64]:
    """For each call, how much of the recorded gap before it went to data loading."""
    names = trace.spans.filter(pl.col("kind").is_in(("op", "annotation")))
    loading = names.filter(pl.col("name").cast(pl.String).str.contains(runtime_calls.DATA_LOADING))
    start = (loading["start_ns"] - program.start_ns).to_numpy()
    waits = intervals.union(start, start + loading["dur_ns"].fill_null(0).to_numpy())
    begin = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1]))
    return intervals.covered_ns(waits, np.minimum(begin, program.call_start_ns), program.call_start_ns)


def capturable(trace: Trace, program: Program) -> NDArray[np.bool_]:
    """Calls that a graph would replay: not copies between host and device, nor what follows data loading."""
    loads = loading_ns(trace, program) > 0
    outside = trace.copies.filter(pl.col("direction").is_in(("HtoD", "DtoH")))["span_id"]
    copies = np.zeros(len(program.kind), bool)
    tasks = task_table(trace, program)
    copies[tasks.filter(pl.col("id").is_in(outside.implode()))["call"].to_numpy()] = True
    captured: NDArray[np.bool_] = ~(loads | copies | np.isin(program.kind, (SYNC, BLOCKING_COPY)))
    return captured


def obstacle(trace: Trace, program: Program) -> str | None:
    """Why the steps cannot be captured as they are; None where nothing stands against it."""
    names = trace.spans["name"].cast(pl.String).gather(program.call_span)
    if names.str.contains(_GRAPH).any():
        return "it has one already"
    if _waits_inside(trace, program):
        return "the host waits for the device within the step"
    later = names.filter(pl.Series(program.step > 0))
    if (later.str.contains(runtime_calls.ALLOCATE) & ~later.str.contains(runtime_calls.ASYNC)).any():
        return "memory is allocated from the driver within the step"
    if task_table(trace, program)["name"].cast(pl.String).str.contains(_COMMUNICATES).any():
        return "it communicates with other ranks"
    if len(trace.steps) < 2:
        return "fewer than two steps are marked, so it is not known that they repeat"
    return None if _repeats(trace, program) else "the steps do not launch the same kernels in the same shapes"


def edit(program: Program, captured: NDArray[np.bool_]) -> Edit:
    """One graph for each run of captured calls that starts anything, within one step."""
    pure = program.gap_ns > dense_ns(program)
    opens = captured & pure
    opens[1:] |= captured[1:] & ~captured[:-1]
    first = program.step_calls[program.step_calls < len(opens)]
    opens[first] |= captured[first]
    piece = np.cumsum(opens)
    starts = np.diff(program.task_from) > 0
    working = np.unique(piece[captured & starts])
    heads = {int(call): _GRAPH_LAUNCH_NS for call in np.flatnonzero(opens) if piece[call] in working}
    return Edit(captured_calls=np.flatnonzero(captured), added_host_ns=heads)


def _waits_inside(trace: Trace, program: Program) -> bool:
    """Whether the host waits for the device between two launches of one step; at its ends a wait is outside the graph."""
    launches = np.flatnonzero(capturable(trace, program) & (np.diff(program.task_from) > 0))
    for call in waiting_calls(trace, program):
        mine = launches[program.step[launches] == program.step[call]]
        if len(mine) and mine[0] < call < mine[-1]:
            return True
    return False


def waiting_calls(trace: Trace, program: Program) -> NDArray[np.int64]:
    """Calls that wait for the device, other than for a copy to it or to free memory."""
    to_device = trace.copies.filter(pl.col("direction") == "HtoD")["span_id"]
    copied = task_table(trace, program).filter(pl.col("id").is_in(to_device.implode()))
    waits = np.isin(program.kind, (SYNC, BLOCKING_COPY))
    waits[copied["call"].to_numpy()] = False
    ops = trace.spans["op_id"].gather(program.call_span)
    after_copy = ops.is_in(copied["op_id"].drop_nulls().implode()).fill_null(value=False)
    frees = trace.spans["name"].cast(pl.String).gather(program.call_span).str.contains(_FREES)
    return np.flatnonzero(waits & ~(after_copy | frees).to_numpy())


def _repeats(trace: Trace, program: Program) -> bool:
    """Whether every step launches the same kernels with the same grids."""
    grids = trace.kernels.select(pl.col("span_id").alias("id"), "grid_x", "grid_y", "grid_z")
    tasks = task_table(trace, program).join(grids, on="id", how="left", maintain_order="left")
    columns = tasks.select("name", "kind", "grid_x", "grid_y", "grid_z", "step")
    parts = columns.partition_by("step", maintain_order=True, include_key=False)
    return len(parts) == len(trace.steps) and all(part.equals(parts[0]) for part in parts[1:])
