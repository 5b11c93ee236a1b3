"""Tensors are cast to another type and straight back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.casts import passing_copies, there_and_back, time_share
from foretrace.diagnose.removal import without_work
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs.precision import HALF_BYTES_ROWS_TIME, HALF_BYTES_TIME
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.02, "GPU time, or of host time where the step follows the host", JUDGEMENT)
_OF_ROWS = "norm|softmax"  # operators that compute row by row


@needs(KERNELS)
@rule("Tensors are converted and straight back", "Type conversions", see="roles")
def dtype_casts(case: Case) -> Iterator[Finding]:
    """Casts that are undone by the next one, such as x.float().half().

    Follows casts on the device that come one after another on equally many elements. Where the type returns to the one
    that the first cast began with, all of them could go. Casts to fp32 and back around one operator that computes in fp32
    inside (a norm, a softmax, an activation) undo each other as well. They must take at least {LEAST_SHARE} of GPU time,
    or of the host's where the step follows the host.

    Slow
        y = F.layer_norm(x.float(), shape).to(x.dtype)

    Fast
        y = F.layer_norm(x, shape)  # computes in fp32 inside

    Why
    Each cast reads and writes the whole tensor and computes nothing. Layer norm and softmax compute in fp32 inside,
    whatever their input's type.

    How the worth is predicted
    The casts go, with the host time of what asked for them. The operator between them moves half as much:
    {HALF_BYTES_TIME} of its time is left, of a norm or softmax {HALF_BYTES_ROWS_TIME}.

    When not
    The rounding in between is wanted, or the result in fp32 is used elsewhere as well. Under torch.autocast, leave casts
    to torch.
    """
    pairs = there_and_back(case)
    casts = passing_copies(case).where(pl.col("task").is_in(pairs.casts))
    edit = without_work(casts)
    share = time_share(case, edit, casts.gpu_share) if len(casts) else 0.0
    if too_little(case, "casts undo each other", share, LEAST_SHARE):
        return
    durations = _half_the_bytes(case, pairs.between)
    types = sorted({*casts.rows["source"], *casts.rows["target"]})
    around = " around an operator that computes in fp32 in any case" if pairs.around else ""
    yield casts.finding(
        "casts",
        says=f"{casts.per_step_count:.0f} casts a step between {' and '.join(types)} undo each other{around} and take "
        f"{casts.gpu_pct:.0f} % of GPU time.",
        why="They read and write whole tensors and compute nothing.",
        fix=Fix(
            "Keep one type through the region.",
            "y = F.layer_norm(x, shape)   # computes in fp32 inside: not F.layer_norm(x.float(), shape).to(x.dtype)"
            if pairs.around
            else "y = f(x)  # not f(x.float().to(x.dtype))",
        ),
        change=Change(
            "casts there and back removed",
            replace(edit, durations_ns=durations, modelled=frozenset(durations)),
        ),
        unless="the rounding in between is wanted, or the result in fp32 is used elsewhere as well.",
    )


def _half_the_bytes(case: Case, tasks: list[int]) -> dict[int, int]:
    """How long operators take that move half as much."""
    names = case.op_names(case.tasks["op_id"].gather(tasks))
    return {
        task: round(
            int(case.program.task_dur_ns[task]) * (HALF_BYTES_ROWS_TIME if of_rows else HALF_BYTES_TIME)
        )
        for task, of_rows in zip(tasks, names.str.contains(_OF_ROWS), strict=True)
    }
