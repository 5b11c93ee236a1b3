"""Casts of the program's own take much of the step."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.casts import ASKED, passing_copies, there_and_back, time_share
from foretrace.diagnose.patterns.device_copies import SAME_TYPE
from foretrace.diagnose.removal import without_work
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.numbers import Calls
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(
    0.10,
    "GPU time, or of host time where the step follows the host; less is what mixed precision costs",
    JUDGEMENT,
)
_QUANTISED = ("int8", "uint8", "fp8")


@needs(KERNELS)
@rule("The same tensors are converted every step", "Explicit conversions", see="roles")
def explicit_casts(case: Case) -> Iterator[Finding]:
    """Casts that the program asks for itself and that take much of the step.

    Finds casts by .to(), .float(), .half() and the like, which nothing undoes, where they take at least {LEAST_SHARE} of
    GPU time, or of the host's where the step follows the host. Autocast's own casts are not among them, nor are those that
    weight-casts, dtype-casts and fp32-island find. The scaling right after a cast from a quantised type counts with it.

    Slow
        for x in batches:
            y = x @ table.to(x.dtype)

    Fast
        table = table.to(x.dtype)  # once
        for x in batches:
            y = x @ table

    Why
    Each cast reads and writes the whole tensor and computes nothing.

    How the worth is predicted
    The casts go, with the host time of what asked for them. Nothing is promised, for the wider type may be needed.

    When not
    The wider type is needed, or memory for a second copy is short.
    """
    casts = _unexplained(case)
    work = DeviceWork(case, pl.concat((casts.rows, _scaling(casts)), how="diagonal"))
    edit = without_work(work)
    share = time_share(case, edit, work.gpu_share) if len(casts) else 0.0
    if too_little(case, "casts that the program asks for", share, LEAST_SHARE):
        return
    types = casts.rows.group_by("source", "target").agg(pl.col("dur_ns").sum())
    source, target, _ = types.sort("dur_ns", descending=True).row(0)
    yield Finding(
        says=f"{casts.per_step_count:.0f} casts a step, most of them from {source} to {target}, take {work.gpu_pct:.0f} % of "
        "GPU time.",
        why="They read and write whole tensors and compute nothing.",
        fix=Fix(
            "Cast once, or not at all.",
            "weight = weight.to(x.dtype)   # once, not at every step\n"
            "y = F.layer_norm(x, shape)    # computes in fp32 inside: not F.layer_norm(x.float(), shape).to(x.dtype)",
        ),
        evidence={
            **work.evidence("casts"),
            "casts_per_step_count": casts.per_step_count,
            "spans": casts.spans(),
        },
        where=casts.places(),
        change=Change("casts removed", edit, doubt="what comes after the cast may need the wider type"),
        unless="the wider type is needed, or memory for a second copy is short.",
    )


def _unexplained(case: Case) -> DeviceWork:
    """Casts that the program asked for and that no other rule explains."""
    casts = passing_copies(case).where(~SAME_TYPE)
    asked = [case.name(case.callers(op)[-1]) in ASKED for op in casts.rows["op_id"]]
    casts = casts.where(pl.Series(asked, dtype=pl.Boolean), ~pl.col("task").is_in(there_and_back(case).casts))
    unclaimed = case.unclaimed(Calls(casts.rows["call"].to_numpy()))
    return casts.where(pl.col("call").is_in(unclaimed.tolist()))


def _scaling(casts: DeviceWork) -> pl.DataFrame:
    """The multiplications right after casts from quantised types: with the cast, they make what was quantised."""
    case = casts.case
    quantised = casts.where(pl.col("source").is_in(_QUANTISED)).rows["task"].to_numpy()
    following = case.device_work(pl.col("task").is_in((quantised + 1).tolist()))
    return following.launched_by("aten::mul", "aten::mul_").rows
