"""The host cannot launch work as fast as the GPU finishes it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze import runtime_calls
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.diagnose.host_sync import waiting_calls
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.program import BLOCKING_COPY, LAUNCH, SYNC

_BUSY_BELOW = 0.85  # of the step; above it there is little to gain from a faster host
_LAUNCHING_SHARE = 0.25  # of the step that is spent on operators and launches
_LONGEST_CALL_NS = 40_000  # a call that takes longer loads a module, allocates or waits, rather than launches
_GRAPH_LAUNCH_NS = 15_000  # replaying a graph from Python, as measured on the H200's host
_GRAPH = r"^(?:cuda|hip|cu)GraphLaunch"
_COMMUNICATES = r"(?i)nccl|rccl|all_?reduce|reduce_?scatter|all_?gather"


@rule
def launch_bound(case: Case) -> Iterator[Finding]:
    """The GPU waits because the host needs longer to launch each kernel than the GPU needs to run it.

    What it does
    Looks for steps that follow the host, in which the GPU works for less than 85 % of the time, and operators and
    launches take longer than the GPU works, and at least a quarter of the step. If all steps launch the same kernels in the same shapes, nothing
    between two launches of a step waits or allocates, and there is no graph already, each run of launches is
    replayed as one CUDA graph: 15 µs of host for the whole, 0.15 µs between kernels. Copies from and to the host,
    data loading and long stretches without events stay as they are.

    Why it matters
    Every operator costs the host 5 to 20 µs, whatever its size. A kernel shorter than that leaves the GPU idle.

    Use instead
    torch.compile(model, mode="reduce-overhead"), or a CUDA graph of the step, or a larger batch.
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    program = case.program
    steps = case.step_count
    busy_ns = int(program.task_dur_ns.sum()) / steps
    captured = _capturable(case)
    costs = dense_ns(program) + np.minimum(program.base_ns, _LONGEST_CALL_NS)
    launching_ns = int(costs[captured].sum()) / steps
    busy, launching = busy_ns / case.step_ns, launching_ns / case.step_ns
    if not case.calibration.host_bound or busy >= _BUSY_BELOW or launching < max(_LAUNCHING_SHARE, busy):
        return
    launches = int((np.isin(program.kind, (LAUNCH, BLOCKING_COPY))).sum()) / steps
    obstacle = _obstacle(case)
    yield Finding(
        rule="launch-bound",
        says=f"The host needs {launching_ns / 1e6:.3g} ms a step for {launches:.0f} launches whose work takes the GPU "
        f"{busy_ns / 1e6:.3g} ms."
        + (f" As it is, no CUDA graph can be made of it: {obstacle}." if obstacle else ""),
        why="The GPU finishes each kernel before the next one is launched.",
        fix=Fix(
            "Launch the step as one CUDA graph, or put more work into each launch.",
            'model = torch.compile(model, mode="reduce-overhead")\n'
            "# or: g = torch.cuda.CUDAGraph()\n#     with torch.cuda.graph(g): y = model(x)\n#     g.replay()",
        ),
        evidence={
            "launches_per_step_count": launches,
            "launching_ns": round(launching_ns),
            "busy_ns": round(busy_ns),
            "busy_pct": 100 * busy,
            "host_per_launch_ns": round(launching_ns / max(launches, 1)),
            "spans": case.tasks["id"].head(5).to_list(),
        },
        where=case.places(case.tasks["op_id"].drop_nulls().to_list()),
        change=None if obstacle else Change("launches replayed as CUDA graphs", _edit(case, captured)),
        unless="shapes or control flow change between steps that were not recorded, or the optimizer cannot be captured.",
    )


def _capturable(case: Case) -> NDArray[np.bool_]:
    """Calls that a graph would replay: not copies between host and device, nor what follows data loading."""
    program = case.program
    names = case.trace.spans.filter(pl.col("kind").is_in(("op", "annotation")))
    loading = names.filter(pl.col("name").cast(pl.String).str.contains(runtime_calls.DATA_LOADING))
    start = (loading["start_ns"] - program.start_ns).to_numpy()
    waits = intervals.union(start, start + loading["dur_ns"].fill_null(0).to_numpy())
    begin = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1]))
    loads = intervals.covered_ns(waits, np.minimum(begin, program.call_start_ns), program.call_start_ns) > 0
    outside = case.trace.copies.filter(pl.col("direction").is_in(("HtoD", "DtoH")))["span_id"]
    copies = np.zeros(len(program.kind), bool)
    copies[case.tasks.filter(pl.col("id").is_in(outside.implode()))["call"].to_numpy()] = True
    captured: NDArray[np.bool_] = ~(loads | copies | np.isin(program.kind, (SYNC, BLOCKING_COPY)))
    return captured


def _obstacle(case: Case) -> str | None:
    """Why the steps cannot be captured as they are; None where nothing stands against it."""
    program = case.program
    names = case.trace.spans["name"].cast(pl.String).gather(program.call_span)
    if names.str.contains(_GRAPH).any():
        return "it has one already"
    if _waits_inside(case):
        return "the host waits for the device within the step"
    later = names.filter(pl.Series(program.step > 0))
    if (later.str.contains(runtime_calls.ALLOCATE) & ~later.str.contains(runtime_calls.ASYNC)).any():
        return "memory is allocated from the driver within the step"
    if case.tasks["name"].cast(pl.String).str.contains(_COMMUNICATES).any():
        return "it communicates with other ranks"
    if len(case.trace.steps) < 2:
        return "fewer than two steps are marked, so it is not known that they repeat"
    return None if _repeats(case) else "the steps do not launch the same kernels in the same shapes"


def _waits_inside(case: Case) -> bool:
    """Whether the host waits for the device between two launches of one step; at its ends a wait is outside the graph."""
    program = case.program
    launches = np.flatnonzero(_capturable(case) & (np.diff(program.task_from) > 0))
    for call in waiting_calls(case):
        mine = launches[program.step[launches] == program.step[call]]
        if len(mine) and mine[0] < call < mine[-1]:
            return True
    return False


def _repeats(case: Case) -> bool:
    """Whether every step launches the same kernels with the same grids."""
    grids = case.trace.kernels.select(pl.col("span_id").alias("id"), "grid_x", "grid_y", "grid_z")
    tasks = case.tasks.join(grids, on="id", how="left", maintain_order="left")
    step = pl.Series(case.program.step[case.task_owner])
    columns = tasks.select("name", "kind", "grid_x", "grid_y", "grid_z").with_columns(step=step)
    parts = columns.partition_by("step", maintain_order=True, include_key=False)
    return len(parts) == len(case.trace.steps) and all(part.equals(parts[0]) for part in parts[1:])


def _edit(case: Case, captured: NDArray[np.bool_]) -> Edit:
    """One graph for each run of captured calls that starts anything, within one step."""
    program = case.program
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
