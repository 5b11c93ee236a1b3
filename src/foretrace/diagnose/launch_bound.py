"""The host cannot launch work as fast as the GPU finishes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.predict import capture
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.changes import Change
from foretrace.predict.program import BLOCKING_COPY, LAUNCH

_BUSY_BELOW = 0.85  # of the step; above it there is little to gain from a faster host
_LAUNCHING_SHARE = 0.25  # of the step that is spent on operators and launches
_SLOWEST_GRAPH_NS = 50_000  # of a call through torch.compile's guards
_LONGEST_CALL_NS = 40_000  # a call that takes longer loads a module, allocates or waits, rather than launches


@rule
def launch_bound(case: Case) -> Iterator[Finding]:
    """The GPU waits because the host needs longer to launch each kernel than the GPU needs to run it.

    What it does
    Looks for steps that follow the host, in which the GPU works for less than 85 % of the time, and operators and
    launches take at least a quarter of the step. If nothing allocates from the driver or communicates, and there is no
    graph already, each run of launches is replayed as one CUDA graph: 15 µs of host for the whole, 0.15 µs between
    kernels. Copies from and to the host, data loading and long stretches without events stay as they are. So do waits
    within the step, if on average at least 40 launches lie between them and none is for the size of a result; the range
    includes that each graph takes the host 50 µs. Nothing is promised then, nor where the steps do not launch the same
    kernels in the same shapes.

    Why it matters
    Every operator costs the host 5 to 20 µs, whatever its size. A kernel shorter than that leaves the GPU idle.

    Use instead
    torch.compile(model, mode="reduce-overhead"), or a CUDA graph of the step, or a larger batch.
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    program = case.program
    steps = case.step_count
    busy_ns = int(program.task_dur_ns.sum()) / steps
    captured = capture.capturable(case.trace, program)
    costs = dense_ns(program) + np.minimum(program.base_ns, _LONGEST_CALL_NS)
    launching_ns = int(costs[captured].sum()) / steps
    busy, launching = busy_ns / case.step_ns, launching_ns / case.step_ns
    if not case.calibration.host_bound or busy >= _BUSY_BELOW or launching < _LAUNCHING_SHARE:
        return
    launches = int((np.isin(program.kind, (LAUNCH, BLOCKING_COPY))).sum()) / steps
    obstacle = capture.between_waits(case.trace, program, captured)
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
        change=None if obstacle else _change(case, captured),
        unless="shapes or control flow change between steps that were not recorded, or the optimizer cannot be captured.",
    )


def _change(case: Case, captured: NDArray[np.bool_]) -> Change:
    """A graph for each run of launches; at worst each is called through guards and copies its inputs."""
    edit = capture.edit(case.program, captured)
    slower = dict.fromkeys(edit.added_host_ns, _SLOWEST_GRAPH_NS)
    return Change(
        "launches replayed as CUDA graphs",
        edit,
        others=(replace(edit, added_host_ns=slower),) if len(edit.added_host_ns) > case.step_count else (),
        doubt=capture.doubt(case.trace, case.program),
    )
