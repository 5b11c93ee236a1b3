"""Matrix products in single precision: on the CUDA cores, or in TF32 where bf16 may be faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Alternative, Finding, Fix
from foretrace.diagnose.patterns.costly_products import (  # noqa: F401  # named on the page
    LEAST_BUSY,
    LEAST_SHARE,
    costly_products,
)
from foretrace.diagnose.patterns.narrower_types import Narrower, narrower
from foretrace.diagnose.rule import KERNELS, healthy, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs.batch_norm import GRADIENT_NS  # noqa: F401  # named on the page
from foretrace.predict.costs.convolution import (  # noqa: F401  # named on the page
    GROUPED_BACKWARD_TIME,
    GROUPED_TIME,
    LONG_FILTER,
    SLOW_GROUP_NS,
)
from foretrace.predict.costs.convolution import PEAK_SHARE as CONVOLUTION_SHARE  # noqa: F401  # named on the page
from foretrace.predict.costs.operator_calls import CAST_BACK_NS, CAST_NS  # noqa: F401  # named on the page
from foretrace.predict.costs.precision import HALF_BYTES_TIME  # noqa: F401  # named on the page
from foretrace.predict.costs.streaming import BANDWIDTH_SHARE  # noqa: F401  # named on the page
from foretrace.sourced import JUDGEMENT, Share

LEAST_SAVED = Share(0.03, "the step, saved by tensor cores", JUDGEMENT)
LEAST_IN_TF32 = Share(0.10, "GPU time in TF32, from which bf16 is a question", JUDGEMENT)
_TF32 = Fix(
    "Let single precision use the tensor cores (TF32): one line, before the model runs.",
    'torch.set_float32_matmul_precision("high")',
)
_TF32_CONVOLUTIONS = Fix(_TF32.says, f"{_TF32.code}\ntorch.backends.cudnn.allow_tf32 = True")
_AUTOCAST = Fix(
    "Compute in bf16 under autocast: parameters stay in fp32, and are cast in every step.",
    'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = model(x)\nloss.backward()  # not under autocast',
)
_AUTOCAST_SERVING = Fix(
    _AUTOCAST.says, 'with torch.autocast("cuda", dtype=torch.bfloat16):\n    y = model(x)'
)
_WEIGHTS = Fix(
    "Keep the model in bf16, optimizer included: half the bytes everywhere, and no casts.",
    "model.to(torch.bfloat16)  # before the optimizer is made\nloss = model(x.to(torch.bfloat16))",
)
_WEIGHTS_SERVING = Fix(
    "Keep the model in bf16: half the bytes everywhere, and no casts.",
    "model.to(torch.bfloat16)\ny = model(x.to(torch.bfloat16))",
)
_FP16 = Fix(
    "Compute in fp16 under autocast: this GPU's tensor cores take nothing else.",
    'scaler = torch.amp.GradScaler("cuda")\nwith torch.autocast("cuda", dtype=torch.float16):\n    loss = model(x)',
)
_NOT_BF16 = "the results need more than bf16's 8 bits of mantissa."
_NOT_TRAINED = "training needs more: updates smaller than 1/256 of a weight are lost in bf16. Compare the loss over a whole run."


@needs(KERNELS)
@healthy("gpu-efficiency", "in {tensor_core_gemm_pct:.0f} % of matrix multiply time")
@rule("Matrix multiplies could be faster on tensor cores", "Tensor cores", see="gpu-efficiency")
def no_tensor_cores(case: Case) -> Iterator[Finding]:
    """Matrix products and convolutions in fp32 on the CUDA cores, or in TF32 where bf16 may be faster.

    Finds kernels that multiply matrices without tensor cores, by their names, where they take at least {LEAST_SHARE} of
    GPU time and tensor cores would save at least {LEAST_SAVED} of the step. Where there are none, finds those that run in
    TF32, as convolutions do unless torch is told otherwise, from {LEAST_IN_TF32} of GPU time: bf16 is what everybody tries
    next, and the answer is often no. Nothing is said where the GPU works less than {LEAST_BUSY} of the step: it waits for
    the host, not for products.

    Slow
        y = model(x)  # fp32, and torch's defaults

    Fast
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        y = model(x)

    Why
    The tensor cores multiply several times faster than the CUDA cores: 989 TFLOP/s in bf16 on an H200, 494 in TF32, 67 in
    fp32. torch uses them for fp32 products only if it is told that TF32's ten bits of mantissa are enough.

    How the worth is predicted
    Three changes are predicted, and the one that promises most stands first (fp16 autocast alone where the GPU has no TF32;
    without `tf32` where nothing is left for it).

    `tf32`: each product is replaced by a TF32 product of its size. It takes the larger of two times: its FLOPs at what
    cuBLAS reaches for how its operands lie in memory, less what the last wave of tiles leaves idle, with its result
    written; and its bytes at {BANDWIDTH_SHARE} of the bandwidth. It gains no more than the ratio of the peaks. Products of
    few rows, which wait for memory, stay; rows that are no multiple of 16 bytes are loaded piece by piece, in more than
    twice the time. A convolution is a product too, at {CONVOLUTION_SHARE} of the peak; planar (NCHW) tensors are converted
    for it, there and back. Convolutions in groups stay, and so do all where some run in TF32 already: all may.

    `bf16-autocast`: products in bf16. Parameters and what is not in bf16 yet are cast before each, which costs the GPU
    their bytes and the host {CAST_NS} a cast; the gradients are cast back, {CAST_BACK_NS} each. Norms, softmax and losses
    stay in fp32; other operators move half the bytes where all that they take is in bf16. A step that waits for the host
    becomes longer. Convolutions that ran in TF32 take less by the ratio of what the two types would take for their size;
    those of a few channels take as long as before. Convolutions in groups take {GROUPED_TIME} of the time, their gradients
    {GROUPED_BACKWARD_TIME}; but where a filter has {LONG_FILTER} elements or more and a group's channels are no multiple of
    that, cuDNN has slow kernels alone: {SLOW_GROUP_NS} for each group beside the products. Batch norm over planar tensors does not gain: torch then leaves cuDNN
    for kernels of its own, one block a channel, and {GRADIENT_NS} for a thousand elements of a channel's gradient.

    `bf16-weights`: everything in bf16 and nothing is cast: {HALF_BYTES_TIME} of the time for every other kernel of fp32.

    When not
    The results need all of fp32's 23 bits of mantissa; in fp16, the values may leave its range.
    """
    work = narrower(case)
    found = _on_cuda_cores(case, work) or (_in_tf32(case, work) if work else None)
    if found:
        yield found


def _fp32_products(case: Case) -> DeviceWork:
    """Those on the CUDA cores."""
    on_cuda_cores = ~pl.col("tensor_cores").fill_null(value=True)
    in_fp32 = pl.col("operand_dtype").fill_null("fp32") == "fp32"
    return costly_products(case, "products in fp32 on the CUDA cores", on_cuda_cores, in_fp32)


def _on_cuda_cores(case: Case, work: Narrower | None) -> Finding | None:
    products, device = _fp32_products(case), case.device
    if not len(products) or not (device is None or device.tf32_flops or device.fp16_flops):
        return None
    if work and work.convolves_in_tf32 and not len(products.where(~pl.col("op").str.contains("conv"))):
        return None
    plain, *others = _choices(case, work, products) if work else (_unpredicted(),)
    saved = _saved_ns(case, plain.change) / (case.step_ns * case.step_count) if plain.change else 1.0
    what = f"products in fp32 on the CUDA cores take {products.gpu_pct:.3g} % of GPU time"
    if too_little(case, what, saved, LEAST_SAVED):
        return None
    return _finding(
        products,
        f"{products.per_step_count:.0f} matrix products a step run in fp32 on the CUDA cores: "
        f"{products.gpu_pct:.0f} % of GPU time.",
        "The tensor cores, which multiply several times faster, idle.",
        plain,
        others,
    )


def _in_tf32(case: Case, work: Narrower) -> Finding | None:
    """What runs on the tensor cores, at half of bf16's rate; beside it there may be products on the CUDA cores."""
    what = "products in TF32, not in bf16"
    products = costly_products(case, what, pl.col("tensor_cores"), pl.col("operand_dtype") == "tf32")
    if not len(products) or too_little(case, what, products.gpu_share, LEAST_IN_TF32):
        return None
    if not work.autocast().durations_ns:
        return None
    choices = _in_bf16(case, work)
    choices = choices if case.trains else choices[::-1]
    left = _fp32_products(case).where(~pl.col("op").str.contains("conv"))
    choices += (_in_tf32_too(work, _TF32),) if len(left) and work.tf32().durations_ns else ()
    plain, *others = choices
    return _finding(
        products,
        f"{products.per_step_count:.0f} matrix products and convolutions a step run in TF32 on the tensor cores: "
        f"{products.gpu_pct:.0f} % of GPU time.",
        "bf16 multiplies at twice the rate and moves half the bytes; what it takes to cast may cost as much.",
        plain,
        others,
    )


