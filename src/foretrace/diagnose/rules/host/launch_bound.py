"""The host cannot launch work as fast as the GPU finishes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device.phases import BACKWARD, OPTIMIZER, PHASES
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import expert_loops, repeated_passes
from foretrace.diagnose.rule import Healthy, rule
from foretrace.predict import graph_capture
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit, apply, merge
from foretrace.predict.program import BLOCKING_COPY, LAUNCH
from foretrace.predict.steady import step_ns

_BUSY_BELOW = 0.85  # of the step; above it there is little to gain from a faster host
_LAUNCHING_SHARE = 0.25  # of the step that is spent on operators and launches
_LEAST_PASSES = 4  # of a loop
_LOOP_SHARE = 0.25  # of the launching that a loop takes, as of the step
_SLOWEST_GRAPH_NS = 50_000  # of a call through torch.compile's guards
# Adam that counts its steps on the device, as a graph needs it (capturable=True), launches twelve small kernels more for
# each parameter that it updates by itself: 25 to 28 µs on an H200 (imitation_promise, encoder_promise of benchmarks/pairs).
_CAPTURABLE_ADAM_NS = 26_000
_LONGEST_CALL_NS = 40_000  # a call that takes longer loads a module, allocates or waits, rather than launches


def _no_issue(values: Mapping[str, Any]) -> str | None:
    count, deepest = values.get("launches_per_step_count"), values.get("queue_max_count")
    if count is None or deepest is None:
        return None
    return f"{count:,.0f} launches a step, queue up to {deepest:,} deep"


@rule(
    title="Launching takes longer than the work",
    topic="Launch overhead",
    see="launches",
    headline=lambda e: f"The GPU is busy {e['busy_pct']:.0f} % of a step: launching cannot keep up",
    healthy=Healthy("launches", _no_issue),
)
def launch_bound(case: Case) -> Iterator[Finding]:
    """The GPU waits because the host needs longer to launch each kernel than the GPU needs to run it.

    What it does
    Looks for steps that follow the host, in which the GPU works for less than 85 % of the time, and operators and
    launches take at least a quarter of the step. If nothing allocates from the driver or communicates, and there is no
    graph already, each run of launches is replayed as one CUDA graph: 15 µs of host for the whole, 0.15 µs between
    kernels; an Adam that updates one parameter after the other takes the GPU 26 µs more for each, to count its steps there.
    Copies from and to the host, data loading and long stretches without events stay as they are. So do waits
    within the step, if on average at least 40 launches lie between them and none is for the size of a result; the range
    includes that each graph takes the host 50 µs. Nothing is promised then, nor where the steps do not launch the same
    kernels in the same shapes. A loop of at least four passes, a quarter of the launching, whose results are put together
    behind it (torch.stack, torch.cat) or written each to its place, is replayed as one pass on all pieces, if nothing in a
    pass has the shape of what the one before made; at worst it is a graph, and nothing is promised where there can be none.
    So is a loop over experts whose weights are slices of one tensor: each picks as many rows and puts them back.
    A loop without products that prepares a training step is captured by itself, and at best the whole step.

    Why it matters
    Every operator costs the host 5 to 20 µs, whatever its size. A kernel shorter than that leaves the GPU idle.

    Use instead
    torch.compile(model, mode="reduce-overhead"), or a CUDA graph of the step, or a larger batch. Instead of a loop over
    frames, samples or heads, one call on all of them.
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    program = case.program
    steps = case.step_count
    busy_ns = int(program.task_dur_ns.sum()) / steps
    captured = graph_capture.capturable(case.trace, program)
    costs = dense_ns(program) + np.minimum(program.base_ns, _LONGEST_CALL_NS)
    launching_ns = int(costs[captured].sum()) / steps
    busy, launching = busy_ns / case.step_ns, launching_ns / case.step_ns
    if not case.calibration.host_bound or busy >= _BUSY_BELOW or launching < _LAUNCHING_SHARE:
        return
    launches = int((np.isin(program.kind, (LAUNCH, BLOCKING_COPY))).sum()) / steps
    obstacle = graph_capture.between_waits(case.trace, program, captured)
    loops = _loops(case, costs * captured)
    yield Finding(
        says=f"The host needs {launching_ns / 1e6:.3g} ms a step for {launches:.0f} launches whose work takes the GPU "
        f"{busy_ns / 1e6:.3g} ms."
        + (f" As it is, no CUDA graph can be made of it: {obstacle}." if obstacle else "")
        + _told(loops),
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
        change=_change(case, captured, loops) if obstacle is None else _at_once(case, loops),
        unless="shapes or control flow change between steps that were not recorded, or the optimizer cannot be captured.",
    )


