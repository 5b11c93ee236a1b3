"""The optimizer updates one parameter after the other, in many small kernels."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import polars as pl

from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.concepts.work.work_models.call import parse
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import optimizer_steps, parameter_loops
from foretrace.diagnose.patterns.parameter_loops import (  # LEAST_BY_HAND: named on the page
    LEAST_BY_HAND,  # noqa: F401
    LEAST_LAUNCHES,
    LEAST_SHARE,
    WHY,
    Loop,
)
from foretrace.diagnose.rule import KERNELS, healthy, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs import foreach, streaming  # noqa: F401  # streaming: named on the page
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Share

FUSED_BELOW = Share(0.3, "launches that are already of many tensors or compiled", JUDGEMENT)
LEAST_OF_HAND = Share(
    0.02,
    "the step, on the host or on the GPU, that an update by hand takes: few parameters, but no other work hides them",
    JUDGEMENT,
)
_FUSED = "multi_tensor|^triton_"


@needs(KERNELS)
@healthy("roles", "{optimizer_phase_pct:.1f} % of GPU time", none="no optimizer step recorded")
@rule("The optimizer updates one tensor at a time", "Optimizer", see="roles")
def loop_optimizer(case: Case) -> Iterator[Finding]:
    """A step of Adam, AdamW, SGD or Adagrad with a launch for every operation on every parameter.

    Looks at `Optimizer.step#` ranges of the optimizers that have a fused form. Speaks where they launch at least
    {LEAST_LAUNCHES} kernels a step, less than {FUSED_BELOW} of them over many tensors at once, and take at least
    {LEAST_SHARE} of the step, on the host or on the GPU.

    Also finds plain SGD that the program writes itself: after the backward pass and outside of any optimizer's step, the
    gradient is added to at least {LEAST_BY_HAND} weights and biases in turn, which takes at least {LEAST_OF_HAND} of the step. Other
    loops over parameters have a rule of their own (parameter-loop).

    Slow
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)

    Fast
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)  # or foreach=True

        params = list(model.parameters())
        with torch.no_grad():
            torch._foreach_add_(params, [p.grad for p in params], alpha=-lr)

    Why
    A parameter's update is tiny, and Adam launches ten kernels for it: host and GPU do little but launch.

    How the worth is predicted
    The fused optimizer takes a launch for every {foreach.TENSORS_PER_LAUNCH} parameters. It moves weight, gradient and
    moments once, at {streaming.MULTI_TENSOR_SHARE} of the bandwidth. On the host it takes {foreach.HOST_NS_PER_TENSOR} for
    each parameter and {foreach.HOST_NS_PER_LAUNCH} for each launch. An update by hand keeps its operators, each over all
    parameters at once.

    When not
    The optimizer is one of your own that has no fused or foreach form.
    """
    yield from _of_torch(case)
    yield from _by_hand(case)


def _of_torch(case: Case) -> Iterator[Finding]:
    """The steps of torch's optimizers."""
    steps = optimizer_steps.during(case, fusable=True)
    within = optimizer_steps.calls_within(case, steps)[case.tasks["call"].to_numpy()]
    work = DeviceWork(case, case.tasks.filter(pl.Series(within, dtype=pl.Boolean)))
    if len(work) < LEAST_LAUNCHES * case.step_count:
        return
    if work.rows["name"].cast(pl.String).str.contains(_FUSED).mean() >= FUSED_BELOW:  # type: ignore[operator]
        return
    tensors, moved = _parameters(work)
    loop = Loop(work, steps, tensors)
    if too_little(case, "an optimizer that is not fused", loop.step_share, LEAST_SHARE):
        return
    yield Finding(
        says=f"The optimizer launches {work.per_step_count:.0f} kernels a step for about {tensors} parameters: "
        f"{loop.takes()}.",
        why=WHY,
        fix=Fix(
            "Use the fused optimizer.",
            f"optimizer = torch.optim.{optimizer_steps.name(case)}(params, ..., fused=True)   # other arguments as they are",
        ),
        evidence=loop.evidence(),
        where=work.places(),
        change=Change("the optimizer fused", _fused(loop, moved)),
        unless="the optimizer is one of your own that has no fused or foreach form.",
    )


def _by_hand(case: Case) -> Iterator[Finding]:
    """Plain SGD that the program writes itself."""
    loop = parameter_loops.by_hand(case)
    if loop is None or too_little(case, "parameters updated by hand", loop.step_share, LEAST_OF_HAND):
        return
    yield Finding(
        says=f"An update by hand launches {loop.launches} operators a step, one after the other, for {loop.tensors} "
        f"parameters: {loop.takes()}.",
        why=WHY,
        fix=Fix(
            "Update all parameters at once, or let torch.optim.SGD do it.",
            "params = [p for p in model.parameters() if p.grad is not None]\n"
            "with torch.no_grad():\n"
            "    torch._foreach_add_(params, [p.grad for p in params], alpha=-lr)   # with the same lr\n"
            "# or: optimizer = torch.optim.SGD(model.parameters(), lr=lr, fused=True); optimizer.step()",
        ),
        evidence=loop.evidence(),
        where=loop.work.places(),
        change=Change("the update over all parameters at once", parameter_loops.foreach_edit(loop)),
        unless="what is done to one parameter depends on what was done to another.",
    )


def _fused(loop: Loop, moved_bytes: int) -> Edit:
    """One launch for many parameters, which moves all that the update needs once."""
    device, device_ns = loop.work.case.device, loop.device_ns
    if device and moved_bytes:
        device_ns = min(foreach.moving_ns(device, moved_bytes), device_ns)
    return loop.at_once(foreach.launches(loop.tensors, device_ns))


def _parameters(work: DeviceWork) -> tuple[int, int]:
    """How many parameters a step updates, and the bytes that a fused kernel moves (0 where shapes were not recorded)."""
    case = work.case
    ops = case.arguments.filter(pl.col("op_id").is_in(work.rows["op_id"].drop_nulls().unique().implode()))
    ops = ops.with_columns(op=case.op_names(ops["op_id"]))
    maxima = foreach.MAXIMUM_VALUES if (ops["op"] == foreach.MAXIMUM).any() else 0
    for name, values in foreach.UPDATE_VALUES.items():
        once = ops.filter(pl.col("op") == name)
        if once.height >= case.step_count:
            sizes = [_bytes(*row) for row in once.select("op", "shapes", "dtypes").iter_rows()]
            return ceil(once.height / case.step_count), (values + maxima) * sum(sizes) // case.step_count
    return ceil(work.per_step_count / foreach.LAUNCHES_PER_UPDATE), 0


def _bytes(op: str, shapes: str | None, dtypes: str | None) -> int:
    """The size of the tensor that an operator updates."""
    if shapes is None or work_models.find(op) is None:
        return 0
    return max(
        (tensor.bytes for tensor in parse(op, shapes, dtypes, None, None, None).all_tensors), default=0
    )
