"""Convolutions convert between memory layouts at every layer."""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.names.per_name import matching
from foretrace.analyze.concepts.work.flops import op_work
from foretrace.analyze.concepts.work.work_models.call import Tensor, parse
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import copy_readers
from foretrace.diagnose.patterns.device_copies import SAME_TYPE, device_copies, without_copies
from foretrace.diagnose.rule import KERNELS, headline, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.errors import MissingDataError
from foretrace.predict.changes import Change
from foretrace.predict.costs import streaming
from foretrace.predict.costs.channels_last import (
    CONVERSIONS,
    DEPTHWISE_TIME,
    FASTER_KERNELS,
    NORM_PASSES,
    NORM_SHARE,
    RESIZING_TIME,
    SERVED_NORM_SHARE,
    TURNING_SHARE,
    TURNINGS,
    VOLUME_NORM_SHARE,
)
from foretrace.predict.costs.operator_calls import CAST_NS
from foretrace.predict.costs.precision import ITEM_BYTES
from foretrace.predict.edits import Edit, merge
from foretrace.predict.numbers import ProgramTime
from foretrace.sourced import JUDGEMENT, Count, Share

LEAST_SHARE = Share(0.02, "GPU time", JUDGEMENT)
# torch's own kernels for depthwise convolutions; for channels-last tensors cuDNN's take their place.
_DEPTHWISE = r"conv_depthwise2d_(?:forward|backward|grad_weight)_kernel"
_HALF = "Half|BFloat16"
# Normalisation and pooling kernels for NCHW; those for NHWC are bound by memory.
_PLANAR = (
    r"batch_norm_(collect_statistics|transform_input|backward_reduce|backward_elemt|backward)_?(kernel|cuda)|"
    r"max_pool_(forward|backward)_nchw"
)
_TRANSFORMS, _STATISTICS = "batch_norm_transform_input", "batch_norm_collect_statistics"
_RESIZES = r"upsample_bilinear2d_backward_out_frame"
_SEQUENCE = re.compile(r"aten::conv(?:_transpose)?1d$")
_THREE = re.compile(r"\[\[\d+, \d+, \d+\],")  # the first tensor has three dimensions
_FIVE = re.compile(r"\[\[\d+(?:, \d+){4}\]")
# Norms that copy channels-last tensors into planar ones first: around them conversions stay, by slower kernels.
_PLANAR_ONLY = ("aten::native_group_norm", "aten::instance_norm")
_IMAGE = Count(4, "extents, from which on a tensor has a channels-last order", "torch.channels_last")
_PLANAR_ONLY_DOUBT = "group and instance norm take planar tensors alone, so that conversions stay around them"


def _fix(*, volumes: bool) -> Fix:
    order = "torch.channels_last_3d" if volumes else "torch.channels_last"
    return Fix(
        "Keep model and input in channels-last order.",
        f"model = model.to(memory_format={order})\nx = x.to(memory_format={order})\n"
        "# where the code calls .view() on activations: .reshape()",
    )


