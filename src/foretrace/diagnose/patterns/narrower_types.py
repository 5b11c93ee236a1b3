"""Work in fp32 as it would run in TF32 or half precision: products on the tensor cores, the rest on fewer bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.patterns.autocast import Autocast, Cast, under_autocast
from foretrace.hardware import Device, peak_flops
from foretrace.predict.costs import batch_norm, convolution, gemm, streaming
from foretrace.predict.costs.operator_calls import CAST_BACK_NS, CAST_NS
from foretrace.predict.costs.precision import (
    HALF_ATTENTION_NS,
    HALF_ATTENTION_TIME,
    HALF_BYTES_ROWS_TIME,
    HALF_BYTES_TIME,
    ITEM_BYTES,
)
from foretrace.predict.edits import Edit

_FP32 = '"float"'  # among the types of an operator's arguments
_HALF = ("bf16", "fp16")
_ATTENTION = "attention"
_KERNEL_LAYOUT = re.compile(r"_[nt][nt](?=_|$)")
_CONVOLUTION = re.compile("conv")
_OF_ROWS = re.compile(r"norm|softmax")
_BATCH_NORM = r"^aten::(?:cudnn|native)_batch_norm(?:_backward)?$"
_PLANAR_NORM = r"_1C11_|batch_norm_(?:backward|collect_statistics|transform_input)_kernel<"
_STATISTICS = r"_tr_1C11_|collect_statistics"
_CAST_BYTES = ITEM_BYTES["fp32"] + ITEM_BYTES["bf16"]  # of an element: one read, one written


@dataclass(frozen=True)
class Narrower:
    """The products of a program that are not in half precision, on a device whose peaks are known."""

    case: Case
    device: Device
    products: pl.DataFrame

    @property
    def convolves_in_tf32(self) -> bool:
        """Whether some convolutions run in TF32, as torch allows them to unless it is told otherwise."""
        return bool(_of_convolutions(self.products)["tensor_cores"].fill_null(value=False).any())

    @cached_property
    def _told(self) -> Autocast:
        return under_autocast(self.case)

    @property
    def cast_count(self) -> float:
        """How many casts autocast adds to a step."""
        return self._told.cast_count / self.case.step_count

    def tf32(self) -> Edit:
        """Products on the CUDA cores, in TF32; convolutions stay where some run in TF32 already, for they may."""
        on_cuda_cores = self.products.filter(~pl.col("tensor_cores").fill_null(value=True))
        work = DeviceWork(self.case, on_cuda_cores)
        durations = _products_ns(work, self.device, "tf32")
        durations |= {} if self.convolves_in_tf32 else _convolutions_ns(work, self.device, "tf32")
        return Edit(durations_ns=durations, modelled=frozenset(durations))

    def autocast(self, dtype: str = "bf16") -> Edit:
        """Under autocast: products in half precision, with its casts on the device and on the host."""
        told = self._told
        durations = {task: dur for task, dur in self._in_half(dtype).items() if task in told.products}
        dur_ns = self.case.program.task_dur_ns
        norms = self._norms_ns if dtype == "bf16" else {}
        for task, share in told.shares.items():
            durations[task] = norms.get(task, _on_fewer_bytes(int(dur_ns[task]), share))
        added: dict[int, int] = {}
        calls = self.case.program.task_call
        for by_task, cost in ((told.casts, CAST_NS), (told.casts_back, CAST_BACK_NS)):
            for task, casts in by_task.items():
                durations[task] = durations.get(task, int(dur_ns[task])) + sum(map(self._cast_ns, casts))
                call = int(calls[task])
                added[call] = added.get(call, 0) + len(casts) * cost
        return Edit(durations_ns=durations, modelled=frozenset(durations), added_host_ns=added)

    def weights(self, dtype: str = "bf16") -> Edit:
        """All that computes in fp32, in half precision, parameters included: no casts."""
        work = self.case.device_work(pl.col("kind") == "kernel").with_arguments()
        work = work.where(pl.col("dtypes").str.contains(_FP32))
        durations = {
            task: _on_fewer_bytes(dur, HALF_BYTES_ROWS_TIME if _OF_ROWS.search(op or "") else HALF_BYTES_TIME)
            for task, dur, op in zip(
                work.rows["task"], work.rows["dur_ns"], self.case.op_names(work.rows["op_id"]), strict=True
            )
            if not _CONVOLUTION.search(op or "")  # by single channels they do not gain
        }
        durations |= self._norms_ns if dtype == "bf16" else {}
        durations |= self._in_half(dtype)
        return Edit(durations_ns=durations, modelled=frozenset(durations))

    @cached_property
    def _norms_ns(self) -> dict[int, int]:
        """Kernels of batch norm over planar tensors in fp32, with their time in torch's own kernels of bf16."""
        work = (
            self.case.device_work(pl.col("kind") == "kernel")
            .with_arguments()
            .where(pl.col("dtypes").str.contains(_FP32))
        )
        rows = work.rows.with_columns(
            op=self.case.op_names(work.rows["op_id"]), text=pl.col("name").cast(pl.String)
        )
        rows = rows.filter(pl.col("op").str.contains(_BATCH_NORM), pl.col("text").str.contains(_PLANAR_NORM))
        trains = pl.col("text").str.contains(_STATISTICS).any().over("op_id")
        rows = rows.with_columns(trains=trains, of_op_ns=pl.col("dur_ns").sum().over("op_id"))
        durations: dict[int, int] = {}
        for task, dur, of_op, op, shapes, trains in rows.select(
            "task", "dur_ns", "of_op_ns", "op", "shapes", "trains"
        ).iter_rows():
            normed = batch_norm.size(shapes)
            if normed is not None:
                needed = batch_norm.time_ns(
                    self.device, normed, backward=op.endswith("backward"), trains=trains
                )
                durations[task] = round(dur * needed / of_op)
        return durations

    def _in_half(self, dtype: str) -> dict[int, int]:
        """Products, convolutions and attention in half precision."""
        work = DeviceWork(self.case, self.products)
        attention = self.case.device_work(pl.col("kind") == "kernel").with_arguments()
        attention = attention.where(pl.col("dtypes").str.contains(_FP32))
        attention = attention.where(self.case.op_names(attention.rows["op_id"]).str.contains(_ATTENTION))
        faster = self.device.fp32_flops / (peak_flops(self.device, dtype) or self.device.fp32_flops)
        return (
            {
                task: min(dur, HALF_ATTENTION_NS + round(dur * max(faster, HALF_ATTENTION_TIME)))
                for task, dur in attention.rows.select("task", "dur_ns").iter_rows()
            }
            | _products_ns(work, self.device, dtype)
            | _convolutions_ns(work, self.device, dtype)
        )

    def _cast_ns(self, cast: Cast) -> int:
        share = streaming.WIDENING_SHARE if cast.widens else streaming.BANDWIDTH_SHARE
        moving = streaming.moving_s(self.device, cast.count * _CAST_BYTES, share)
        return round(moving * 1e9) + streaming.START_NS


