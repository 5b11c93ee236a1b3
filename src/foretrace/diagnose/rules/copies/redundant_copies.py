"""Tensors are copied into another order that what follows does not need."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.needless_copies import needless_copies, without_needless
from foretrace.diagnose.rule import KERNELS, healthy, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs.streaming import BANDWIDTH_SHARE  # noqa: F401  # named on the page
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.02, "GPU time", JUDGEMENT)


@needs(KERNELS)
@healthy("gpu-efficiency", "{moving_pct:.0f} % of GPU time only moves data")
@rule("Tensors are copied without need", "Needless copies", see="roles")
def redundant_copies(case: Case) -> Iterator[Finding]:
    """Copies by contiguous() or clone() that nothing after them needs.

    Finds copies on the device, without a change of type, that the program itself asks for by contiguous() or clone(),
    where what reads the copy could read the original. All of them together must take at least {LEAST_SHARE} of GPU time.

    What reads a copy is known by its shape and strides. It could not read the original where a view of the copy is no
    view of the original, where it works in place, or where it would bring its input into order itself, as norms, softmax
    and convolutions do.

    Slow
        y = x.transpose(1, 2).contiguous() @ w

    Fast
        y = x.transpose(1, 2) @ w

    Why
    A copy reads and writes the whole tensor. Matrix products, attention and pointwise operators read tensors in any
    order.

    How the worth is predicted
    The copies go, with the host time of the calls that asked for them. Where a pointwise operator would then read rows
    that are not dense, one pass over the tensor at {BANDWIDTH_SHARE} of the bandwidth is saved instead of the whole copy,
    unless a matrix product made the rows, which can write any order.

    When not
    The copy is changed in place later, or a view fails without it: then move the call to where that is.
    """
    copies = needless_copies(case, repeated=False)
    if not len(copies) or too_little(
        case, "contiguous() or clone() copies tensors", copies.gpu_share, LEAST_SHARE
    ):
        return
    yield copies.finding(
        "copies",
        says=f"{copies.per_step_count:.0f} copies a step by contiguous() or clone() take {copies.gpu_pct:.0f} % of GPU time.",
        why="They move whole tensors into an order that what follows does not need.",
        fix=Fix("Leave the call out.", "y = x.transpose(1, 2) @ w  # not x.transpose(1, 2).contiguous() @ w"),
        change=Change("copies removed", without_needless(copies)),
        unless="the copy is changed in place later, or an operator after it is slower with the original order.",
    )
