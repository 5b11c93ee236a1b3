"""Elements are repeated in memory that what follows could repeat as it reads."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.needless_copies import needless_copies, without_needless
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs.streaming import START_NS  # noqa: F401  # named on the page
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.02, "GPU time", JUDGEMENT)


@needs(KERNELS)
@rule("Elements are repeated in memory without need", "Repeated elements", see="roles")
def repeated_elements(case: Case) -> Iterator[Finding]:
    """Copies by repeat(), repeat_interleave() or expand() that what follows could repeat as it reads.

    Finds copies on the device that repeat elements (by repeat(), repeat_interleave(), tile(), or expand() with reshape() or
    contiguous()), where what reads the copy takes elements unrepeated: pointwise operators by broadcasting, batched
    products one matrix for the whole batch, flash and cuDNN attention fewer heads of keys and values than of queries. All
    of them together must take at least {LEAST_SHARE} of GPU time.

    Slow
        y = x[:, None].repeat(1, n, 1) + z
        y = F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))

    Fast
        y = x[:, None] + z
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    Why
    The copy writes every element several times, and what follows reads all of them from memory.

    How the worth is predicted
    The copies go, with the host time of the calls that asked for them. Attention of a single query, which waits for its
    keys and values, takes that many times less, at least {START_NS}.

    When not
    The copy is changed in place later, or an operator after it is slower with the original order.
    """
    copies = needless_copies(case, repeated=True)
    if not len(copies) or too_little(
        case, "repeat() or expand() copies tensors", copies.gpu_share, LEAST_SHARE
    ):
        return
    yield copies.finding(
        "copies",
        says=f"{copies.per_step_count:.0f} copies a step by repeat() or expand() take {copies.gpu_pct:.0f} % of GPU time.",
        why="What follows can repeat the elements as it reads them.",
        fix=Fix(
            "Let what follows repeat: by broadcasting, expand() in place of repeat(), or enable_gqa=True in attention.",
            "y = x[:, None] + z  # not x[:, None].repeat(1, n, 1) + z\n"
            "y = F.scaled_dot_product_attention(q, k, v, ..., enable_gqa=True)  # not k.repeat_interleave(4, 1); "
            "other arguments as they are",
        ),
        change=Change("copies removed", without_needless(copies)),
        unless="the copy is changed in place later, or an operator after it is slower with the original order.",
    )