def narrower(case: Case) -> Narrower | None:
    """The products in fp32 or TF32; None where the device's peaks are not known."""
    if case.device is None:
        return None
    wide = pl.col("operand_dtype").fill_null("fp32").is_in(("fp32", "tf32"))
    return Narrower(case, case.device, case.products.filter(wide))


def _on_fewer_bytes(dur_ns: int, share: float) -> int:
    """A kernel's time, of which its start stays."""
    start = min(dur_ns, int(streaming.START_NS))
    return start + round((dur_ns - start) * share)


def _of_convolutions(products: pl.DataFrame) -> pl.DataFrame:
    return products.filter(pl.col("op").str.contains("conv"))


def _products_ns(products: DeviceWork, device: Device, dtype: str) -> dict[int, int]:
    """Products with their time in a narrower type; without those whose shapes are not known."""
    durations: dict[int, int] = {}
    for task, dur, op, shapes, strides, given, kernel in products.rows.select(
        "task", "dur_ns", "op", "shapes", "strides", "operand_dtype", "text"
    ).iter_rows():
        size = gemm.size(op or "", shapes, strides)
        if size is not None:
            size = size if size.layout else replace(size, layout=_layout(kernel))
            durations[task] = gemm.narrowed_ns(device, dur, size, given or "fp32", dtype)
    return durations


def _layout(kernel: str) -> str:
    """How the operands lie, by a kernel's name: cuBLAS takes them in the other order, and each by columns."""
    found = _KERNEL_LAYOUT.search(kernel)
    return found[0][1:3][::-1].upper() if found else ""


def _convolutions_ns(products: DeviceWork, device: Device, dtype: str) -> dict[int, int]:
    """Convolutions with every kernel of theirs.

    A convolution in fp32 may run as a Fourier transform or Winograd's, in many kernels: one replaces them all. What runs on
    the tensor cores already is scaled by what the two types take; with few channels it takes as long in half precision.
    """
    kernels = _of_convolutions(products.rows.drop_nulls(("op_flops", "op_id")))
    by_op = kernels.group_by("op_id").agg(
        pl.col("op_flops").max(),
        pl.first("op", "shapes"),
        in_tf32=pl.col("tensor_cores").fill_null(value=False).any(),
    )
    work = products.case.tasks.filter(pl.col("op_id").is_in(by_op["op_id"].to_list()))
    planar = pl.col("name").cast(pl.String).str.contains(r"(?i)nchw").any()
    by_op = by_op.join(work.group_by("op_id").agg(pl.col("dur_ns").sum(), planar=planar), on="op_id")
    factors: dict[int, float] = {}
    for op_id, flops, op, shapes, in_tf32, now_ns, planar in by_op.iter_rows():
        size = convolution.size(op, shapes, flops)
        if size is None or (in_tf32 and size.few_channels):
            continue
        needed_ns = convolution.time_ns(device, dtype, size, planar=planar)
        if in_tf32:
            needed_ns *= now_ns / convolution.time_ns(device, "tf32", size, planar=planar)
        factors[op_id] = min(needed_ns / now_ns, 1.0)
    if dtype in _HALF:
        factors |= _grouped(products.case, by_op, work)
    return {
        task: round(dur * factors[op])
        for task, dur, op in work.select("task", "dur_ns", "op_id").iter_rows()
        if op in factors
    }


def _grouped(case: Case, by_op: pl.DataFrame, work: pl.DataFrame) -> dict[int, float]:
    """Convolutions in groups, which may run side by side, and the part of their time that they take in half precision."""
    start = case.trace.spans["start_ns"].gather(work["id"])
    spread = work.with_columns(start_ns=start, end_ns=start + work["dur_ns"]).group_by("op_id")
    taken = dict(spread.agg(pl.col("end_ns").max() - pl.col("start_ns").min()).iter_rows())
    found = (
        (op, convolution.groups(shapes), flops)
        for op, shapes, flops in by_op.select("op_id", "shapes", "op_flops").iter_rows()
    )
    return {op: groups.half_ns(taken[op], flops) / taken[op] for op, groups, flops in found if groups}
