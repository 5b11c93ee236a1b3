"""A batch is run in parts, each of which costs the host as much as the whole batch would."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import batch_parts, repeated_passes
from foretrace.diagnose.patterns.batch_parts import FILLED_BELOW, LEAST_PARTS  # noqa: F401  # named on the page
from foretrace.diagnose.rule import GEOMETRY, KERNELS, needs, rule
from foretrace.diagnose.seen import seen
from foretrace.predict.changes import Change


@needs(KERNELS, GEOMETRY)
@rule("A batch is run in parts that are too small", "Gradient accumulation", see="roofline")
def gradient_accumulation(case: Case) -> Iterator[Finding]:
    """Several forward and backward passes over parts of a batch before one update, on a GPU that could take more at once.

    Finds steps that run the same operators forward and backward at least {LEAST_PARTS} times before one update, where the
    step follows the host, or kernels have blocks for less than {FILLED_BELOW} of the multiprocessors.

    Slow
        for part in batch.chunk(8):
            (loss(model(part)) / 8).backward()
        optimizer.step()

    Fast
        loss(model(batch)).backward()
        optimizer.step()

    Why
    Each part costs the host as much as the whole batch would, and its kernels leave the GPU partly empty.

    How the worth is predicted
    One pass over the whole batch is replayed: as many times the items as there were passes. Nothing is promised of it,
    because memory is not looked at.

    When not
    Memory does not hold a larger part, or what the passes compute is not alike.
    """
    filled = batch_parts.filled_share(batch_parts.kernels(case))
    parts = batch_parts.find(case)
    if not parts:
        return
    passes = max(loop.passes for loop in parts)
    if filled >= FILLED_BELOW and not case.calibration.host_bound:
        seen(case, f"the batch is computed in {passes} parts, but they fill {100 * filled:.0f} % of the GPU")
        return
    ops = np.concatenate([loop.ops() for loop in parts])
    at_once = repeated_passes.at_once(case, parts)
    yield Finding(
        says=f"{passes} times a step the same {len(parts[0].ops(0, 1))} operators run forward and backward, on a part "
        f"of the batch each; kernels fill {100 * filled:.0f} % of the GPU's multiprocessors.",
        why="Each part costs the host as much as the whole batch, and its kernels leave the GPU partly empty.",
        fix=Fix(
            "Run larger parts, all at once if memory allows it; scale the loss accordingly.",
            "loss = model(batch).mean(); loss.backward()   # not: for part in batch.chunk(8)\n"
            "# batch norm, and losses over pairs of a batch, then see all of it: check that this is wanted",
        ),
        evidence={
            "parts_count": passes,
            "filled_pct": 100 * filled,
            "spans": ops[:5].tolist(),
        },
        where=case.places(ops.tolist()),
        change=Change(
            f"{passes} parts of the batch as one",
            at_once.edit,
            others=at_once.others,
            upside=repeated_passes.UPSIDE,
            doubt="whether memory holds the whole batch is not looked at",
        ),
        unless="memory holds no larger part, or what the passes compute is not alike.",
    )
