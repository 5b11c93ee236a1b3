"""The optimizer updates one parameter after the other, in many small kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device.device_time import names_like
from foretrace.analyze.concepts.host.runtime_calls import NOBODY
from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.concepts.work.work_models.call import parse
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import parameter_loops
from foretrace.diagnose.rule import Healthy, rule
from foretrace.intervals import Intervals
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_LEAST_LAUNCHES = 40  # a step: twenty tensors, two operators each; fewer are no loop
_LEAST_TENSORS = 20
_FUSED_BELOW = 0.3  # share of launches that are already of many tensors
_FUSED = "multi_tensor|^triton_"
_PER_LAUNCH = 40  # tensors that one multi-tensor launch takes: about what fits its arguments
_BANDWIDTH_SHARE = 0.75
_HOST_NS_PER_TENSOR, _HOST_NS_PER_LAUNCH = 1_000, 10_000
_LEAST_SHARE = 0.03  # of the step, on the host or on the device
_STEP = re.compile(r"Optimizer\.step#(\w+)\.")
_HAVE_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")  # of torch's optimizers
# Operators that an update calls once a parameter, the surest first, with the values that a fused kernel then moves for
# each element: weight and gradient read, weight written, and each moment read and written.
_ONCE = {"aten::addcdiv_": 7, "aten::addcmul_": 7, "aten::sqrt": 7, "aten::mul_": 5, "aten::add_": 3}
_ACCUMULATES = r"^(?:autograd::engine::evaluate_function: )?torch::autograd::AccumulateGrad$"
_ADDED_ONCE = 1.1  # gradients that a backward pass adds to, for each that was set to zero


def _no_issue(values: Mapping[str, Any]) -> str | None:
    share = values.get("optimizer_phase_pct")
    if share is None:
        return None
    return f"{share:.1f} % of GPU time" if share else "no optimizer step recorded"


@rule(
    title="The optimizer updates one tensor at a time",
    topic="Optimizer",
    see="roles",
    healthy=Healthy("roles", _no_issue),
)
def loop_optimizer(case: Case) -> Iterator[Finding]:
    """An optimizer step, or another loop over parameters, with a launch for every operation on every one.

    What it does
    Looks for `Optimizer.step#` ranges of Adam, AdamW, SGD and Adagrad with at least 40 launches a step of which less than
    30 % are of many tensors at once. They are replaced by the fused optimizer: a launch for every 40 parameters, weight,
    gradient and moments moved once at 75 % of the bandwidth, and 1 µs a parameter and 10 µs a launch on the host.
    In the ranges of other optimizers, and anywhere outside of the backward pass, looks for runs of launches of pointwise
    operators, copies and reductions in which each operator comes for at least 20 tensors, some with more dimensions than
    others, as weights and biases have, or, behind the backward pass, in place: updates by hand, averages of weights,
    clipped gradients. They are replaced by the same operators over all tensors at once (torch._foreach_*), at the same
    cost for each operator. One that adds up what it computes and is differentiated is a penalty on the parameters: it
    goes, forward and backward, for the optimizer's weight_decay. The range includes that it stays, over all at once.
    Where gradients are set to zero one by one, that goes altogether, and so does adding to them in the backward pass.

    Why it matters
    A parameter's update is tiny, and Adam launches ten kernels for it: host and GPU do little but launch.

    Use instead
    torch.optim.AdamW(model.parameters(), fused=True), or foreach=True. In an optimizer of your own,
    torch._foreach_mul_(parameters, 0.9) and the like. zero_grad(set_to_none=True), which is the default.
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    named = _ranges(case)
    fused, others = (_union(named, own, case) for own in (True, False))
    yield from _of_torch(case, fused)
    zeros = _zeroed(case)
    inside = _within(case, others) | ~_within(case, fused)
    inside[zeros["call"].to_numpy()] = False
    found = parameter_loops.find(case, inside)
    if found is not None:
        yield from _by_hand(case, found)
    if zeros.height >= _LEAST_TENSORS * case.step_count:
        yield from _zeroing(case, zeros)


def _of_torch(case: Case, ranges: Intervals) -> Iterator[Finding]:
    """Steps of the optimizers that have a fused form."""
    mine = case.tasks.filter(
        pl.Series(_within(case, ranges)[case.tasks["call"].to_numpy()], dtype=pl.Boolean)
    )
    if mine.height < _LEAST_LAUNCHES * case.step_count:
        return
    if mine["name"].cast(pl.String).str.contains(_FUSED).mean() >= _FUSED_BELOW:  # type: ignore[operator]
        return
    host_ns = ranges.total_ns // case.step_count
    spent = int(mine["dur_ns"].sum()) // case.step_count
    if max(host_ns, spent) < _LEAST_SHARE * case.step_ns:
        return
    tensors, moved = _parameters(case, mine)
    yield _finding(
        case,
        mine,
        f"The optimizer launches {mine.height / case.step_count:.0f} kernels a step for about {tensors} parameters",
        host_ns,
        tensors,
        Fix(
            "Use the fused optimizer.", "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"
        ),
        Change("the optimizer fused", _edit(case, mine, ranges, tensors, moved)),
        "the optimizer is one of your own that has no fused or foreach form.",
    )


