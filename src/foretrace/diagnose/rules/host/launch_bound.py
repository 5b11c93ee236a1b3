"""The host cannot launch work as fast as the GPU finishes it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device.phases import BACKWARD, PHASES
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import repeated_passes, slow_launching
from foretrace.diagnose.patterns.repeated_passes import Repeat
from foretrace.diagnose.patterns.slow_launching import BUSY_BELOW, LAUNCHING_SHARE, Launching
from foretrace.diagnose.rule import KERNELS, headline, healthy, needs, rule
from foretrace.diagnose.seen import seen
from foretrace.predict import graph_capture
from foretrace.predict.changes import Change
from foretrace.predict.costs import graph

_COMMUNICATING = """
# with collectives: every rank captures the same ones, NCCL 2.9.6 or later, DDP made and warmed up on a side stream, and
# TORCH_NCCL_ASYNC_ERROR_HANDLING=0 while it is captured"""
_CODE = """\
g = torch.cuda.CUDAGraph()               # after a few steps on a side stream
with torch.cuda.graph(g): step(x, y)     # inputs and results stay where they are
x.copy_(new_x); y.copy_(new_y); g.replay()
# or the model alone: model = torch.cuda.make_graphed_callables(model, (x,))
# check: same shapes and control flow in every step, no .item() inside, optimizer with capturable=True"""


@needs(KERNELS)
@headline("The GPU is busy {busy_pct:.0f} % of a step: launching cannot keep up")
@healthy("launches", "{launches_per_step_count:,.0f} launches a step, queue up to {queue_max_count:,} deep")
@rule("Launching takes longer than the work", "Launch overhead", see="launches")
def launch_bound(case: Case) -> Iterator[Finding]:
    """The GPU waits because the host needs longer to launch each kernel than the GPU needs to run it.

    Finds steps that follow the host, in which the GPU works for less than {BUSY_BELOW} of the time, and
    operators and launches take at least {LAUNCHING_SHARE} of the step. Where doing the passes of a loop at
    once is worth more than a CUDA graph, serial-loop reports it instead.

    Slow
        for batch in batches:
            y = model(batch)

    Fast
        model = torch.cuda.make_graphed_callables(model, (sample,))  # of a batch's shape and type
        for batch in batches:
            y = model(batch)

    Why
    Every operator costs the host 5 to 20 µs, whatever its size. A kernel shorter than that leaves the GPU idle. A CUDA
    graph launches a whole step at once; a larger batch puts more work into each launch. The compiler makes fewer operators
    of the step, and graphs of those on request: that is unfused-elementwise, with a prediction of its own.

    How the worth is predicted
    If nothing allocates from the driver, and there is no graph already, each run of launches is replayed as one CUDA graph:
    {graph.LAUNCH_NS} of the host for the whole, {graph.GAP_NS} between kernels. An Adam that updates one parameter after the
    other takes the GPU {graph.CAPTURABLE_ADAM_NS} more for each, to count its steps there. Copies from and to the host, data
    loading and long stretches without events stay as they are.

    Collectives of NCCL, RCCL and symmetric memory are captured with the rest, and take as long as recorded; nothing is promised
    then, because one rank's recording does not tell how long they will wait for the others. Collectives on the host (gloo),
    of Python objects, or whose split sizes the host reads cannot be captured.

    Waits within the step stay too, if on average at least {graph_capture.LEAST_PER_GRAPH} launches lie between them and none
    is for the size of a result; the range then includes that each graph takes the host {graph.GUARDED_LAUNCH_NS}. Nothing is
    promised in that case, nor where the steps do not launch the same kernels in the same shapes.

    A loop without products that prepares a training step is captured by itself, and at best the whole step.

    When not
    Shapes or control flow change between steps that were not recorded, or the optimizer cannot be captured.
    """
    launching = slow_launching.slow_launching(case, busy_below=BUSY_BELOW, least_share=LAUNCHING_SHARE)
    if launching is None:
        _keeps_up(case)
        return
    if not len(case.unclaimed(launching.calls)):
        return
    yield Finding(
        says=slow_launching.sentence(launching),
        why="The GPU finishes each kernel before the next one is launched.",
        fix=Fix(
            "Launch the step as one CUDA graph, or put more work into each launch. torch.compile is the other way: "
            "see unfused-elementwise.",
            _CODE + (_COMMUNICATING if graph_capture.communicates(case.trace, case.program) else ""),
        ),
        evidence=slow_launching.evidence(case, launching),
        where=case.device_work().places(),
        change=_change(case, launching) if launching.obstacle is None else None,
        unless="shapes or control flow change between steps that were not recorded, or the optimizer cannot be captured.",
        claims=launching.calls,
    )


def _change(case: Case, launching: Launching) -> Change:
    """A graph for each run of launches; of a loop that prepares a training step, and at best of all."""
    whole = slow_launching.graphs(case, launching.capturable, at_worst_ns=graph.GUARDED_LAUNCH_NS)
    doubt = graph_capture.doubt(case.trace, case.program)
    preparing = [loop.calls() for loop in launching.loops if _before_training(case, loop)]
    if not preparing:
        return Change("launches replayed as CUDA graphs", whole.edit, others=whole.slower, doubt=doubt)
    in_loop = np.zeros(len(launching.capturable), bool)
    in_loop[np.concatenate(preparing)] = True
    return Change(
        "a loop replayed as a CUDA graph, at best all launches",
        slow_launching.graphs(case, launching.capturable & in_loop, at_worst_ns=graph.GUARDED_LAUNCH_NS).edit,
        others=(whole.edit, *whole.slower),
        doubt=doubt,
    )


def _before_training(case: Case, loop: Repeat) -> bool:
    """Whether a loop only prepares a training step: no gradient passes it, it multiplies nothing, and a backward follows."""
    calls = loop.calls()
    backward = case.tasks.join(case.roles.select("id", "phase"), on="id").filter(
        pl.col("phase") == PHASES.index(BACKWARD), pl.col("step") == int(case.program.step[calls[0]])
    )["call"]
    if not len(backward) or int(backward.min()) < int(calls[-1]):  # type: ignore[arg-type]
        return False
    return not repeated_passes.differentiated(case, loop) and not repeated_passes.products(case, loop)


def _keeps_up(case: Case) -> None:
    """Says so where launching takes a good part of the step, and the step does not follow it."""
    share = int(slow_launching.launching_ns(case).sum()) / case.step_count / case.step_ns
    busy = case.device_ns / case.step_count / case.step_ns
    if share >= LAUNCHING_SHARE and busy > share:
        seen(
            case,
            f"launching takes the host {100 * share:.0f} % of the step, but the GPU works {100 * min(busy, 1):.0f} % of it",
        )
