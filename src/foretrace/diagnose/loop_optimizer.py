"""The optimizer updates one parameter after the other, in many small kernels."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze import work_models
from foretrace.analyze.work_models.call import parse
from foretrace.diagnose import updates
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.intervals import Intervals
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_LEAST_LAUNCHES = 100  # a step; fewer gain nothing that could be seen
_FUSED_BELOW = 0.3  # share of launches that are already of many tensors
_FUSED = "multi_tensor|^triton_"
_PER_LAUNCH = 40  # tensors that one multi-tensor launch takes: about what fits its arguments
_BYTES_PER_ELEMENT = (
    28  # fused Adam in fp32: weight, gradient and two moments read, all but the gradient written
)
_BANDWIDTH_SHARE = 0.75
_HOST_NS_PER_TENSOR, _HOST_NS_PER_LAUNCH = 1_000, 10_000
_LEAST_SHARE = 0.03  # of the step, on the host or on the device
# Operators that an update calls once a parameter, the surest first.
_ONCE = ("aten::addcdiv_", "aten::addcmul_", "aten::sqrt", "aten::mul_", "aten::add_")


@rule
def loop_optimizer(case: Case) -> Iterator[Finding]:
    """An optimizer step with a launch for every operation on every parameter.

    What it does
    Looks for `Optimizer.step#` ranges with at least 100 launches a step of which less than 30 % are of many
    tensors at once. They are replaced by a fused optimizer: a launch for every 40 parameters, 28 bytes an element
    at 75 % of the bandwidth, and 1 µs a parameter and 10 µs a launch on the host.
    Outside of such ranges, looks behind the backward pass for at least 100 launches of pointwise operators, some of
    them in place, that come in the same order for one tensor after the other. They are replaced by the same
    operators over all tensors at once (torch._foreach_*), at the same cost for each operator.

    Why it matters
    A parameter's update is tiny, and Adam launches ten kernels for it: host and GPU do little but launch.

    Use instead
    torch.optim.AdamW(model.parameters(), fused=True), or foreach=True. In an optimizer of your own,
    torch._foreach_mul_(parameters, 0.9) and the like.
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    yield from _of_torch(case)
    yield from _by_hand(case)


def _of_torch(case: Case) -> Iterator[Finding]:
    """Steps of torch's optimizers, and of those that inherit from them."""
    ranges = _ranges(case)
    program = case.program
    inside = intervals.covered_ns(ranges, program.call_start_ns, program.call_start_ns + 1) > 0
    mine = case.tasks.filter(pl.Series(inside[case.tasks["call"].to_numpy()], dtype=pl.Boolean))
    if mine.height < _LEAST_LAUNCHES * case.step_count:
        return
    if mine["name"].cast(pl.String).str.contains(_FUSED).mean() >= _FUSED_BELOW:  # type: ignore[operator]
        return
    host_ns = int((ranges.end - ranges.start).sum()) // case.step_count
    spent = int(mine["dur_ns"].sum()) // case.step_count
    if max(host_ns, spent) < _LEAST_SHARE * case.step_ns:
        return
    yield _finding(case, mine, ranges)


def _finding(case: Case, mine: pl.DataFrame, ranges: Intervals) -> Finding:
    host_ns = int((ranges.end - ranges.start).sum()) // case.step_count
    spent = int(mine["dur_ns"].sum()) // case.step_count
    tensors, elements = _parameters(case, mine)
    return Finding(
        rule="loop-optimizer",
        says=f"The optimizer launches {mine.height / case.step_count:.0f} kernels a step for about {tensors} "
        f"parameters: {host_ns / 1e6:.3g} ms on the host, {spent / 1e6:.3g} ms on the GPU.",
        why="Every operation on every parameter is a launch of its own.",
        fix=Fix(
            "Use the fused optimizer.", "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"
        ),
        evidence={
            "launches_per_step_count": mine.height / case.step_count,
            "parameters_count": tensors,
            "host_ns": host_ns,
            "device_ns": spent,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().to_list()),
        change=Change("the optimizer fused", _edit(case, mine, ranges, tensors, elements)),
        unless="the optimizer is one of your own that has no fused or foreach form.",
    )


