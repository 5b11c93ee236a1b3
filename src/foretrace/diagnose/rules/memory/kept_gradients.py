"""Gradients of the last step are kept while the forward pass runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.analyze.concepts.memory import batch_bytes, memory_categories, trained_parameters
from foretrace.analyze.concepts.memory.memory_replay import Memory, MemoryChange, Stretch, pieces
from foretrace.analyze.concepts.names.named_spans import ids_like
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.freed import Freed
from foretrace.diagnose.patterns import freed_memory
from foretrace.diagnose.patterns.freed_memory import BLOCKS, LEAST_FREED, LEAST_HELD
from foretrace.diagnose.rule import headline, needs, rule
from foretrace.trace import Trace
from foretrace.units import format_value

_ZEROES = r"^aten::(?:_foreach_)?zero_$"


@needs(BLOCKS)
@headline("Gradients kept over the forward pass are {freed_pct:.0f} % of the peak")
@rule("Gradients are kept over the forward pass", "Kept gradients", see="memory")
def kept_gradients(case: Case) -> Iterator[Finding]:
    """Gradients that are kept after the optimizer's step, until behind the forward pass, where that makes the peak.

    Finds gradients that are set to zero instead of freed, or freed later than behind the optimizer's step, where the peak
    without them is lower by at least {LEAST_FREED}. Where the peak is less than {LEAST_HELD} of the device's memory it is
    only mentioned.

    Slow
        loss = model(x)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()

    Fast
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()  # set_to_none=True is the default

    Why
    After the optimizer's step nobody needs the gradients. Those that are kept take the room of the parameters' once more
    while activations grow.

    How the worth is predicted
    The curve of allocated memory is replayed without the gradients from the end of the optimizer's step on: until they are
    freed as recorded, or, where they are set to zero, until the backward pass adds to them.

    When not
    Something reads the gradients between the steps.
    """
    memory = freed_memory.memory_of(case)
    change = _zeroed(case.whole) or _late(case.whole, memory)
    if change is None:
        return
    freed = Freed(memory, change)
    if not freed.share:
        return
    what = f"gradients freed behind the optimizer's step would free {format_value('_bytes', round(freed.size_bytes.point))}"
    if freed_memory.not_worth(case, what, freed, least=LEAST_FREED, held=LEAST_HELD):
        return
    yield Finding(
        says=f"Gradients are kept while the forward pass runs: freed behind the optimizer's step, the peak falls from "
        f"{format_value('_bytes', memory.peak_bytes)} to {format_value('_bytes', freed.after_bytes)}.",
        why="After the optimizer's step nobody needs them.",
        fix=Fix(
            "Free gradients behind the optimizer's step.",
            "optimizer.step()\noptimizer.zero_grad(set_to_none=True)   # the default",
        ),
        evidence=freed_memory.evidence(freed),
        unless="something reads the gradients between the steps.",
        severity=freed_memory.severity(case),
        freed=freed,
    )


def _zeroed(trace: Trace) -> MemoryChange | None:
    """The curve without gradients that are set to zero, until the backward adds to them; None where none is."""
    zeroing = memory_categories.host_annotations(trace, memory_categories.ZERO_GRAD)
    zeroes = trace.spans["start_ns"].to_numpy()[ids_like(trace, "op", _ZEROES)]
    begin, end = zeroing["start_ns"].to_numpy(), (zeroing["start_ns"] + zeroing["dur_ns"]).to_numpy()
    with_zeroes = np.searchsorted(zeroes, end) > np.searchsorted(zeroes, begin)
    steps = np.sort(np.array([until for _, until in batch_bytes.optimizer_steps(trace)], np.int64))
    gradients = trained_parameters.gradients(trace)
    added, size = gradients["start_ns"].to_numpy(), gradients["size_bytes"].to_numpy()
    before = np.searchsorted(end, added) - 1
    zeroed = (before >= 0) & np.append(with_zeroes, False)[before]
    stepped = np.searchsorted(steps, begin[before[zeroed]], side="right")
    since = np.append(0, steps)[stepped]  # 0 where the step before was not recorded
    columns = (since.tolist(), added[zeroed].tolist(), (-size[zeroed]).tolist())
    stretches = [Stretch(*row) for row in zip(*columns, strict=True)]
    return MemoryChange("gradients not kept", stretches=tuple(stretches)) if stretches else None


def _late(trace: Trace, memory: Memory) -> MemoryChange | None:
    """The curve without gradients between the optimizer's step and when they are freed; None where there are none."""
    rows = np.flatnonzero((batch_bytes.category(trace) == "gradient").to_numpy())
    steps = np.sort(np.array([until for _, until in batch_bytes.optimizer_steps(trace)], np.int64))
    if not len(steps) or not len(rows):
        return None
    last = np.searchsorted(steps, memory.end_ns[rows], side="right") - 1
    # Those that are older than the recording are of a step that was not recorded.
    none = np.where(memory.start_ns[rows] < 0, 0, memory.end_ns[rows])
    since = np.where(last >= 0, steps[np.maximum(last, 0)], none)
    there = (since > memory.start_ns[rows]) & (memory.end_ns[rows] > since)
    if not there.any():
        return None
    kept = rows[there]
    return MemoryChange("gradients not kept", absent=pieces(kept, since[there], memory.end_ns[kept]))
