"""Weights that nothing trains are converted again in every step."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.casts import ASKED, time_share
from foretrace.diagnose.patterns.device_copies import SAME_TYPE, device_copies
from foretrace.diagnose.patterns.remade_weights import WEIGHTS_AT, remade_weights
from foretrace.diagnose.removal import without_work
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.03, "GPU time, or of host time where the step follows the host", JUDGEMENT)


@needs(KERNELS)
@rule("Weights are converted again in every step", "Weight conversions", see="roles")
def weight_casts(case: Case) -> Iterator[Finding]:
    """Casts of weights in every step, though nothing changes the weights.

    Finds casts of weights and biases, by torch.autocast or by the program, where nothing is trained, with what else is
    done to the weight after them, such as the scaling of a quantised one. They must take at least {LEAST_SHARE} of GPU
    time, or of the host's where the step follows the host.

    A weight is known by its shape, as the second operand of a linear layer or convolution. Of a plain product of two
    matrices it may be no weight: then nothing is promised.

    Slow
        with torch.autocast("cuda", dtype=torch.bfloat16):  # casts fp32 weights in every call
            y = model(x)

    Fast
        model = model.to(torch.bfloat16)  # once
        y = model(x.to(torch.bfloat16))

    Why
    torch.autocast casts a weight once for each region around it, or at each use without its cache; so does .to(). Each
    cast reads and writes the whole weight, and the result is the same every time.

    How the worth is predicted
    The casts go, with the pointwise work on the weights and the host time of both. A model kept in half precision needs
    none of autocast's other casts either; with autocast's cache alone, the worse end of the range, those stay.

    When not
    The weights are changed between steps, layers that autocast leaves in fp32 need them so, or memory for a second copy
    is short.
    """
    casts = remade_weights(case)
    if not len(casts):
        return
    cached = without_work(casts)
    share = time_share(case, cached, casts.gpu_share)
    if too_little(case, "weights that do not change are cast in every step", share, LEAST_SHARE):
        return
    others = _other_autocasts(casts)
    both = DeviceWork(case, pl.concat((casts.rows, others.rows), how="diagonal"))
    yield casts.finding(
        "casts",
        says=f"{casts.per_step_count:.0f} kernels that cast weights take {casts.gpu_pct:.0f} % of GPU time in every step, "
        "though nothing changes the weights.",
        why="torch.autocast casts a weight once for each region around it, or at each use without its cache; so does .to().",
        fix=Fix(
            "Cast the weights once.",
            "model = model.to(torch.bfloat16)   # for inference; not torch.autocast around fp32 weights\n"
            "# check the results: autocast keeps norms, softmax and losses in fp32, this does not\n"
            "weight = quantised.to(x.dtype) * scale   # once, not at every step",
        ),
        change=Change(
            "weights cast once",
            without_work(both) if len(others) else cached,
            others=(cached,) if len(others) else (),  # with autocast's cache alone
            doubt="" if casts.rows["certain"].all() else "what is cast may be another in every step",
        ),
        unless="the weights are changed between steps, or layers that autocast leaves in fp32 need them so, or memory for a "
        "second copy is short.",
    )


def _other_autocasts(weights: DeviceWork) -> DeviceWork:
    """Where autocast casts weights, what else it casts: a model that is kept in half precision needs none of it."""
    case = weights.case
    copies = device_copies(case)
    outer = {op: case.name(case.callers(op)[-1]) for op in copies.ops}
    if not any(outer.get(op) in WEIGHTS_AT for op in weights.ops):
        return DeviceWork(case, copies.rows.clear())
    asked = [op for op, name in outer.items() if name in ASKED or len(case.callers(op)) == 1]
    of_weights = pl.col("task").is_in(weights.rows["task"].implode())
    return copies.where(~SAME_TYPE, ~pl.col("op_id").is_in(asked), ~of_weights)
