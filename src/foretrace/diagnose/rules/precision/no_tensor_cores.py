"""Matrix products in single precision run on the CUDA cores, and the tensor cores idle."""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.costly_products import (  # noqa: F401  # named on the page
    LEAST_BUSY,
    LEAST_SHARE,
    costly_products,
)
from foretrace.diagnose.rule import KERNELS, healthy, needs, rule
from foretrace.hardware import Device, peak_flops
from foretrace.predict.changes import Change
from foretrace.predict.costs import convolution, gemm
from foretrace.predict.costs.convolution import PEAK_SHARE as CONVOLUTION_SHARE  # noqa: F401  # named on the page
from foretrace.predict.costs.gemm import PEAK_SHARE, TURNED_SHARE
from foretrace.predict.costs.operator_calls import AUTOCAST_NS
from foretrace.predict.costs.precision import HALF_ATTENTION_TIME, HALF_BYTES_TIME, ITEM_BYTES
from foretrace.predict.costs.streaming import BANDWIDTH_SHARE  # noqa: F401  # named on the page
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Share

LEAST_SAVED = Share(0.03, "the step, saved by tensor cores", JUDGEMENT)
_TF32 = Fix(
    "Let single precision use the tensor cores (TF32), or compute in bf16 under autocast, which is faster still.",
    'torch.set_float32_matmul_precision("high")\n'
    "torch.backends.cudnn.allow_tf32 = True\n"
    "# or, faster still:\n"
    'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = model(x)',
)
_FP16 = Fix(
    "Compute in fp16 under autocast: this GPU's tensor cores take nothing else.",
    'scaler = torch.amp.GradScaler("cuda")\nwith torch.autocast("cuda", dtype=torch.float16):\n    loss = model(x)',
)
# In names of cuBLAS's kernels: neither operand lies as the tensor cores load TF32.
_TURNED = re.compile(r"_nt_|_nt$")
_FP32 = '"float"'  # among the types of an operator's arguments


@needs(KERNELS)
@healthy("gpu-efficiency", "in {tensor_core_gemm_pct:.0f} % of matrix multiply time")
@rule("Matrix multiplies do not use tensor cores", "Tensor cores", see="gpu-efficiency")
def no_tensor_cores(case: Case) -> Iterator[Finding]:
    """Matrix products and convolutions in fp32 on the CUDA cores, where tensor cores could run them.

    Finds kernels that multiply matrices without tensor cores, by their names, where they take at least {LEAST_SHARE} of
    GPU time and tensor cores would save at least {LEAST_SAVED} of the step. Nothing is said where the GPU works less than
    {LEAST_BUSY} of the step: it waits for the host, not for products.

    Slow
        y = model(x)  # fp32, and torch's defaults

    Fast
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        y = model(x)

    Why
    The tensor cores multiply several times faster than the CUDA cores: 494 TFLOP/s in TF32 on an H200, 67 in fp32. torch
    uses them for fp32 products only if it is told that TF32's ten bits of mantissa are enough.

    How the worth is predicted
    Each product is replaced by a TF32 product of its size (fp16 where the GPU has no TF32). It takes the larger of two
    times: its FLOPs at {PEAK_SHARE} of the peak ({TURNED_SHARE} where both operands must be transposed, as for a
    weight's gradient), less what the last wave of tiles leaves idle, with its result written; and its bytes at
    {BANDWIDTH_SHARE} of the bandwidth. It gains no more than the ratio of the peaks: what a kernel loses otherwise, it
    loses on tensor cores too. Products of few rows, which wait for memory, and groups of few channels stay.

    A convolution reaches {CONVOLUTION_SHARE} of the peak; its tiles are filled as far as its channels reach, and planar
    (NCHW) tensors are read and written once more, for they are converted.

    Where nothing is trained, a model may as well be kept in bf16: the better end of the range is that, with
    {HALF_BYTES_TIME} of the time for every other kernel of fp32.

    When not
    The results need all of fp32's 23 bits of mantissa; in fp16, the values may leave its range.
    """
    on_cuda_cores = ~pl.col("tensor_cores").fill_null(value=True)
    products = costly_products(case, on_cuda_cores, pl.col("operand_dtype").fill_null("fp32") == "fp32")
    device = case.device
    if not len(products) or not (device is None or device.tf32_flops or device.fp16_flops):
        return
    tf32 = device is None or device.tf32_flops is not None
    durations = {} if device is None else _on_tensor_cores(products, device, "tf32" if tf32 else "fp16")
    before_ns = products.where(pl.col("task").is_in(list(durations))).dur_ns
    if durations and before_ns - sum(durations.values()) < LEAST_SAVED * case.step_ns * case.step_count:
        return
    longest_first = DeviceWork(case, products.rows.sort("dur_ns", descending=True))
    yield Finding(
        says=f"{products.per_step_count:.0f} matrix products a step run in fp32 on the CUDA cores: "
        f"{products.gpu_pct:.0f} % of GPU time.",
        why="The tensor cores, which multiply several times faster, idle.",
        fix=_TF32 if tf32 else _FP16,
        evidence=products.evidence("products", counted="kernels") | _reached(products),
        where=longest_first.places(),
        change=_change(products, device, durations, tf32=tf32) if device and durations else None,
        unless="the results need all of fp32's 23 bits of mantissa."
        if tf32
        else "the values leave fp16's range; casts of weights and activations cost time that is not counted here.",
    )


