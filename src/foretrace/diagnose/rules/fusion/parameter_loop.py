"""A loop over parameters launches every operator for every tensor, where torch._foreach_* takes all tensors at once."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import parameter_loops
from foretrace.diagnose.patterns.parameter_loops import (  # noqa: F401  # named on the page
    IN_PLACE,
    LEAST_LAUNCHES,
    LEAST_SHARE,
    LEAST_TENSORS,
    MOSTLY,
    WHY,
)
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs import foreach, streaming  # noqa: F401  # named on the page


@needs(KERNELS)
@rule("A loop launches operators parameter by parameter", "Parameter loops", see="roles")
def parameter_loop(case: Case) -> Iterator[Finding]:
    """A loop over parameters with a launch for every operation on every one: updates, averages, clipping.

    Looks in the steps of optimizers that have no fused form, and anywhere else outside of the backward pass, for runs of
    launches of pointwise operators, copies and reductions. In at least {MOSTLY} of a run, each operator comes for at least
    {LEAST_TENSORS} tensors, some with more dimensions than others, as weights and biases have. After the backward pass,
    tensors may be alike if at least {IN_PLACE} of the operators change them in place. Such loops are updates by hand,
    averages of weights, and clipped gradients.

    Speaks where they launch at least {LEAST_LAUNCHES} kernels a step and take at least {LEAST_SHARE} of the step, on the
    host or on the GPU. Penalties on the parameters and gradients set to zero have rules of their own (penalty-loop,
    zeroed-gradients).

    Slow
        for average, weight in zip(averages, weights):
            average.lerp_(weight, 0.01)

    Fast
        torch._foreach_lerp_(averages, weights, 0.01)

    Why
    A parameter is small, and each operation on it is a launch: host and GPU do little but launch.

    How the worth is predicted
    The same operators run over all tensors at once: a launch for every {foreach.TENSORS_PER_LAUNCH} tensors, which moves
    what the operators move at {streaming.MULTI_TENSOR_SHARE} of the bandwidth. On the host each takes
    {foreach.HOST_NS_PER_TENSOR} for every tensor and {foreach.HOST_NS_PER_LAUNCH} for every launch.

    When not
    What is done to one tensor depends on what was done to another.
    """
    loop = parameter_loops.find(case)
    if (
        loop is None
        or loop.launches < LEAST_LAUNCHES
        or parameter_loops.backward_of_penalty(loop) is not None
    ):
        return
    if too_little(case, f"a loop over about {loop.tensors} tensors", loop.step_share, LEAST_SHARE):
        return
    yield Finding(
        says=f"Loops over about {loop.tensors} tensors launch {loop.launches} operators one by one a step: {loop.takes()}.",
        why=WHY,
        fix=Fix(
            "Apply each operator to all tensors at once, or use one of torch's optimizers, fused or with foreach=True.",
            parameter_loops.foreach_code(loop),
        ),
        evidence=loop.evidence(),
        where=loop.work.places(),
        change=Change("the update over all tensors at once", parameter_loops.foreach_edit(loop)),
        unless="what is done to one tensor depends on what was done to another.",
    )