def _by_hand(case: Case) -> Iterator[Finding]:
    """An update that the program writes itself, outside of torch's optimizers."""
    found = updates.find(case, _LEAST_LAUNCHES)
    if found is None:
        return
    host_ns = found.host.total_ns // case.step_count
    spent = int(found.tasks["dur_ns"].sum()) // case.step_count
    if max(host_ns, spent) < _LEAST_SHARE * case.step_ns:
        return
    yield Finding(
        rule="loop-optimizer",
        says=f"Behind the backward pass, {found.operators} operators are launched for each of about {found.tensors} tensors: "
        f"{host_ns / 1e6:.3g} ms on the host, {spent / 1e6:.3g} ms on the GPU.",
        why="Every operation on every parameter is a launch of its own.",
        fix=Fix(
            "Apply each operator to all tensors at once, or use one of torch's optimizers, fused.",
            "torch._foreach_mul_(moments, 0.9)   # not: for m in moments: m.mul_(0.9)\n"
            "torch._foreach_add_(moments, grads, alpha=0.1)",
        ),
        evidence={
            "launches_per_step_count": found.tasks.height / case.step_count,
            "parameters_count": found.tensors,
            "host_ns": host_ns,
            "device_ns": spent,
            "spans": found.tasks["id"].head(5).to_list(),
        },
        where=case.places(found.tasks["op_id"].drop_nulls().to_list()),
        change=Change("the update over all tensors at once", updates.foreach(case, found)),
        unless="the update of one tensor depends on that of another.",
    )


def _ranges(case: Case) -> Intervals:
    """The optimizer's steps on the host, since the program's start."""
    host = case.trace.tracks.filter(pl.col("device").is_null())["id"].implode()
    spans = case.trace.spans.filter(
        pl.col("kind").is_in(("annotation", "op")) & pl.col("track_id").is_in(host)
        & pl.col("name").cast(pl.String).str.starts_with("Optimizer.step#")
    )  # fmt: skip
    start = (spans["start_ns"] - case.program.start_ns).to_numpy()
    return intervals.union(start, start + spans["dur_ns"].fill_null(0).to_numpy())


def _parameters(case: Case, mine: pl.DataFrame) -> tuple[int, int]:
    """How many parameters a step updates, and their elements (0 where shapes were not recorded)."""
    ops = case.trace.ops.filter(pl.col("span_id").is_in(mine["op_id"].drop_nulls().unique().implode()))
    named = ops.with_columns(op=case.trace.spans["name"].gather(ops["span_id"]).cast(pl.String))
    for name in _ONCE:
        once = named.filter(pl.col("op") == name)
        if once.height >= case.step_count:
            counted = [_elements(*row) for row in once.select("op", "shapes", "dtypes").iter_rows()]
            return ceil(once.height / case.step_count), sum(counted) // case.step_count
    return ceil(mine.height / case.step_count / 10), 0


def _elements(op: str, shapes: str | None, dtypes: str | None) -> int:
    if shapes is None or work_models.find(op) is None:
        return 0
    return max((each.count for each in parse(op, shapes, dtypes, None, None, None).all_tensors), default=0)


def _edit(case: Case, mine: pl.DataFrame, ranges: Intervals, tensors: int, elements: int) -> Edit:
    """A few launches of each step stay and stand for the fused ones; the rest goes, with its host time."""
    launches = max(ceil(tensors / _PER_LAUNCH), 1)
    bandwidth = case.device.memory_bandwidth_bytes if case.device else None
    steps = pl.Series("step", case.program.step[mine["call"].to_numpy()])
    kept = mine.with_columns(steps).group_by("step", maintain_order=True).head(launches)
    recorded = int(mine["dur_ns"].sum()) // case.step_count
    device_ns = (
        elements * _BYTES_PER_ELEMENT / (bandwidth * _BANDWIDTH_SHARE) * 1e9
        if bandwidth and elements
        else None
    )
    each_ns = min(round(device_ns) if device_ns is not None else recorded, recorded) // launches
    host_ns = tensors * _HOST_NS_PER_TENSOR // launches + _HOST_NS_PER_LAUNCH
    tasks = kept["task"].to_list()
    return Edit(
        removed_host=ranges,
        removed_tasks=np.setdiff1d(mine["task"].to_numpy(), kept["task"].to_numpy()),
        durations_ns=dict.fromkeys(tasks, each_ns),
        modelled=frozenset(tasks),
        added_host_ns=dict.fromkeys(kept["call"].to_list(), host_ns),
    )