def _reached(products: DeviceWork) -> dict[str, float]:
    """The rate of those products whose FLOPs are known."""
    known = products.where(pl.col("op_flops").is_not_null())
    flops = int(known.rows["op_flops"].sum())
    return {"flops_per_s": flops / max(known.dur_ns, 1) * 1e9} if flops else {}


def _change(products: DeviceWork, device: Device, durations: dict[int, int], *, tf32: bool) -> Change:
    """The products on tensor cores, with autocast's casts on the host where there is no TF32."""
    calls = products.where(pl.col("task").is_in(list(durations))).rows["call"].to_list()
    casts = {} if tf32 else dict.fromkeys(calls, int(AUTOCAST_NS))
    edit = Edit(durations_ns=durations, modelled=frozenset(durations), added_host_ns=casts)
    says = f"matrix products in {'tf32' if tf32 else 'fp16'} on tensor cores"
    if not tf32 or products.case.trains:
        return Change(says, edit)
    half = _all_in_half(products, device)
    return Change(
        f"{says}; at the better end of the range, all in bf16",
        edit,
        others=(Edit(durations_ns=half, modelled=frozenset(half)),),
    )


def _on_tensor_cores(products: DeviceWork, device: Device, dtype: str) -> dict[int, int]:
    """The tasks with their time on tensor cores; without those whose shapes are not known."""
    peak = peak_flops(device, dtype) or 1.0
    durations: dict[int, int] = {}
    for task, dur, op, shapes, kernel in products.rows.select(
        "task", "dur_ns", "op", "shapes", "text"
    ).iter_rows():
        size = gemm.size(op or "", shapes)
        if size is None:
            continue
        turned = dtype == "tf32" and _TURNED.search(kernel)
        share = TURNED_SHARE if turned else PEAK_SHARE
        needed_ns = gemm.time_ns(device, dtype, size, ITEM_BYTES[dtype], share=share) or dur
        needed_ns = max(needed_ns, round(dur * device.fp32_flops / peak))
        durations[task] = dur if _waits_for_memory(device, size) else min(dur, needed_ns)
    return durations | _convolutions(products, device, peak)


def _waits_for_memory(device: Device, size: gemm.Size) -> bool:
    """Whether the CUDA cores multiply faster than the memory delivers: few rows, such as those of one request."""
    computing = size.flops / device.fp32_flops
    return size.bytes(ITEM_BYTES["fp32"]) / device.memory_bandwidth_bytes > computing


def _convolutions(products: DeviceWork, device: Device, peak: float) -> dict[int, int]:
    """Convolutions on tensor cores, with every kernel of theirs.

    A convolution in fp32 may run as a Fourier transform or Winograd's, in many kernels: one replaces them all.
    """
    kernels = products.rows.drop_nulls(("op_flops", "op_id")).filter(pl.col("op").str.contains("conv"))
    planar = pl.col("text").str.contains(r"(?i)nchw").any()
    by_op = kernels.group_by("op_id").agg(
        pl.col("op_flops", "op_bytes").max(), pl.first("shapes"), planar=planar
    )
    needed_ns = {
        op: convolution.time_ns(device, peak, flops, moved_bytes, shapes=shapes, planar=is_planar)
        for op, flops, moved_bytes, shapes, is_planar in by_op.iter_rows()
    }
    work = products.case.tasks.filter(pl.col("op_id").is_in(list(needed_ns)))
    work = work.with_columns(of_op_ns=pl.col("dur_ns").sum().over("op_id"))
    return {
        task: round(dur * (needed_ns[op] / of_op_ns))
        for task, dur, op, of_op_ns in work.select("task", "dur_ns", "op_id", "of_op_ns").iter_rows()
        if needed_ns[op] < of_op_ns
    }


def _all_in_half(products: DeviceWork, device: Device) -> dict[int, int]:
    """All that computes in fp32, in bf16: products and attention on tensor cores, the rest on half the bytes."""
    work = products.case.device_work(pl.col("kind") == "kernel").with_arguments()
    work = work.where(pl.col("dtypes").str.contains(_FP32))
    attends = products.case.op_names(work.rows["op_id"]).str.contains("attention")
    faster = device.fp32_flops / (peak_flops(device, "bf16") or device.fp32_flops)
    durations = {
        task: round(dur * (max(faster, HALF_ATTENTION_TIME) if attention else HALF_BYTES_TIME))
        for task, dur, attention in zip(work.rows["task"], work.rows["dur_ns"], attends, strict=True)
    }
    return durations | _on_tensor_cores(products, device, "bf16")
