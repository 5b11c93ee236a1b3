"""A penalty on the parameters is computed and differentiated tensor by tensor, which the optimizer's weight_decay does for free."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import parameter_loops
from foretrace.diagnose.patterns.parameter_loops import (  # noqa: F401  # named on the page
    LEAST_LAUNCHES,
    LEAST_SHARE,
    LEAST_TENSORS,
    WHY,
)
from foretrace.diagnose.removal import without_time
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.numbers import joined


@needs(KERNELS)
@rule("A penalty is computed parameter by parameter", "Penalty", see="roles")
def penalty_loop(case: Case) -> Iterator[Finding]:
    """A loop over parameters that adds up a penalty, such as the sum of their squares, and differentiates it.

    Finds what parameter-loop finds (at least {LEAST_LAUNCHES} launches a step over at least {LEAST_TENSORS} tensors, and
    {LEAST_SHARE} of the step), where the loop reduces what it computes and most of its operators have a backward pass.

    Slow
        loss = loss + 0.01 * sum(p.pow(2).sum() for p in model.parameters())

    Fast
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02, fused=True)

    Why
    Every parameter costs several launches forward and as many backward. An optimizer's weight_decay does the same in the
    update, which reads the weights anyway.

    How the worth is predicted
    The loop goes, forward and backward. The range includes that it stays, over all tensors at once (torch._foreach_*).

    When not
    The penalty is another than a sum of squares, or its value is needed.
    """
    loop = parameter_loops.find(case)
    if loop is None or loop.launches < LEAST_LAUNCHES:
        return
    backward = parameter_loops.backward_of_penalty(loop)
    if backward is None:
        return
    if too_little(case, f"a penalty on about {loop.tensors} parameters", loop.step_share, LEAST_SHARE):
        return
    spans = case.trace.spans[backward["span_id"]]
    without = without_time(case, joined(case.during(spans), loop.host))
    yield Finding(
        says=f"A penalty on about {loop.tensors} parameters launches {loop.launches} operators one by one a step, and as "
        f"many again backward: {loop.takes()} forward.",
        why=WHY,
        fix=Fix(
            "Use the optimizer's weight_decay rather than a penalty in the loss; or compute it over all tensors at once.",
            "# factor * sum of squares in the loss has the gradient 2 * factor * p, which SGD and Adam add themselves:\n"
            "optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=2 * factor)   # AdamW decays otherwise\n"
            "# or, where the value is needed or the penalty is another:\n"
            "penalty = torch.stack(torch._foreach_norm(list(model.parameters()))).square().sum()",
        ),
        evidence=loop.evidence(),
        where=loop.work.places(),
        change=Change(
            "the penalty left to the optimizer's weight_decay",
            without,
            others=(parameter_loops.foreach_edit(loop),),
        ),
        unless="the penalty is another than a sum of squares, or its value is needed.",
    )
