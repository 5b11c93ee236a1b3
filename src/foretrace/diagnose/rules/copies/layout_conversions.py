"""Convolutions convert between memory layouts at every layer."""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.work.flops import op_work
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import copy_readers
from foretrace.diagnose.rule import rule
from foretrace.diagnose.rules.copies.redundant_copies import device_copies, removed
from foretrace.errors import MissingDataError
from foretrace.intervals import Intervals
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit, merge

# Normalisation and pooling kernels for NCHW; those for NHWC are bound by memory.
_PLANAR = r"batch_norm_(collect_statistics|transform_input|backward_reduce|backward_elemt|backward)_?(kernel|cuda)|max_pool_(forward|backward)_nchw"
_NEAR_BANDWIDTH = 0.35  # of the bandwidth, as channels-last batch norm does in two measured pairs
_PASSES = 1.6  # statistics need a pass of their own: 3 tensors moved for 2 forward, 5 for 3 backward
_TRANSFORMS, _STATISTICS = "batch_norm_transform_input", "batch_norm_collect_statistics"
_SERVED = (
    0.55  # of the bandwidth, as batch norm's kernel for channels last reaches where the statistics are given
)
_CONVERTS = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|convertTensor_kernel|batched_transpose_\d+x\d+"
# torch's own kernels for depthwise convolutions; for channels-last tensors cuDNN's take their place, which need 0.35 of
# the time in two measured nets.
_DEPTHWISE = r"conv_depthwise2d_(?:forward|backward|grad_weight)_kernel"
_DEPTHWISE_FACTOR = 0.35
_LEAST_SHARE = 0.02
_FASTER_KERNELS = 1.15  # normalisation and pooling have faster kernels for channels-last tensors too
_SEQUENCE = re.compile(r"aten::conv(?:_transpose)?1d$")
_THREE = re.compile(r"\[\[\d+, \d+, \d+\],")  # the first tensor has three dimensions
# Norms that copy channels-last tensors into planar ones first: around them conversions stay, by slower kernels.
_PLANAR_ONLY = ("aten::native_group_norm", "aten::instance_norm")
_PLANAR_ONLY_DOUBT = "group and instance norm take planar tensors alone, so that conversions stay around them"


@rule(
    title="Layouts are converted back and forth",
    topic="Layouts",
    see="roles",
    headline=lambda e: f"{e['conversions_pct']:.0f} % of GPU time only changes layouts",
)
def layout_conversions(case: Case) -> Iterator[Finding]:
    """Kernels that turn NCHW tensors into NHWC and back around convolutions, and depthwise ones for NCHW.

    What it does
    Looks for cuDNN's and MIOpen's layout conversion kernels that take at least 2 % of the GPU's time, and for
    torch's depthwise kernels in half precision, in place of which cuDNN has faster ones for channels last. Copies by
    torch between the two orders, such as layer norm's of a permuted tensor, go with the conversions. Convolutions of
    one dimension are left out: torch has no other layout for them. Nothing is promised where group or instance norm
    runs, which has no kernel for channels last.

    Why it matters
    Tensor cores want channels last. A model in the default layout pays for the conversion at every layer,
    forward and backward, and its normalisation and pooling kernels are slower than those for channels last.

    Use instead
    model = model.to(memory_format=torch.channels_last), and the input likewise.
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    mine = case.tasks.filter(pl.col("name").cast(pl.String).str.contains(_CONVERTS))
    mine = mine.filter(~_of_sequences(case, mine))
    device_ns = int(case.program.task_dur_ns.sum())
    depthwise = _depthwise(case)
    spent = int(mine["dur_ns"].sum())
    slow_ns = int(depthwise["dur_ns"].sum())
    if spent + slow_ns < _LEAST_SHARE * max(device_ns, 1):
        return
    copies = _copies_between_orders(case)
    new = _planar(case) if spent else {}
    for task, dur in depthwise.select("task", "dur_ns").iter_rows():
        new[task] = round(dur * _DEPTHWISE_FACTOR)
    converting = spent >= slow_ns
    yield Finding(
        says=f"{mine.height / case.step_count:.0f} conversions between layouts a step take "
        f"{100 * spent / device_ns:.0f} % of the GPU's time."
        if converting
        else f"{depthwise.height / case.step_count:.0f} depthwise kernels a step for planar (NCHW) tensors take "
        f"{100 * slow_ns / device_ns:.0f} % of the GPU's time.",
        why="They move every activation without computing anything."
        if converting
        else "For channels-last tensors there are kernels that take about a third of their time.",
        fix=Fix(
            "Keep model and input in channels-last order.",
            "model = model.to(memory_format=torch.channels_last)\n"
            "x = x.to(memory_format=torch.channels_last)",
        ),
        evidence={
            "conversions_ns": spent // case.step_count,
            "conversions_pct": 100 * spent / device_ns,
            "conversions_per_step_count": mine.height / case.step_count,
            "depthwise_ns": slow_ns // case.step_count,
            "spans": (mine if converting else depthwise)["id"].head(5).to_list(),
        },
        where=case.places((mine if converting else depthwise)["op_id"].drop_nulls().unique().to_list()),
        change=Change(
            "conversions removed, normalisation, pooling and depthwise convolutions in channels-last order",
            merge(
                (
                    Edit(
                        removed_host=_between_launches(case, mine),
                        removed_tasks=mine["task"].to_numpy(),
                        durations_ns=new,
                        modelled=frozenset(new),
                    ),
                    removed(case, copies),
                )
            ),
            upside=_FASTER_KERNELS,
            doubt=_PLANAR_ONLY_DOUBT if _planar_only(case) else "",
        ),
        unless="a layer has no channels-last kernel: then its conversion stays.",
    )


def _between_launches(case: Case, mine: pl.DataFrame) -> Intervals:
    """The host's time from one launch of a convolution to the next, where that is of a conversion."""
    program = case.program
    work = case.tasks.select("call", "op_id", "task").unique("call", maintain_order=True).sort("call")
    inside = (work["op_id"] == work["op_id"].shift(1)).fill_null(value=False)
    work = work.with_columns(before=pl.col("call").shift(1)).filter(inside)
    chosen = work.filter(pl.col("call").is_in(mine["call"].implode()))
    return intervals.union(
        program.call_end_ns[chosen["before"].to_numpy()], program.call_start_ns[chosen["call"].to_numpy()]
    )


