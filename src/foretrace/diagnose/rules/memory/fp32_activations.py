"""Activations are kept in fp32."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.freed import Freed
from foretrace.diagnose.patterns import freed_memory, half_activations
from foretrace.diagnose.patterns.freed_memory import BLOCKS, LEAST_FREED, LEAST_HELD
from foretrace.diagnose.rule import SHAPES, headline, needs, rule
from foretrace.units import format_value


@needs(BLOCKS, SHAPES)
@headline("Activations in bf16 would free {freed_pct:.0f} % of the peak")
@rule("Activations are kept in fp32", "Activations in fp32", see="memory")
def fp32_activations(case: Case) -> Iterator[Finding]:
    """Activations in fp32 that autocast would keep in bf16, where they are a good part of the peak.

    Finds programs whose products take fp32, where autocast would lower the peak by at least {LEAST_FREED}. Where the peak is
    less than {LEAST_HELD} of the device's memory it is only mentioned.

    Slow
        loss = model(x)

    Fast
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x)

    Why
    What products and the operators behind them compute in bf16 takes half the bytes, and so do the gradients of it.

    How the worth is predicted
    The curve of allocated memory is replayed with the results of products, and of what takes them, at half their size.
    Sums with a block's input, losses and what else autocast computes in fp32 stay as they are; a softmax is kept twice
    ({half_activations.SOFTMAX} times its bytes); bf16 copies of all parameters are added. At the ends of the range norms and
    gradients stay in fp32, or everything is in bf16 and no copies are kept. The time is predicted by `no-tensor-cores`.

    When not
    Results in bf16 are not exact enough.
    """
    made = half_activations.narrowed(case.whole)
    if made is None:
        return
    change, *others = made
    freed = Freed(freed_memory.memory_of(case), change, tuple(others))
    what = f"activations in bf16 would free {format_value('_bytes', round(freed.size_bytes.point))}"
    if freed_memory.not_worth(case, what, freed, least=LEAST_FREED, held=LEAST_HELD):
        return
    yield Finding(
        says=f"Activations are kept in fp32: under bf16 autocast the peak falls from "
        f"{format_value('_bytes', freed.memory.peak_bytes)} to {format_value('_bytes', freed.after_bytes)}.",
        why="What products and the operators behind them compute in bf16 takes half the bytes.",
        fix=Fix(
            "Compute in bf16 under autocast: parameters stay in fp32.",
            'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = model(x)\nloss.backward()  # not under autocast',
        ),
        evidence=freed_memory.evidence(freed, activations_count=len(change.factors)),
        unless="results in bf16 are not exact enough.",
        severity=freed_memory.severity(case),
        freed=freed,
    )
