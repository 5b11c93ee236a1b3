"""Steps that follow the host's launching: what of it a CUDA graph could replay, and the loops in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device.phases import OPTIMIZER, PHASES
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns import repeated_passes
from foretrace.diagnose.patterns.repeated_passes import Repeat
from foretrace.predict import graph_capture
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.costs import graph
from foretrace.predict.costs.dispatch import LONGEST_CALL_NS
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Calls
from foretrace.predict.program import BLOCKING_COPY, LAUNCH
from foretrace.predict.waits import waiting_calls
from foretrace.sourced import JUDGEMENT, Count, Share

BUSY_BELOW = Share(0.85, "the step, that the GPU works: above it a faster host gains little", JUDGEMENT)
LAUNCHING_SHARE = Share(0.25, "the step, spent on operators and launches", JUDGEMENT)
LEAST_PASSES = Count(4, "passes of a loop", JUDGEMENT)
LOOP_SHARE = Share(0.25, "the launching, that a loop takes", JUDGEMENT)


@dataclass(frozen=True)
class Launching:
    """The launching of a step, per step where it is a time or a count."""

    capturable: NDArray[np.bool_]  # for each call, whether a graph would replay it
    loops: list[Repeat]
    obstacle: str | None  # why no graph can be made
    launching_ns: float
    busy_ns: float  # of the GPU
    launches: float

    @property
    def calls(self) -> Calls:
        """The calls that a graph would replay."""
        return Calls(np.flatnonzero(self.capturable))


def slow_launching(case: Case, *, busy_below: float, least_share: float) -> Launching | None:
    """The launching of steps that follow it, where it takes at least a share of them; None where the host keeps up."""
    return case.keep(
        f"slow launching {busy_below} {least_share}", lambda: _slow_launching(case, busy_below, least_share)
    )


def _slow_launching(case: Case, busy_below: float, least_share: float) -> Launching | None:
    program = case.program
    busy_ns = int(program.task_dur_ns.sum()) / case.step_count
    capturable = graph_capture.capturable(case.trace, program)
    host_ns = launching_ns(case)
    per_step_ns = int(host_ns[capturable].sum()) / case.step_count
    if (
        not case.calibration.host_bound
        or busy_ns / case.step_ns >= busy_below
        or per_step_ns / case.step_ns < least_share
    ):
        return None
    launches = int(np.isin(program.kind, (LAUNCH, BLOCKING_COPY)).sum()) / case.step_count
    obstacle = graph_capture.between_waits(case.trace, program, capturable)
    loops = _loops(case, host_ns * capturable)
    return Launching(capturable, loops, obstacle, per_step_ns, busy_ns, launches)


def launching_ns(case: Case) -> NDArray[np.int64]:
    """For each call, what the host needs for its operators and for launching."""
    return dense_ns(case.program) + np.minimum(case.program.base_ns, LONGEST_CALL_NS)


def _loops(case: Case, host_ns: NDArray[np.int64]) -> list[Repeat]:
    """Loops, without waits and outside of the backward pass, that take a good part of the launching."""
    waiting = waiting_calls(case.trace, case.program)
    total_ns = max(float(host_ns.sum()), 1.0)

    def chosen(loop: Repeat) -> bool:
        calls = loop.calls()
        return (
            float(host_ns[calls].sum()) * case.step_count / total_ns >= LOOP_SHARE
            and not np.isin(waiting, calls).any()
            and not repeated_passes.of_backward(case, loop)
            and not repeated_passes.updates(case, loop)
        )

    return repeated_passes.apart(
        tuple(filter(chosen, repeated_passes.find(case, least=LEAST_PASSES, shapes=True)))
    )


def sentence(launching: Launching) -> str:
    """What launching takes, what keeps it from being a graph, and what is called again and again."""
    says = (
        f"The host needs {launching.launching_ns / 1e6:.3g} ms a step for {launching.launches:.0f} launches whose work "
        f"takes the GPU {launching.busy_ns / 1e6:.3g} ms."
    )
    if launching.obstacle:
        says += f" As it is, no CUDA graph can be made of it: {launching.obstacle}."
    if launching.loops:
        loop = launching.loops[0]
        count = len(loop.ops(0, 1))
        operators = "one operator" if count == 1 else f"the same {count} operators"
        says += f" It calls {operators} {loop.passes} times a step."
    return says


def evidence(case: Case, launching: Launching) -> dict[str, Any]:
    """The launching in numbers."""
    return {
        "launches_per_step_count": launching.launches,
        "launching_ns": round(launching.launching_ns),
        "busy_ns": round(launching.busy_ns),
        "busy_pct": 100 * (launching.busy_ns / case.step_ns),
        "host_per_launch_ns": round(launching.launching_ns / max(launching.launches, 1)),
        "spans": case.device_work().spans(),
    }


@dataclass(frozen=True)
class Graphs:
    """Launches replayed as CUDA graphs: as expected, and at worst where that differs."""

    edit: Edit
    slower: tuple[Edit, ...]


def graphs(case: Case, captured: NDArray[np.bool_], *, at_worst_ns: int) -> Graphs:
    """A graph for each run of captured launches; at worst each takes the host so long, where there are several a step."""
    longer = _capturable_updates_ns(case, captured)
    edit = graph_capture.edit(case.program, captured)
    edit = replace(edit, durations_ns=longer, modelled=frozenset(longer))
    if len(edit.added_host_ns) <= case.step_count:
        return Graphs(edit, ())
    slower = replace(edit, added_host_ns=dict.fromkeys(edit.added_host_ns, at_worst_ns))
    return Graphs(edit, (slower,))


def _capturable_updates_ns(case: Case, captured: NDArray[np.bool_]) -> dict[int, int]:
    """How long updates of single parameters by Adam take, by task, where it counts its steps on the device."""
    tasks = case.tasks_with("phase")
    updates = tasks.filter(
        (case.op_names(tasks["op_id"]) == "aten::addcdiv_") & pl.Series(captured[tasks["call"].to_numpy()]),
        pl.col("phase") == PHASES.index(OPTIMIZER),
    )
    return {
        task: dur_ns + graph.CAPTURABLE_ADAM_NS
        for task, dur_ns in updates.select("task", "dur_ns").iter_rows()
    }
