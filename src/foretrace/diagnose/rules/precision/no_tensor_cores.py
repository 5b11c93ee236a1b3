"""Matrix products in single precision run on the CUDA cores, and the tensor cores idle."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import Healthy, rule
from foretrace.hardware import Device, peak_flops
from foretrace.predict.changes import Change
from foretrace.predict.costs import convolution, gemm, streaming
from foretrace.predict.edits import Edit

_LEAST_SHARE = 0.03  # of the GPU's time; of the step, for what tensor cores would save
_LEAST_BUSY = 1 / 3  # of the step: a GPU that works less waits for the host, not for products
_CAST_HOST_NS = 20_000  # autocast casts both operands of a product: two operators more
_HALF_BYTES, _SINGLE_BYTES = 2, 4
_HALF_TIME = 0.55  # of the same operator on half the bytes
_LEAST_OF_ATTENTION = (
    0.1  # fp32's fused kernels reach 55 % of their peak, bf16's 75 % less an exponential a score
)
_LEAST_CHANNELS = 16  # of a group of a convolution: the depth of one step of the tensor cores
_TF32 = Fix(
    "Let single precision use the tensor cores (TF32), or compute in bf16 under autocast, which is faster still.",
    'torch.set_float32_matmul_precision("high")\n'
    "torch.backends.cudnn.allow_tf32 = True\n"
    "# or, faster still:\n"
    'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = model(x)',
)
_TURNED = re.compile(
    r"_nt_|_nt$"
)  # in names of cuBLAS's kernels: neither operand lies as the tensor cores load TF32
_DOUBLE = r"\bdouble\b"  # in the templates of torch's kernels
_SINGLE = Fix(
    "Convert data and model to fp32; NumPy's arrays are fp64 unless told otherwise.",
    "x = torch.from_numpy(array).float()\nmodel = model.float()",
)
_AUTOCAST = Fix(
    "Compute in fp16 under autocast: this GPU's tensor cores take nothing else.",
    'scaler = torch.amp.GradScaler("cuda")\nwith torch.autocast("cuda", dtype=torch.float16):\n    loss = model(x)',
)


def _no_issue(values: Mapping[str, Any]) -> str | None:
    share = values.get("tensor_core_gemm_pct")
    return None if share is None else f"in {share:.0f} % of matrix multiply time"


@rule(
    title="Matrix multiplies do not use tensor cores",
    topic="Tensor cores",
    see="gpu-efficiency",
    healthy=Healthy("gpu-efficiency", _no_issue),
)
def no_tensor_cores(case: Case) -> Iterator[Finding]:
    """Matrix products and convolutions in fp32 on the CUDA cores, where tensor cores could run them.

    What it does
    Looks for kernels that multiply matrices without tensor cores, by their names, and take at least 3 % of the
    GPU's time. Each is replaced by a TF32 product of its size (fp16 where the GPU has no TF32): the larger of
    its FLOPs at 84 % of the peak (52 % where both operands must be turned, as for a weight's gradient), less what the
    last wave of tiles leaves idle, with its result written, and its bytes at 80 % of the bandwidth, and no more than the
    ratio of the peaks: what a kernel loses otherwise, it loses on tensor cores too. Products of few rows, which wait for memory, and groups of few channels stay. A convolution reaches 65 %; its tiles are filled as far as its channels reach, and planar (NCHW) tensors are
    read and written once more, for they are converted. Nothing is said where the GPU works less than a third of
    the step: it waits for the host, not for products. Where nothing is trained, a model may as well be kept in bf16: the
    better end of the range is that, with half the bytes for every other kernel of fp32. Products in fp64 are replaced by fp32's, and every other kernel
    of fp64 takes half of its time.

    Why it matters
    The tensor cores multiply several times faster than the CUDA cores: 494 TFLOP/s in TF32 on an H200, 67 in
    fp32. torch uses them for fp32 products only if it is told that TF32's ten bits of mantissa are enough.

    Use instead
    torch.set_float32_matmul_precision("high"), or torch.autocast("cuda", dtype=torch.bfloat16).
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    device_ns = int(case.program.task_dur_ns.sum())
    if device_ns < _LEAST_BUSY * case.step_ns * case.step_count:
        return
    found = case.products
    doubles = found.filter(pl.col("operand_dtype") == "fp64")
    if int(doubles["dur_ns"].sum()) >= _LEAST_SHARE * max(device_ns, 1):
        yield _in_double(case, doubles, device_ns)
    mine = found.filter(
        ~pl.col("tensor_cores").fill_null(value=True) & (pl.col("operand_dtype").fill_null("fp32") == "fp32")
    )
    spent = int(mine["dur_ns"].sum())
    capable = case.device is None or bool(case.device.tf32_flops or case.device.fp16_flops)
    if mine.is_empty() or spent < _LEAST_SHARE * max(device_ns, 1) or not capable:
        return
    tf32 = case.device is None or case.device.tf32_flops is not None
    shorter = _shorter(case, mine, dtype="tf32" if tf32 else "fp16")
    before = mine.filter(pl.col("task").is_in(list(shorter)))["dur_ns"].sum()
    if shorter and before - sum(shorter.values()) < _LEAST_SHARE * case.step_ns * case.step_count:
        return
    yield _finding(case, mine, shorter, spent / device_ns, tf32=tf32)


def _in_double(case: Case, mine: pl.DataFrame, device_ns: int) -> Finding:
    spent = int(mine["dur_ns"].sum())
    return Finding(
        says=f"{mine.height / case.step_count:.0f} matrix products a step run in fp64: {100 * spent / device_ns:.0f} % of the "
        "GPU's time.",
        why="Every tensor is twice as large as in fp32, and TF32 and bf16 are out of reach.",
        fix=_SINGLE,
        evidence={
            "products_ns": spent // case.step_count,
            "products_pct": 100 * spent / device_ns,
            "kernels_per_step_count": mine.height / case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine.sort("dur_ns", descending=True)["op_id"].drop_nulls().to_list()),
        change=_change_to_single(case, mine),
        unless="the results need fp64's 52 bits of mantissa.",
    )


def _change_to_single(case: Case, mine: pl.DataFrame) -> Change | None:
    """The products in fp32, with TF32 at the better end, and half the bytes for every other kernel of fp64."""
    if case.device is None:
        return None
    rest = case.tasks.filter(pl.col("name").cast(pl.String).str.contains(_DOUBLE))
    rest = rest.filter(~pl.col("task").is_in(mine["task"].implode()))
    halved = {task: dur // 2 for task, dur in rest.select("task", "dur_ns").iter_rows()}
    single, tf32 = (
        Edit(durations_ns=halved | _products_in(case.device, dtype, mine), modelled=frozenset(halved))
        for dtype in ("fp32", "tf32")
    )
    return Change("everything in fp32", single, others=(tf32,))


def _products_in(device: Device, dtype: str, mine: pl.DataFrame) -> dict[int, int]:
    new: dict[int, int] = {}
    for task, dur, op, shapes in mine.select("task", "dur_ns", "op", "shapes").iter_rows():
        if product := gemm.size(op or "", shapes):
            share = gemm.CUDA_CORES_SHARE if dtype == "fp32" else gemm.PEAK_SHARE
            new[task] = min(dur, gemm.time_ns(device, dtype, product, _SINGLE_BYTES, share=share) or dur)
    return new


def _finding(case: Case, mine: pl.DataFrame, shorter: dict[int, int], share: float, *, tf32: bool) -> Finding:
    known = int(mine.drop_nulls("op_flops")["op_flops"].sum())
    evidence = {"products_ns": int(mine["dur_ns"].sum()) // case.step_count, "products_pct": 100 * share,
                "kernels_per_step_count": mine.height / case.step_count, "spans": mine["id"].head(5).to_list()}  # fmt: skip
    if known:
        evidence["flops_per_s"] = known / max(int(mine.drop_nulls("op_flops")["dur_ns"].sum()), 1) * 1e9
    return Finding(
        says=f"{mine.height / case.step_count:.0f} matrix products a step run in fp32 on the CUDA cores: "
        f"{100 * share:.0f} % of the GPU's time.",
        why="The tensor cores, which multiply several times faster, idle.",
        fix=_TF32 if tf32 else _AUTOCAST,
        evidence=evidence,
        where=case.places(mine.sort("dur_ns", descending=True)["op_id"].drop_nulls().to_list()),
        change=_change(case, mine, shorter, tf32=tf32),
        unless="the results need all of fp32's 23 bits of mantissa."
        if tf32
        else "the values leave fp16's range; casts of weights and activations cost time that is not counted here.",
    )


def _shorter(case: Case, mine: pl.DataFrame, *, dtype: str) -> dict[int, int]:
    """The tasks with their time on tensor cores; none where device or shapes are not known."""
    if case.device is None:
        return {}
    item_bytes = _SINGLE_BYTES if dtype == "tf32" else _HALF_BYTES
    peak = peak_flops(case.device, dtype) or 1.0
    shorter: dict[int, int] = {}
    for task, dur, op, shapes, text in mine.select("task", "dur_ns", "op", "shapes", "text").iter_rows():
        product = gemm.size(op or "", shapes)
        if product is not None:
            turned = dtype == "tf32" and bool(_TURNED.search(text))
            share = gemm.TURNED_SHARE if turned else gemm.PEAK_SHARE
            new = gemm.time_ns(case.device, dtype, product, item_bytes, share=share) or dur
            new = max(new, round(dur * case.device.fp32_flops / peak))
            shorter[task] = dur if _bound_by_memory(case.device, product) else min(dur, new)
    return shorter | _shorter_wholes(case, mine, peak)


def _in_half(case: Case, mine: pl.DataFrame) -> dict[int, int]:
    """All that computes in fp32, in bf16: products and attention on tensor cores, the rest on half the bytes."""
    assert case.device is not None
    told = case.trace.ops.select(pl.col("span_id").alias("op_id"), single=pl.col("dtypes").cast(pl.String))
    work = case.tasks.filter(pl.col("kind") == "kernel").join(told, on="op_id", maintain_order="left")
    work = work.filter(pl.col("single").str.contains('"float"'))
    attends = case.trace.spans["name"].gather(work["op_id"]).cast(pl.String).str.contains("attention")
    faster = case.device.fp32_flops / (peak_flops(case.device, "bf16") or case.device.fp32_flops)
    halved = {
        task: round(dur * (max(faster, _LEAST_OF_ATTENTION) if attention else _HALF_TIME))
        for task, dur, attention in zip(work["task"], work["dur_ns"], attends, strict=True)
    }
    return halved | _shorter(case, mine, dtype="bf16")


def _bound_by_memory(device: Device, product: gemm.Size) -> bool:
    """Whether the CUDA cores multiply faster than the memory delivers: few rows, such as those of one request."""
    computing = product.flops / device.fp32_flops
    return product.bytes(_SINGLE_BYTES) / device.memory_bandwidth_bytes > computing


def _shorter_wholes(case: Case, mine: pl.DataFrame, peak: float) -> dict[int, int]:
    """Convolutions, with every kernel of theirs.

    A convolution in fp32 may run as a Fourier transform or Winograd's, in many kernels: one replaces them all.
    """
    assert case.device is not None
    work = mine.drop_nulls(("op_flops", "op_id")).filter(pl.col("op").str.contains("convolution|conv"))
    planar = pl.col("text").str.contains(r"(?i)nchw").any()
    work = work.group_by("op_id").agg(pl.col("op_flops", "op_bytes").max(), pl.first("shapes"), planar=planar)
    used = [_used_share(shapes) for shapes in work["shapes"]]
    computing = pl.col("op_flops") / (peak * convolution.PEAK_SHARE * pl.Series(used, dtype=pl.Float64))
    moving = pl.col("op_bytes") / (case.device.memory_bandwidth_bytes * streaming.BANDWIDTH_SHARE)
    # Tensor cores want channels last: planar tensors are converted, read and written once more.
    needed = pl.max_horizontal(computing, moving) + pl.when("planar").then(2 * moving).otherwise(0.0)
    work = work.with_columns(needed_ns=needed * 1e9)
    tasks = case.tasks.join(work, on="op_id", maintain_order="left").with_columns(
        factor=pl.col("needed_ns") / pl.col("dur_ns").sum().over("op_id")
    )
    return {
        task: round(dur * factor)
        for task, dur, factor in tasks.select("task", "dur_ns", "factor").iter_rows()
        if factor is not None and factor < 1
    }


def _used_share(shapes: str | None) -> float:
    """Of a tile, what the narrower side of a convolution's weight fills: few channels leave most of it idle.

    Groups of few channels, as in depthwise convolutions, use the tensor cores for nothing.
    """
    try:
        *_, given, weight = (each for each in json.loads(shapes or "") if len(each) > 2)
        out, channels = int(weight[0]), int(weight[1])
        if channels < _LEAST_CHANNELS and int(given[1]) > channels:
            return 0.0
        return min(min(out, channels) / gemm.TILE, 1.0)
    except (ValueError, TypeError, LookupError):
        return 1.0


def _change(case: Case, mine: pl.DataFrame, shorter: dict[int, int], *, tf32: bool) -> Change | None:
    """The products on tensor cores, with autocast's casts on the host where there is no TF32."""
    if not shorter:
        return None
    calls = mine.filter(pl.col("task").is_in(list(shorter)))["call"].to_list()
    host = {} if tf32 else dict.fromkeys(calls, _CAST_HOST_NS)
    edit = Edit(durations_ns=shorter, modelled=frozenset(shorter), added_host_ns=host)
    says = f"matrix products in {'tf32' if tf32 else 'fp16'} on tensor cores"
    if not tf32 or case.trace.ops["forward_thread"].fill_null(0).gt(0).any():
        return Change(says, edit)
    half = _in_half(case, mine)
    return Change(
        f"{says}; at the better end of the range, all in bf16",
        edit,
        others=(Edit(durations_ns=half, modelled=frozenset(half)),),
    )
