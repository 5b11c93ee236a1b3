"""The optimizer allocates copies of the parameters in its step, and that is the peak."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analyze.concepts.memory import batch_bytes
from foretrace.analyze.concepts.memory.memory_replay import MemoryChange, factors
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.freed import Freed
from foretrace.diagnose.patterns import freed_memory, optimizer_steps
from foretrace.diagnose.patterns.freed_memory import BLOCKS, LEAST_FREED, LEAST_HELD
from foretrace.diagnose.rule import headline, needs, rule
from foretrace.units import format_value

_FUSED = r"_fused_(?:adam|sgd|adagrad)"
_HAS_FUSED = rf"^Optimizer\.step#(?:{'|'.join(optimizer_steps.HAVE_FUSED)})\."


@needs(BLOCKS)
@headline("The optimizer's temporary tensors are {freed_pct:.0f} % of the peak")
@rule("The optimizer's temporary tensors make the peak", "Optimizer's temporaries", see="memory")
def foreach_temporaries(case: Case) -> Iterator[Finding]:
    """An optimizer whose step holds tensors of the parameters' size, where that is the peak of the program.

    Finds blocks that are allocated and freed within the step of an optimizer that torch has a fused form of, where the peak
    without them is lower by at least {LEAST_FREED}. Where the peak is less than {LEAST_HELD} of the device's memory it is
    only mentioned.

    Slow
        optimizer = torch.optim.AdamW(model.parameters())

    Fast
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    Why
    The foreach form computes with lists of tensors: every intermediate result is there for all parameters at once. The fused
    kernel keeps intermediate results in registers.

    How the worth is predicted
    The curve of allocated memory is replayed without the blocks that an optimizer's step allocates and frees. The new peak
    is its highest point, wherever in the step that is then.

    When not
    The optimizer has options that its fused form lacks.
    """
    steps = batch_bytes.optimizer_steps(case.whole)
    if not steps or freed_memory.names_there(case, _FUSED) or not freed_memory.names_there(case, _HAS_FUSED):
        return
    memory = freed_memory.memory_of(case)
    temporary = (batch_bytes.category(case.whole) == "temporary").to_numpy()
    rows = np.flatnonzero(temporary & memory.within(steps))
    change = MemoryChange("a fused optimizer", factors=factors(rows, 0.0))
    freed = Freed(memory, change)
    if not len(rows) or not freed.share:
        return
    what = f"a fused optimizer would free {format_value('_bytes', round(freed.size_bytes.point))}"
    if freed_memory.not_worth(case, what, freed, least=LEAST_FREED, held=LEAST_HELD):
        return
    optimizer = optimizer_steps.name(case)
    yield Finding(
        says=f"The step of {optimizer} holds temporary tensors at the peak: without them it falls from "
        f"{format_value('_bytes', memory.peak_bytes)} to {format_value('_bytes', freed.after_bytes)}.",
        why="The foreach form keeps every intermediate result for all parameters at once.",
        fix=Fix("Use the fused optimizer.", f"torch.optim.{optimizer}(model.parameters(), fused=True)"),
        evidence=freed_memory.evidence(freed, blocks_count=len(rows)),
        unless="it has options that the fused form lacks.",
        severity=freed_memory.severity(case),
        freed=freed,
    )
