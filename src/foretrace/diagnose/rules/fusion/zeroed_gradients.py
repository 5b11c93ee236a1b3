"""Gradients are kept and set to zero, and the backward pass then adds to each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace.analyze.concepts.host.runtime_calls import NOBODY
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import parameter_loops
from foretrace.diagnose.patterns.parameter_loops import LEAST_SHARE, LEAST_TENSORS, WHY, Loop
from foretrace.diagnose.removal import without_time
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.numbers import ProgramTime
from foretrace.sourced import JUDGEMENT, Factor

ADDED_ONCE = Factor(
    1.1, "gradients added to for each that is set to zero; more are added up over several passes", JUDGEMENT
)
_ACCUMULATES = r"^(?:autograd::engine::evaluate_function: )?torch::autograd::AccumulateGrad$"


@needs(KERNELS)
@rule("Gradients are set to zero one by one", "Zeroed gradients", see="roles")
def zeroed_gradients(case: Case) -> Iterator[Finding]:
    """Gradients that are set to zero one by one, for the backward pass to add to.

    Finds at least {LEAST_TENSORS} launches of `aten::zero_` in a row and a step, on tensors that were there before, and the
    launches of the backward pass that add to gradients, where both take at least {LEAST_SHARE} of the step, on the host or
    on the GPU.

    Slow
        optimizer.zero_grad(set_to_none=False)

    Fast
        optimizer.zero_grad()  # set_to_none=True is the default; or p.grad = None

    Why
    Every gradient costs a launch to set it to zero, and another one to add to it. A gradient that is None is simply kept as
    the backward pass makes it.

    How the worth is predicted
    The launches that set to zero go, with the host time of their operators. So do those that add to gradients, unless there
    are more than {ADDED_ONCE} times as many: then gradients are added up over several passes.

    When not
    The tensors are other than gradients, or something holds on to the gradients' memory.
    """
    zeros = parameter_loops.zeroed(case)
    if len(zeros) < LEAST_TENSORS * case.step_count:
        return
    added = _added(case)
    once = len(added) <= ADDED_ONCE * len(zeros)
    work = DeviceWork(case, pl.concat((zeros.rows, added.rows))) if once else zeros
    loop = Loop(work, _outermost_operators(work), len(zeros) // case.step_count)
    if too_little(case, f"{loop.tensors} gradients set to zero one by one", loop.step_share, LEAST_SHARE):
        return
    yield Finding(
        says=f"{loop.tensors} gradients a step are set to zero one by one"
        + (", and the backward pass adds to each" if once and len(added) else "")
        + f": {loop.takes()}.",
        why=WHY,
        fix=Fix(
            "Free gradients instead of zeroing them.",
            "optimizer.zero_grad(set_to_none=True)   # the default; or p.grad = None\n"
            "# check that nothing reads p.grad between this and the backward pass: it is None there, not zeros",
        ),
        evidence=loop.evidence(),
        where=work.places(),
        change=Change("gradients neither set to zero nor added to", without_time(case, loop.host)),
        unless="the tensors are other than gradients, or something holds on to the gradients' memory.",
    )


def _added(case: Case) -> DeviceWork:
    """The launches that add to gradients that are there already."""
    host = case.host
    ops = case.tasks["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    adds = host.named(r"^aten::add_$", "op")[ops] & (ops != NOBODY)
    adds &= host.nearest(ops, host.named(_ACCUMULATES, "op")) != NOBODY
    return DeviceWork(case, case.tasks.filter(pl.Series(adds)))


def _outermost_operators(work: DeviceWork) -> ProgramTime:
    """The host time of the outermost of torch's operators around this work's launches."""
    host = work.case.host
    calls = work.rows["launch_id"].drop_nulls().cast(pl.Int64).to_numpy()
    outer = host.outermost(calls, host.named("^aten::", "op"))
    spans = np.unique(np.where(outer == NOBODY, calls, outer))
    return work.case.during(work.case.trace.spans[spans])