def _copies_between_orders(case: Case) -> pl.DataFrame:
    """Copies by torch itself of a planar tensor into channels-last order or back, as layer norm makes of a permuted one."""
    try:
        copies = device_copies(case).filter(pl.col("source") == pl.col("target"))
    except MissingDataError:
        return case.tasks.clear()
    between = [
        len(lying) > 1 and any(one.ordered and other.turned for one, other in (lying[:2], lying[1::-1]))
        for lying in (copy_readers.tensors(*row) for row in copies.select("shapes", "strides").iter_rows())
    ]
    return copies.filter(pl.Series(between, dtype=pl.Boolean))


def _of_sequences(case: Case, mine: pl.DataFrame) -> pl.Series:
    """Whether a convolution of one dimension converts: its tensors of three have no channels-last order."""
    names = case.names
    found = {
        op: any(
            _SEQUENCE.match(names[each]) or _THREE.match(case.argument(each, "shapes"))
            for each in case.callers(op)
        )
        for op in mine["op_id"].drop_nulls().unique()
    }
    return pl.Series([found.get(op, False) for op in mine["op_id"]], dtype=pl.Boolean)


def _planar_only(case: Case) -> bool:
    """Whether a norm runs that takes planar tensors alone."""
    names = case.trace.spans["name"].unique().cast(pl.String)
    return bool(names.is_in(_PLANAR_ONLY).any())


def _depthwise(case: Case) -> pl.DataFrame:
    """Depthwise kernels of half precision for planar tensors."""
    name = pl.col("name").cast(pl.String)
    half = name.str.contains("Half|BFloat16")
    return case.tasks.filter(name.str.contains(_DEPTHWISE) & half)


def _planar(case: Case) -> dict[int, int]:
    """New durations of normalisation and pooling kernels: what their operator has to move, near the memory's speed."""
    if case.device is None or not case.device.memory_bandwidth_bytes:
        return {}
    work = op_work(case.trace).select(pl.col("span_id").alias("op_id"), "bytes")
    slow = case.tasks.filter(pl.col("name").cast(pl.String).str.contains(_PLANAR))
    name = pl.col("name").cast(pl.String)
    served = name.str.contains(_TRANSFORMS) & ~name.str.contains(_STATISTICS).any().over("op_id")
    rate = pl.when(served).then(_SERVED).otherwise(_NEAR_BANDWIDTH / _PASSES)
    shared = slow.join(work, on="op_id", maintain_order="left").with_columns(
        share=pl.col("dur_ns") / pl.col("dur_ns").sum().over("op_id"),
        rate=rate * case.device.memory_bandwidth_bytes,
    )
    return {
        task: round(moved * share / rate * 1e9)
        for task, dur, moved, share, rate in shared.select(
            "task", "dur_ns", "bytes", "share", "rate"
        ).iter_rows()
        if moved is not None and share is not None and moved * share / rate * 1e9 < dur
    }