@needs(KERNELS)
@headline("{conversions_pct:.0f} % of GPU time only changes layouts")
@rule("Layouts are converted back and forth", "Layouts", see="roles")
def layout_conversions(case: Case) -> Iterator[Finding]:
    """Kernels that turn NCHW tensors into NHWC and back around convolutions, and depthwise ones for NCHW.

    Finds cuDNN's and MIOpen's layout conversion kernels, and torch's depthwise kernels in half precision, in place of
    which cuDNN has faster ones for channels last, where both together take at least {LEAST_SHARE} of GPU time.
    Convolutions of one dimension are left out: torch has no other layout for them.

    Slow
        model = ResNet().cuda().half()
        y = model(x)

    Fast
        model = ResNet().cuda().half().to(memory_format=torch.channels_last)
        y = model(x.to(memory_format=torch.channels_last))

    Why
    Tensor cores want channels last. A model in the default layout pays for the conversion at every layer, forward and
    backward, and its normalisation and pooling kernels are slower than those for channels last.

    How the worth is predicted
    The conversions go, and with them copies by torch between the two orders, such as layer norm's of a permuted tensor.
    Depthwise kernels take {DEPTHWISE_TIME} of their time, the gradient of bilinear resizing {RESIZING_TIME}.
    Normalisation and pooling move their bytes at {SERVED_NORM_SHARE} of the bandwidth, in training {NORM_PASSES} times as
    many at {NORM_SHARE}; those of volumes (five dimensions) move theirs at {VOLUME_NORM_SHARE} in the forward pass of
    training, so that they may take longer than now. At best, all of it is {FASTER_KERNELS} times as fast.

    A group norm takes planar tensors alone: torch copies its input into that order and its result back, at {TURNING_SHARE} of
    the bandwidth in fp32 and half of that in half precision; at best, only one of the two is copied.

    When not
    A layer has no channels-last kernel: then its conversion stays. Nothing is promised where group or instance norm runs,
    which has none.
    """
    converting = case.device_work(matching(case.tasks["name"], CONVERSIONS))
    converting = converting.where(~_of_sequences(converting))
    depthwise = _planar_depthwise(case)
    share = (converting.dur_ns + depthwise.dur_ns) / case.device_ns
    if too_little(
        case, "layouts are converted, or depthwise kernels take planar tensors", share, LEAST_SHARE
    ):
        return
    mostly_converts = converting.dur_ns >= depthwise.dur_ns
    slow = converting if mostly_converts else depthwise
    evidence = converting.evidence("conversions")
    evidence |= {"depthwise_ns": depthwise.dur_ns // case.step_count, "spans": evidence.pop("spans")}
    yield Finding(
        says=f"{slow.per_step_count:.0f} conversions between layouts a step take {slow.gpu_pct:.0f} % of GPU time."
        if mostly_converts
        else f"{slow.per_step_count:.0f} depthwise kernels a step for planar (NCHW) tensors take {slow.gpu_pct:.0f} % of "
        "GPU time.",
        why="They move every activation without computing anything."
        if mostly_converts
        else "For channels-last tensors there are kernels that take about a third of their time.",
        fix=_fix(volumes=any(_is_of_volumes(case, op) for op in slow.rows["op_id"].drop_nulls().unique())),
        evidence={**evidence, "spans": slow.spans()},
        where=case.places(slow.rows["op_id"].drop_nulls().unique().to_list()),
        change=_change(case, _in_channels_last(converting, depthwise)),
        unless="a layer has no channels-last kernel: then its conversion stays.",
    )


def _change(case: Case, converted: Edit) -> Change:
    """The change, with what group norms add to it."""
    turned = [_group_norms(case, copies) for copies in (int(TURNINGS), 1)]
    if any(edit.durations_ns for edit in turned):
        edit, *others = (merge((converted, around)) for around in turned)
    else:
        edit, others = converted, []
    return Change(
        "conversions removed, normalisation, pooling and depthwise convolutions in channels-last order",
        edit,
        others=tuple(others),
        upside=FASTER_KERNELS,
        doubt=_PLANAR_ONLY_DOUBT if case.names.is_in(_PLANAR_ONLY).any() else "",
    )


def _group_norms(case: Case, copies: int) -> Edit:
    """Group norms of images with so many copies into the other order."""
    if case.device is None or not case.device.memory_bandwidth_bytes:
        return Edit()
    norms = case.device_work(pl.col("kind") == "kernel").with_arguments()
    norms = norms.where(case.op_names(norms.rows["op_id"]) == _PLANAR_ONLY[0])
    first = norms.rows.unique("op_id", keep="first", maintain_order=True)
    durations, added = {}, {}
    for task, call, dur, shapes, dtypes in first.select(
        "task", "call", "dur_ns", "shapes", "dtypes"
    ).iter_rows():
        tensor = _first_tensor(shapes, dtypes)
        if tensor is not None and len(tensor.shape) >= _IMAGE:
            share = TURNING_SHARE * tensor.item_bytes / ITEM_BYTES["fp32"]
            copying = streaming.moving_s(case.device, 2 * tensor.bytes, share) * 1e9
            durations[task], added[call] = dur + round(copies * copying), copies * CAST_NS
    return Edit(durations_ns=durations, modelled=frozenset(durations), added_host_ns=added)


def _first_tensor(shapes: str | None, dtypes: str | None) -> Tensor | None:
    """The first tensor of an operator; None where it was not recorded as torch writes it."""
    try:
        return parse("", shapes or "[]", dtypes, None, None, None).given(0)
    except (ValueError, TypeError):
        return None


def _in_channels_last(converting: DeviceWork, depthwise: DeviceWork) -> Edit:
    """No conversions, and kernels for channels last in place of those for planar tensors."""
    case = converting.case
    durations = _channels_last_norms(case) if converting.dur_ns else {}
    resizing = case.device_work(matching(case.tasks["name"], _RESIZES))
    for task, dur in resizing.rows.select("task", "dur_ns").iter_rows() if converting.dur_ns else ():
        durations[task] = round(dur * RESIZING_TIME)
    for task, dur in depthwise.rows.select("task", "dur_ns").iter_rows():
        durations[task] = round(dur * DEPTHWISE_TIME)
    converted = Edit(
        removed_host=_between_launches(converting),
        removed_tasks=converting.tasks,
        durations_ns=durations,
        modelled=frozenset(durations),
    )
    return merge((converted, without_copies(_copies_between_orders(case))))


def _between_launches(converting: DeviceWork) -> ProgramTime:
    """The host's time from one launch of a convolution to the next, where that is of a conversion."""
    program, tasks = converting.case.program, converting.case.tasks
    launches = tasks.select("call", "op_id", "task").unique("call", maintain_order=True).sort("call")
    inside = (launches["op_id"] == launches["op_id"].shift(1)).fill_null(value=False)
    launches = launches.with_columns(before=pl.col("call").shift(1)).filter(inside)
    chosen = launches.filter(pl.col("call").is_in(converting.rows["call"].implode()))
    return ProgramTime(
        intervals.union(
            program.call_end_ns[chosen["before"].to_numpy()], program.call_start_ns[chosen["call"].to_numpy()]
        )
    )


def _copies_between_orders(case: Case) -> DeviceWork:
    """Copies by torch itself of a planar tensor into channels-last order or back, as layer norm makes of a permuted one."""
    try:
        copies = device_copies(case).where(SAME_TYPE)
    except MissingDataError:  # no shapes: the conversions are found by their names alone
        return DeviceWork(case, case.tasks.clear())
    between = [
        len(layouts) > 1 and any(one.ordered and other.turned for one, other in (layouts[:2], layouts[1::-1]))
        for layouts in (
            copy_readers.tensors(*row) for row in copies.rows.select("shapes", "strides").iter_rows()
        )
    ]
    return copies.where(pl.Series(between, dtype=pl.Boolean))


def _is_of_volumes(case: Case, op: int) -> bool:
    """Whether the first tensor of an operator has depth, height and width."""
    return bool(_FIVE.match(case.argument(op, "shapes")))


def _of_sequences(converting: DeviceWork) -> pl.Series:
    """Whether a convolution of one dimension converts: its tensors of three have no channels-last order."""
    case = converting.case
    sequences = {
        op
        for op in set(converting.ops)
        if any(
            _SEQUENCE.match(case.name(caller)) or _THREE.match(case.argument(caller, "shapes"))
            for caller in case.callers(op)
        )
    }
    return pl.Series([op in sequences for op in converting.rows["op_id"]], dtype=pl.Boolean)


def _planar_depthwise(case: Case) -> DeviceWork:
    """Depthwise kernels of half precision for planar tensors."""
    names = case.tasks["name"]
    return case.device_work(matching(names, _DEPTHWISE) & matching(names, _HALF))


def _channels_last_norms(case: Case) -> dict[int, int]:
    """New durations of normalisation and pooling kernels: what their operator has to move, near the memory's speed."""
    if case.device is None or not case.device.memory_bandwidth_bytes:
        return {}
    moved = op_work(case.trace).select(pl.col("span_id").alias("op_id"), "bytes")
    name = pl.col("name").cast(pl.String)
    planar = case.tasks.filter(name.str.contains(_PLANAR))
    served = name.str.contains(_TRANSFORMS) & ~name.str.contains(_STATISTICS).any().over("op_id")
    volumes = [op for op in planar["op_id"].drop_nulls().unique() if _is_of_volumes(case, op)]
    slow = pl.col("op_id").is_in(volumes) & ~name.str.contains("backward")
    rate = (
        pl.when(served)
        .then(SERVED_NORM_SHARE)
        .when(slow)
        .then(VOLUME_NORM_SHARE)
        .otherwise(NORM_SHARE / NORM_PASSES)
    )
    planar = planar.join(moved, on="op_id", maintain_order="left").with_columns(
        slow=slow,
        share=pl.col("dur_ns") / pl.col("dur_ns").sum().over("op_id"),
        rate=rate * case.device.memory_bandwidth_bytes,
    )
    return {
        task: round(moved_bytes * share / rate * 1e9)
        for task, dur, moved_bytes, share, rate, slow in planar.select(
            "task", "dur_ns", "bytes", "share", "rate", "slow"
        ).iter_rows()
        if moved_bytes is not None and share is not None and (slow or moved_bytes * share / rate * 1e9 < dur)
    }