def _finding(
    products: DeviceWork, says: str, why: str, plain: Alternative, others: Sequence[Alternative]
) -> Finding:
    longest_first = DeviceWork(products.case, products.rows.sort("dur_ns", descending=True))
    return Finding(
        says=says,
        why=why,
        fix=plain.fix,
        evidence=products.evidence("products", counted="kernels") | _reached(products),
        where=longest_first.places(),
        change=plain.change,
        unless=plain.unless,
        label=plain.label,
        alternatives=tuple(others),
    )


def _reached(products: DeviceWork) -> dict[str, float]:
    """The rate of those products whose FLOPs are known."""
    known = products.where(pl.col("op_flops").is_not_null())
    flops = int(known.rows["op_flops"].sum())
    return {"flops_per_s": flops / max(known.dur_ns, 1) * 1e9} if flops else {}


def _saved_ns(case: Case, change: Change) -> int:
    """What the GPU works less, in all steps."""
    dur_ns = case.program.task_dur_ns
    return sum(int(dur_ns[task]) - new for task, new in change.edit.durations_ns.items())


def _unpredicted() -> Alternative:
    return Alternative("tf32", _TF32, None, "the results need all of fp32's 23 bits of mantissa.")


def _choices(case: Case, work: Narrower, products: DeviceWork) -> tuple[Alternative, ...]:
    """What could be done, the plainest first: each with its change."""
    if not work.device.tf32_flops:
        edit = work.autocast("fp16")
        change = (
            Change("matrix products in fp16 on tensor cores, with autocast's casts", edit)
            if edit.durations_ns
            else None
        )
        return (Alternative("fp16-autocast", _FP16, change, "the values leave fp16's range."),)
    if not work.tf32().durations_ns:
        return (_unpredicted(),)
    convolves = bool(products.rows["op"].str.contains("conv").any())
    tf32 = _in_tf32_too(work, _TF32_CONVOLUTIONS if convolves and not work.convolves_in_tf32 else _TF32)
    return tf32, *_in_bf16(case, work)


def _in_tf32_too(work: Narrower, fix: Fix) -> Alternative:
    change = Change("matrix products in tf32 on tensor cores", work.tf32())
    return Alternative("tf32", fix, change, "the results need all of fp32's 23 bits of mantissa.")


def _in_bf16(case: Case, work: Narrower) -> tuple[Alternative, ...]:
    """Under autocast, and with the weights in bf16."""
    says = f"matrix products in bf16 under autocast, with {work.cast_count:.0f} casts a step"
    return (
        Alternative(
            "bf16-autocast",
            _AUTOCAST if case.trains else _AUTOCAST_SERVING,
            Change(says, work.autocast()),
            _NOT_BF16,
        ),
        Alternative(
            "bf16-weights",
            _WEIGHTS if case.trains else _WEIGHTS_SERVING,
            Change("all that computes in fp32 in bf16, parameters included", work.weights()),
            _NOT_TRAINED if case.trains else _NOT_BF16,
            may_lead=not case.trains,
        ),
    )