def _by_hand(case: Case, found: parameter_loops.Updates) -> Iterator[Finding]:
    """Loops over parameters that torch._foreach_* would do at once."""
    host_ns = found.host.total_ns // case.step_count
    spent = int(found.tasks["dur_ns"].sum()) // case.step_count
    if max(host_ns, spent) < _LEAST_SHARE * case.step_ns or found.launches < _LEAST_LAUNCHES:
        return
    yield _finding(
        case,
        found.tasks,
        f"In loops over about {found.tensors} tensors, {found.launches} operators are launched one by one a step",
        host_ns,
        found.tensors,
        Fix(
            "Apply each operator to all tensors at once, or use one of torch's optimizers, fused or with foreach=True, "
            "and its weight_decay rather than a penalty in the loss.",
            "torch._foreach_mul_(moments, 0.9)   # not: for m in moments: m.mul_(0.9)\n"
            "torch._foreach_add_(moments, grads, alpha=0.1)",
        ),
        _at_once(case, found),
        "what is done to one tensor depends on what was done to another.",
    )


def _at_once(case: Case, found: parameter_loops.Updates) -> Change:
    """The loops with torch._foreach_*; a penalty on the parameters as the optimizer's own decay, at worst with foreach."""
    at_once = parameter_loops.foreach(case, found)
    penalty = _penalty(case, found)
    if penalty is None:
        return Change("the update over all tensors at once", at_once)
    return Change("the penalty left to the optimizer's weight_decay", penalty, others=(at_once,))


def _penalty(case: Case, found: parameter_loops.Updates) -> Edit | None:
    """Loops that add up what they compute and are differentiated, left out forward and backward; None if there are none."""
    families = {(work_models.find(op) or ("",))[0] for op in found.tasks["op"].unique()}
    mine = found.tasks["op_id"].drop_nulls().unique()
    nodes = case.trace.ops.filter(pl.col("forward_id").is_in(mine.implode()))
    if "reduction" not in families or 2 * nodes["forward_id"].n_unique() < len(mine):
        return None
    spans = nodes["span_id"].cast(pl.Int64).to_numpy()
    host, program = case.host, case.program
    start = np.concatenate((host.start_ns[spans] - program.start_ns, found.host.start))
    end = np.concatenate((host.end_ns[spans] - program.start_ns, found.host.end))
    gone = intervals.union(start, end)
    inside = intervals.covered_ns(gone, program.call_start_ns, program.call_start_ns + 1) > 0
    return Edit(removed_host=gone, removed_calls=np.flatnonzero(inside))


def _zeroing(case: Case, zeros: pl.DataFrame) -> Iterator[Finding]:
    """Gradients kept and set to zero, which the backward pass then adds to."""
    added = _added(case)
    once = added.height <= _ADDED_ONCE * zeros.height  # else gradients are added up over several passes
    tasks = pl.concat((zeros, added)) if once else zeros
    host = _operators(case, tasks["launch_id"].drop_nulls().cast(pl.Int64).to_numpy())
    host_ns, spent = host.total_ns // case.step_count, int(tasks["dur_ns"].sum()) // case.step_count
    if max(host_ns, spent) < _LEAST_SHARE * case.step_ns:
        return
    tensors = zeros.height // case.step_count
    yield _finding(
        case,
        tasks,
        f"{tensors} gradients a step are set to zero one by one"
        + (", and the backward pass adds to each" if once and added.height else ""),
        host_ns,
        tensors,
        Fix(
            "Let the gradients go.",
            "optimizer.zero_grad(set_to_none=True)   # the default; or p.grad = None",
        ),
        Change(
            "gradients neither set to zero nor added to",
            Edit(removed_host=host, removed_calls=np.unique(tasks["call"].to_numpy())),
        ),
        "the tensors are other than gradients, or something holds on to the gradients' memory.",
    )


def _finding(
    case: Case,
    tasks: pl.DataFrame,
    says: str,
    host_ns: int,
    tensors: int,
    fix: Fix,
    change: Change,
    unless: str,
) -> Finding:
    spent = int(tasks["dur_ns"].sum()) // case.step_count
    return Finding(
        says=f"{says}: {host_ns / 1e6:.3g} ms on the host, {spent / 1e6:.3g} ms on the GPU.",
        why="Every operation on every parameter is a launch of its own.",
        fix=fix,
        evidence={
            "launches_per_step_count": tasks.height / case.step_count,
            "parameters_count": tensors,
            "host_ns": host_ns,
            "device_ns": spent,
            "spans": tasks["id"].head(5).to_list(),
        },
        where=case.places(tasks["op_id"].drop_nulls().to_list()),
        change=change,
        unless=unless,
    )


