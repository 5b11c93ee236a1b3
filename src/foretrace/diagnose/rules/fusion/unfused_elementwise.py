"""Operators run one by one, each with launches of its own and whole tensors to read and write: torch.compile fuses them."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Alternative, Finding, Fix
from foretrace.diagnose.patterns import compiling
from foretrace.diagnose.patterns.compiling import (  # noqa: F401  # named on the page
    COMPILED,
    FEWER,
    FILLED,
    LEAST_BETWEEN,
    LEAST_SAVED,
    Compiling,
)
from foretrace.diagnose.rule import KERNELS, SHAPES, headline, healthy, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict import graph_capture
from foretrace.predict.changes import Change
from foretrace.predict.costs import compiled, graph  # noqa: F401  # named on the page
from foretrace.predict.graph_capture import WAITS

_DEFAULT, _GRAPHS, _WHOLE = "default", "reduce-overhead", "whole-step"


@needs(KERNELS)
@headline("{fusable_pct:.0f} % of GPU time goes to operators that torch.compile would fuse")
@healthy("sequences", "{candidate_count:,} short chains, little to save")
@rule("The model is not compiled", "torch.compile", see="sequences")
def unfused_elementwise(case: Case) -> Iterator[Finding]:
    """What torch.compile would make of the step: fewer operators for the host, fewer bytes for the GPU.

    Takes each step apart as the compiler does. Products, convolutions, attention, sorts and what has no model stay. Pointwise
    operators, casts, fills, dropout, norms, softmax, reductions, losses and indexing between them are fused, as far as what
    one makes flows into the next, forward and backward. Speaks where that saves at least {LEAST_SAVED} of the step on the
    GPU, or leaves at most {FEWER} of the operators. A program whose kernels are
    compiled to more than {COMPILED} is left alone.

    Attention that transformers runs without a mask gets one, and takes as much longer as one from memory does: the library
    leaves masks out by looking at their values, and never while it is compiled.

    The optimizer stays as it is. So does a loss that is computed outside of the model, if the rich recording tells so.
    Attention has a rule of its own (unfused-attention), and so have operators that spell out one of torch's
    (spelled-out-operators).

    Slow
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)

    Fast
        model = torch.compile(model)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)

    Why
    A pointwise kernel does next to nothing with each element but move it. Ten in a row move it twenty times, and cost the
    host ten launches.

    How the worth is predicted
    Which tensor an operator reads follows from sizes, types and order; where it may come from outside as well as from
    within, {compiled.UNKNOWN_OPERAND} of it is counted. A fused kernel reads what comes from outside and
    writes what others need, at {compiled.POINTWISE_SHARE} of the bandwidth, {compiled.ROWS_SHARE} if it reduces rows,
    {compiled.COLUMNS_SHARE} if columns; or it takes what its instructions take, if that is longer. Batch and group norm
    read their input once more. It never takes longer than what it replaces. Convolutions lose their layout conversions
    where the compiler's own rules choose channels-last order.

    An operator costs the host {compiled.OPERATOR_COST} times what one does now ({compiled.CHEAPEST} to {compiled.DEAREST},
    in the range), but fewer are left. Entering a compiled graph costs {compiled.GRAPH_NS}, once forward and once backward,
    and checking guards {compiled.GUARDS} of what an operator costs now, for each that stays in the forward pass.

    Where the step follows the host, or the compiled one would, because the GPU works less than {FILLED} of it, two further levels are predicted: reduce-overhead replays the compiled part as CUDA
    graphs, at {graph.GUARDED_LAUNCH_NS} each beside the guards, and whole-step captures everything, the optimizer too, as
    one graph.

    When not
    Nothing is promised where the compiler would break its graph more often than every {LEAST_BETWEEN} operators, because
    values are read or sizes depend on values; nor for recurrent layers, nor where shapes differ from step to step, so that it
    compiles again. Breaks for other reasons cannot be seen in a recording.
    """
    SHAPES.check(case)
    found = compiling.find(case)
    if found is None:
        return
    if not found.pays:
        too_little(case, "operators that a compiler would fuse", found.saved_share, LEAST_SAVED)
        return
    default = _default(found)
    yield Finding(
        says=found.says() + (f" In its way: {found.doubt}." if found.doubt else ""),
        why="Each operator costs the host a launch, and reads and writes whole tensors that a fused kernel keeps in registers.",
        fix=Fix(
            "Compile the model." + _advice(found),
            "model = torch.compile(model)   # the first steps take a minute or more",
        ),
        label=_DEFAULT,
        general=True,
        evidence=found.evidence(),
        where=found.places(),
        change=default,
        alternatives=tuple(_levels(found, default)),
        unless="shapes change from step to step, so that it is compiled over and over, or code between operators breaks the "
        "graph: TORCH_LOGS=graph_breaks,recompiles tells.",
    )


def _advice(found: Compiling) -> str:
    if found.loss_inside is False:
        return (
            " The loss is computed outside of it: a compiled function that returns the loss fuses that too."
        )
    return ""


def _default(found: Compiling) -> Change:
    likely = found.likely
    others = (*likely.default_range(), *(less.default() for less in found.less))
    return Change(
        "compiled: operators fused, fewer of them launched",
        likely.default(),
        others=others,
        doubt=found.doubt,
    )


def _levels(found: Compiling, default: Change) -> Iterator[Alternative]:
    """CUDA graphs of the compiled steps, where the host is the limit, or becomes it."""
    case = found.case
    if not case.trace.steps:
        return
    if not case.calibration.host_bound and not found.follows_host(case.predict((default,)).after_ns.point):
        return
    capturable = graph_capture.capturable(case.trace, case.program)
    ranks = graph_capture.COLLECTIVES if graph_capture.communicates(case.trace, case.program) else ""
    if not graph_capture.preventing(case.trace, case.program):
        doubt = found.doubt or (WAITS if found.likely.split_by_waits else "") or ranks
        yield Alternative(
            _GRAPHS,
            Fix(
                "Compile the model, and replay it as CUDA graphs.",
                'model = torch.compile(model, mode="reduce-overhead")',
            ),
            Change(
                "compiled, and replayed as CUDA graphs",
                found.likely.graphs(capturable, whole=False),
                doubt=doubt,
            ),
            "inputs change their shape, or results are kept beyond the next step: a graph writes to the same memory.",
            may_lead=False,
        )
    if graph_capture.obstacle(case.trace, case.program) is None:
        yield Alternative(
            _WHOLE,
            Fix(
                "Compile the model, and capture the whole step, optimizer and all, as one CUDA graph.",
                "g = torch.cuda.CUDAGraph()   # optimizer with capturable=True; new data is copied into x and y\n"
                "with torch.cuda.graph(g): step(x, y)\nx.copy_(new_x); y.copy_(new_y); g.replay()",
            ),
            Change(
                "compiled, and every step one CUDA graph",
                found.likely.graphs(capturable, whole=True),
                doubt=found.doubt or ranks,
            ),
            "anything in the step depends on values or on the step's number.",
            may_lead=False,
        )