def _change(case: Case, captured: NDArray[np.bool_], loops: list[repeated_passes.Repeat]) -> Change:
    """A graph for each run of launches; at worst each is called through guards and copies its inputs.

    A loop over pieces that do not follow from each other is done at once, and at worst as a graph. One that prepares a
    training step is first to be captured: the range reaches to a graph of all.
    """
    edit = _graphs(case, captured)
    slower = dict.fromkeys(edit.added_host_ns, _SLOWEST_GRAPH_NS)
    others = (replace(edit, added_host_ns=slower),) if len(edit.added_host_ns) > case.step_count else ()
    doubt = graph_capture.doubt(case.trace, case.program)
    at_once = _at_once(case, loops)
    if at_once and step_ns(apply(case.program, at_once.edit)) < step_ns(apply(case.program, edit)):
        says = f"{at_once.says}, at worst its launches replayed as CUDA graphs"
        return replace(at_once, says=says, others=(*at_once.others, edit, *others), doubt=doubt)
    alone = [each for each in loops if _before_training(case, each)]
    if alone:
        mine = np.zeros(len(captured), bool)
        mine[np.concatenate([each.calls() for each in alone])] = True
        some = _graphs(case, captured & mine)
        return Change(
            "a loop replayed as a CUDA graph, at best all launches", some, others=(edit, *others), doubt=doubt
        )
    return Change("launches replayed as CUDA graphs", edit, others=others, doubt=doubt)


def _graphs(case: Case, captured: NDArray[np.bool_]) -> Edit:
    """A graph for each run of captured launches, with what an optimizer must do to be in one."""
    tasks = case.tasks.join(case.roles.select("id", "phase"), on="id", how="left", maintain_order="left")
    op = case.trace.spans["name"].gather(tasks["op_id"]).cast(pl.String)
    mine = tasks.filter(
        (op == "aten::addcdiv_") & pl.Series(captured[tasks["call"].to_numpy()]),
        pl.col("phase") == PHASES.index(OPTIMIZER),
    )
    longer = {task: dur + _CAPTURABLE_ADAM_NS for task, dur in mine.select("task", "dur_ns").iter_rows()}
    return replace(
        graph_capture.edit(case.program, captured), durations_ns=longer, modelled=frozenset(longer)
    )


def _at_once(case: Case, loops: list[repeated_passes.Repeat]) -> Change | None:
    """Loops done for all pieces at once; where no graph can be made, also such as may not go on from pass to pass."""
    differ = graph_capture.differ(case.trace, case.program)
    batched = _experts(case)
    made = (
        (each, repeated_passes.collected(case, each))
        for each in loops
        if repeated_passes.outside(each, batched)
    )
    apart = [
        each
        for each, shape in made
        if shape is not None and not repeated_passes.goes_on(case, each, shape, surely=differ)
    ]
    if not apart and not batched:
        return None
    both = [repeated_passes.at_once(case, apart)] if apart else []
    both += [repeated_passes.at_once(case, batched, own_weights=True)] if batched else []
    return Change(
        "the passes of a loop done at once",
        merge(each.edit for each in both),
        others=tuple(merge(ends) for ends in zip(*(each.others for each in both), strict=True)),
        upside=repeated_passes.UPSIDE,
        doubt="that no pass needs the one before is told by shapes alone",
    )


def _experts(case: Case) -> list[repeated_passes.Repeat]:
    """Loops over experts, all with as many rows, that do not wait and take a good part of the launching together."""
    waiting = graph_capture.waiting_calls(case.trace, case.program)
    found = expert_loops.find(
        case, least=_LEAST_PASSES, chosen=lambda each: not np.isin(waiting, each.calls()).any()
    )
    calls = [each.calls() for each in found.loops]
    costs = dense_ns(case.program) + np.minimum(case.program.base_ns, _LONGEST_CALL_NS)
    share = float(costs[np.concatenate(calls)].sum()) / float(costs.sum()) if calls else 0.0
    return list(found.loops) if found.alike and share >= _LOOP_SHARE else []


def _loops(case: Case, costs: NDArray[np.int64]) -> list[repeated_passes.Repeat]:
    """Loops, without waits and outside of the backward pass, that take a good part of the launching."""
    waiting = graph_capture.waiting_calls(case.trace, case.program)
    found = []
    for each in repeated_passes.find(case, least=_LEAST_PASSES, shapes=True):
        calls = each.calls()
        share = float(costs[calls].sum()) * case.step_count / max(float(costs.sum()), 1.0)
        if share < _LOOP_SHARE or np.isin(waiting, calls).any() or repeated_passes.of_backward(case, each):
            continue
        if not repeated_passes.updates(case, each):
            found.append(each)
    return repeated_passes.apart(tuple(found))


def _told(loops: list[repeated_passes.Repeat]) -> str:
    if not loops:
        return ""
    count = len(loops[0].ops(0, 1))
    return f" It calls {'one operator' if count == 1 else f'the same {count} operators'} {loops[0].passes} times a step."


def _before_training(case: Case, found: repeated_passes.Repeat) -> bool:
    """Whether a loop only prepares a training step: no gradient passes it, it multiplies nothing, and a backward follows."""
    calls = found.calls()
    backward = case.tasks.join(case.roles.select("id", "phase"), on="id").filter(
        pl.col("phase") == PHASES.index(BACKWARD), pl.col("step") == int(case.program.step[calls[0]])
    )["call"]
    if not len(backward) or int(backward.min()) < int(calls[-1]):  # type: ignore[arg-type]
        return False
    return not repeated_passes.differentiated(case, found) and not repeated_passes.products(case, found)
