"""Tensors are copied within the processor's memory."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import SHOWN_SPANS
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.cpu_operators import cpu_operators, replaced
from foretrace.diagnose.rule import CPU, headline, on, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.08, "the step", JUDGEMENT)
_COPIES = ("aten::copy_", "aten::cat", "aten::_cat", "aten::repeat", "aten::clone", "aten::stack")


@on(CPU)
@headline("{copies_pct:.0f} % of every step copies tensors")
@rule("Tensors are copied", "Copies", see="operators")
def copied_tensors(case: Case) -> Iterator[Finding]:
    """Copies: contiguous(), clone(), to(dtype), cat() and what they call.

    Finds them where they take at least {LEAST_SHARE} of the step.

    Slow
        x = x.permute(0, 2, 1).contiguous()

    Fast
        x = x.permute(0, 2, 1)  # the next operator reads it as it is

    Why
    A copy computes nothing: it reads a tensor and writes it again, in another order or type.

    How the worth is predicted
    The step is replayed without the copies. Nothing is promised: a recording does not show which of them are needed.

    When not
    What follows needs the other order or type, or the copy is kept while the original changes.
    """
    copies = cpu_operators(case).where(pl.col("name").is_in(_COPIES), ~pl.col("calls_others"))
    if too_little(case, "copies of tensors", copies.share, LEAST_SHARE):
        return
    yield Finding(
        says=f"{copies.per_step_count:.0f} copies a step take {copies.self_step_ns / 1e6:.3g} ms, {100 * copies.share:.0f} % "
        "of it.",
        why="A copy computes nothing.",
        fix=Fix(
            "Leave out what nothing needs.",
            "x = x.transpose(1, 2)  # without .contiguous(), .clone(), .float()",
        ),
        evidence={
            "copies_pct": 100 * copies.share,
            "copies_per_step_count": copies.per_step_count,
            "copies_ns": round(copies.self_step_ns),
            "spans": copies.ids[:SHOWN_SPANS],
        },
        where=copies.places(),
        change=Change(
            "copies left out",
            replaced(case, copies, [0.0] * copies.table.height),
            doubt="which copies are needed is not recorded",
        ),
        unless="what follows needs the other order or type.",
    )