def _ranges(case: Case) -> pl.DataFrame:
    """The optimizers' steps on the host, with the class that each names."""
    host = case.trace.tracks.filter(pl.col("device").is_null())["id"].implode()
    spans = case.trace.spans.filter(
        pl.col("kind").is_in(("annotation", "op")) & pl.col("track_id").is_in(host)
        & pl.col("name").is_in(names_like(case.trace.spans, "^Optimizer.step#"))
    )  # fmt: skip
    return spans.with_columns(optimizer=pl.col("name").cast(pl.String).str.extract(_STEP.pattern))


def _union(ranges: pl.DataFrame, has_fused: bool, case: Case) -> Intervals:
    mine = ranges.filter(pl.col("optimizer").is_in(_HAVE_FUSED).fill_null(value=False) == has_fused)
    return case.during(mine)


def _within(case: Case, ranges: Intervals) -> NDArray[np.bool_]:
    start = case.program.call_start_ns
    return intervals.covered_ns(ranges, start, start + 1) > 0


def _zeroed(case: Case) -> pl.DataFrame:
    """The launches of `aten::zero_` on tensors that were there before, at least twenty in a row."""
    host = case.host
    ids = case.tasks["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    outer = host.outermost(ids, host.named("^aten::", "op"))
    zeroes = host.named(r"^aten::zero_$", "op")[outer] & (outer != NOBODY)
    rows = case.tasks.with_columns(run=pl.Series(np.cumsum(~zeroes)))
    return rows.filter(pl.Series(zeroes)).filter(pl.len().over("run") >= _LEAST_TENSORS).drop("run")


def _added(case: Case) -> pl.DataFrame:
    """The launches that add to gradients that are there already."""
    host = case.host
    ids = case.tasks["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    adds = host.named(r"^aten::add_$", "op")[ids] & (ids != NOBODY)
    adds &= host.nearest(ids, host.named(_ACCUMULATES, "op")) != NOBODY
    return case.tasks.filter(pl.Series(adds))


def _operators(case: Case, calls: NDArray[np.int64]) -> Intervals:
    """The host time of the outermost of torch's operators around these calls."""
    host = case.host
    outer = host.outermost(calls, host.named("^aten::", "op"))
    spans = np.unique(np.where(outer == NOBODY, calls, outer))
    start = case.program.start_ns
    return intervals.union(host.start_ns[spans] - start, host.end_ns[spans] - start)


def _parameters(case: Case, mine: pl.DataFrame) -> tuple[int, int]:
    """How many parameters a step updates, and the bytes that a fused kernel moves (0 where shapes were not recorded)."""
    ops = case.trace.ops.filter(pl.col("span_id").is_in(mine["op_id"].drop_nulls().unique().implode()))
    named = ops.with_columns(op=case.trace.spans["name"].gather(ops["span_id"]).cast(pl.String))
    maxima = 2 if (named["op"] == "aten::maximum").any() else 0  # amsgrad keeps a third moment
    for name, values in _ONCE.items():
        once = named.filter(pl.col("op") == name)
        if once.height >= case.step_count:
            counted = [_bytes(*row) for row in once.select("op", "shapes", "dtypes").iter_rows()]
            return ceil(once.height / case.step_count), (values + maxima) * sum(counted) // case.step_count
    return ceil(mine.height / case.step_count / 10), 0


def _bytes(op: str, shapes: str | None, dtypes: str | None) -> int:
    """The size of the tensor that an operator updates."""
    if shapes is None or work_models.find(op) is None:
        return 0
    return max((each.bytes for each in parse(op, shapes, dtypes, None, None, None).all_tensors), default=0)


def _edit(case: Case, mine: pl.DataFrame, ranges: Intervals, tensors: int, moved: int) -> Edit:
    """A few launches of each step stay and stand for the fused ones; the rest goes, with its host time."""
    launches = max(ceil(tensors / _PER_LAUNCH), 1)
    bandwidth = case.device.memory_bandwidth_bytes if case.device else None
    kept = mine.group_by("step", maintain_order=True).head(launches)
    recorded = int(mine["dur_ns"].sum()) // case.step_count
    device_ns = moved / (bandwidth * _BANDWIDTH_SHARE) * 1e9 if bandwidth and moved else recorded
    each_ns = min(round(device_ns), recorded) // launches
    host_ns = tensors * _HOST_NS_PER_TENSOR // launches + _HOST_NS_PER_LAUNCH
    tasks = kept["task"].to_list()
    return Edit(
        removed_host=ranges,
        removed_tasks=np.setdiff1d(mine["task"].to_numpy(), kept["task"].to_numpy()),
        durations_ns=dict.fromkeys(tasks, each_ns),
        modelled=frozenset(tasks),
        added_host_ns=dict.fromkeys(kept["call"].to_list(), host_ns),
    )
