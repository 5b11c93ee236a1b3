"""A loop within a step does one piece of the data after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import expert_loops, independent_passes, repeated_passes, slow_launching
from foretrace.diagnose.patterns.repeated_passes import UPSIDE, Repeat
from foretrace.diagnose.patterns.slow_launching import (
    BUSY_BELOW,
    LAUNCHING_SHARE,
    LEAST_PASSES,
    LOOP_SHARE,
    Launching,
)
from foretrace.diagnose.rule import KERNELS, headline, needs, rule
from foretrace.predict import graph_capture
from foretrace.predict.changes import Change
from foretrace.predict.costs import graph
from foretrace.predict.edits import apply, merge
from foretrace.predict.steady import step_ns
from foretrace.predict.waits import waiting_calls

_BY_SHAPES = "only the shapes suggest that no pass needs the one before it"


@needs(KERNELS)
@headline("The GPU is busy {busy_pct:.0f} % of a step: a loop launches one piece after the other")
@rule("A loop does one piece after the other", "Serial loops", see="launches")
def serial_loop(case: Case) -> Iterator[Finding]:
    """A loop over frames, samples, heads or experts launches small kernels for one piece after the other.

    Finds steps that follow the host, as launch-bound does: the GPU works for less than {BUSY_BELOW} of the
    time, and operators and launches take at least {LAUNCHING_SHARE} of the step. In them, it looks for loops
    of at least {LEAST_PASSES} passes that take {LOOP_SHARE} of the launching and whose results are put together after the
    loop (torch.stack, torch.cat) or each written to its place, if nothing in a pass has the shape of what the one before
    made; and for loops over experts whose weights are slices of one tensor, in which all pick the same number of rows and
    put them back. It speaks where that is worth more than CUDA graphs of the launches, or where no graph can be made.

    Slow
        outputs = []
        for frame in frames.unbind(1):
            outputs.append(head(frame))
        y = torch.stack(outputs, 1)

    Fast
        y = head(frames)

    Why
    Every operator costs the host 5 to 20 µs, whatever its size, and a loop pays for each of its operators in each pass.
    One call on all pieces costs as much as one pass.

    How the worth is predicted
    One pass of the loop is replayed, on all pieces. At worst the launches are CUDA graphs instead, where graphs can be
    made; where not, nothing is promised, for only the shapes suggest that no pass needs the one before it. One pass may be
    quicker than the one that was recorded: the range reaches {UPSIDE} times further up.

    When not
    A pass needs what the one before it made.
    """
    launching = slow_launching.slow_launching(case, busy_below=BUSY_BELOW, least_share=LAUNCHING_SHARE)
    change = _change(case, launching) if launching is not None else None
    if launching is None or change is None:
        return
    yield Finding(
        says=slow_launching.sentence(launching),
        why="The GPU finishes each kernel before the next one is launched.",
        fix=Fix(
            "Do all pieces in one call.",
            "y = head(frames)   # not: torch.stack([head(frame) for frame in frames.unbind(1)], 1)",
        ),
        evidence=slow_launching.evidence(case, launching),
        where=case.device_work().places(),
        change=change,
        unless="a pass needs what the one before it made, or shapes or control flow change between steps that were not recorded.",
        claims=launching.calls,
    )


def _change(case: Case, launching: Launching) -> Change | None:
    """The loops done at once, at worst as graphs; None where graphs are better, or there is no such loop."""
    at_once = _at_once(case, launching.loops)
    if at_once is None or launching.obstacle is not None:
        return at_once
    graphs = slow_launching.graphs(case, launching.capturable, at_worst_ns=graph.GUARDED_LAUNCH_NS)
    if step_ns(apply(case.program, at_once.edit)) >= step_ns(apply(case.program, graphs.edit)):
        return None
    return replace(
        at_once,
        says=f"{at_once.says}, at worst its launches replayed as CUDA graphs",
        others=(*at_once.others, graphs.edit, *graphs.slower),
        doubt=graph_capture.doubt(case.trace, case.program),
    )


def _at_once(case: Case, loops: list[Repeat]) -> Change | None:
    """Loops done for all pieces at once; the doubt is that passes may need each other."""
    batched = _experts(case)
    pieces = [loop for loop in loops if repeated_passes.outside(loop, batched) and _independent(case, loop)]
    both = [repeated_passes.at_once(case, pieces)] if pieces else []
    both += [repeated_passes.at_once(case, batched, own_weights=True)] if batched else []
    if not both:
        return None
    return Change(
        "the passes of a loop done at once",
        merge(part.edit for part in both),
        others=tuple(merge(ends) for ends in zip(*(part.others for part in both), strict=True)),
        upside=UPSIDE,
        doubt=_BY_SHAPES,
    )


def _independent(case: Case, loop: Repeat) -> bool:
    """Whether what the passes make is collected, and none needs the one before."""
    made = independent_passes.collected(case, loop)
    surely = graph_capture.differ(case.trace, case.program)
    return made is not None and not independent_passes.goes_on(case, loop, made, surely=surely)


def _experts(case: Case) -> list[Repeat]:
    """Loops over experts, all with the same number of rows, that do not wait and take a good part of the launching together."""
    waiting = waiting_calls(case.trace, case.program)
    experts = expert_loops.find(
        case, least=LEAST_PASSES, chosen=lambda loop: not np.isin(waiting, loop.calls()).any()
    )
    calls = [loop.calls() for loop in experts.loops]
    host_ns = slow_launching.launching_ns(case)
    share = float(host_ns[np.concatenate(calls)].sum()) / float(host_ns.sum()) if calls else 0.0
    return list(experts.loops) if experts.alike and share >= LOOP_SHARE else []
