"""Fused attention: how long scaled_dot_product_attention takes, by the size of its scores.

In half precision, a score takes two products forward and five backward on the tensor cores, and one or two exponentials on
the special function units. In single precision no tensor cores are used, and heads are filled up to a multiple of 64 values.
Forward, a block computes 128 rows, and their columns 128 at a time; whatever their number, each block takes some time to
start and to end, and so does backward each block of columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil

from foretrace.hardware import Device
from foretrace.predict.costs import streaming
from foretrace.sourced import JUDGEMENT, Count, Factor, Nanoseconds, Share

_MEASURED = "75 sizes in the corpus and the pairs of docs/accuracy.md, torch 2.11"
PEAK_SHARE = Share(0.84, "the tensor cores' peak, reached by the forward kernel", _MEASURED, devices="H200")
BACKWARD_PEAK_SHARE = Share(
    0.62, "the tensor cores' peak, reached by the backward kernel", _MEASURED, devices="H200"
)
_LAYERS = "benchmarks/products.py --layers: ten sizes with and without a mask, torch 2.11"
FP32_PEAK_SHARE = Share(0.51, "fp32's peak: 34 TFLOP/s without tensor cores", _LAYERS, devices="H200")
FILLED_WIDTH = Count(
    64,
    "values, to a multiple of which a head is filled up in single precision, or with a mask from memory",
    _LAYERS,
    devices="H200",
)
# predict/batch.py asks only how much longer more items take, of attention of any kind, fused or not, and size.
GROWING_PEAK_SHARE = Share(
    0.33,
    "the peak that attention of any kind and size reaches as a batch grows",
    "operators that ran at more than one size in recordings: see predict/batch.py",
    devices="H200",
)
EXPONENTIAL_COST = Factor(
    16,
    "the fp32 operations in whose time the special function units make one exponential",
    "CUDA programming guide: 16 special functions a clock on 128 cores that multiply and add",
    devices="NVIDIA",
)
TILE = Count(
    64,
    "rows and columns, at least, that a block computes backward and in single precision",
    _MEASURED,
    devices="H200",
)
BLOCK = Count(128, "rows of a forward block, and columns that it takes at a time", _MEASURED, devices="H200")
WIDEST_HEAD = Count(
    256, "values of a head; flash kernels take no wider ones", "PyTorch's sources: flash attention"
)
DIAGONAL = Count(
    256,
    "columns beyond the triangle that a causal kernel still computes, or waits for",
    _MEASURED,
    devices="H200",
)
MASKED_SHARE, MASKED_BACKWARD_SHARE = (
    Share(
        0.235,
        "the tensor cores' peak, reached forward in half precision with a mask or bias from memory: by other kernels",
        _LAYERS,
        devices="H200",
    ),
    Share(0.27, "the same, backward", _LAYERS, devices="H200"),
)
MASKED_NS = Nanoseconds(10_000, "making a bias of the mask, whatever its size", _LAYERS, devices="H200")
FP32_MASK_COST = Factor(
    1.15, "times as long with a mask or bias from memory, in single precision", _LAYERS, devices="H200"
)
HOST_NS = Nanoseconds(15_000, "the host, one fused call", JUDGEMENT)


class Mask(Enum):
    """Which scores count."""

    NONE = "all of them"
    CAUSAL = "those of earlier positions; the rest is not computed"
    FROM_MEMORY = "as a mask or bias says, which the kernel reads"


@dataclass(frozen=True)
class _Pass:
    """What distinguishes the forward from the backward pass."""

    peak_share: Share
    products: int  # for each score
    exponentials: int  # for each score
    masked_share: Share
    launch_ns: Nanoseconds
    block_ns: Nanoseconds


_FORWARD = _Pass(
    PEAK_SHARE, products=2, exponentials=1, masked_share=MASKED_SHARE,
    launch_ns=Nanoseconds(2_500, "the forward kernel, around its work", _MEASURED, devices="H200"),
    block_ns=Nanoseconds(1_250, "a forward block, around its work", _MEASURED, devices="H200"),
)  # fmt: skip
_BACKWARD = _Pass(
    BACKWARD_PEAK_SHARE, products=5, exponentials=2, masked_share=MASKED_BACKWARD_SHARE,
    launch_ns=Nanoseconds(10_000, "the backward kernels, around their work", _MEASURED, devices="H200"),
    block_ns=Nanoseconds(2_000, "a backward block, around its work", _MEASURED, devices="H200"),
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Attention of `heads` (of all samples), each with `rows` x `columns` scores of vectors of `width` values."""

    heads: int
    rows: int
    columns: int
    width: int
    half: bool  # in half precision


def time_ns(device: Device, size: Size, *, backward: bool, mask: Mask) -> int:
    """How long the fused kernel takes; backward, all of its kernels together."""
    costs = _BACKWARD if backward else _FORWARD
    work = min(0.5 * (1 + DIAGONAL / size.columns), 1.0) if mask is Mask.CAUSAL else 1.0
    padded = size.heads * TILE**2 * ceil(size.rows / TILE) * ceil(size.columns / TILE)
    score_s = _score_s(device, size, costs)
    launch_ns: float = costs.launch_ns
    if mask is Mask.FROM_MEMORY:
        computing, launch_ns = padded * _masked_score_s(device, size, costs), launch_ns + MASKED_NS
    elif not size.half:
        computing = padded * score_s * work
    elif backward:
        blocks = size.heads * ceil(size.columns / BLOCK)
        computing = padded * score_s * work + blocks / device.sm_count * costs.block_ns / 1e9
    else:
        computing = _forward_s(device, size, score_s, work)
    moved = (2 if size.half else 4) * size.heads * size.width * 2 * (size.rows + size.columns)
    moving = streaming.moving_s(device, moved)
    # Backward, kernels before and after the main one read and write as much again.
    taken = computing + 2 * moving if backward else max(computing, moving)
    return round(taken * 1e9 + launch_ns)


def _forward_s(device: Device, size: Size, score_s: float, work: float) -> float:
    """The forward pass in half precision: waves of blocks, one on each multiprocessor."""
    pieces = ceil(size.columns / BLOCK)
    blocks = size.heads * ceil(size.rows / BLOCK)
    # The rows of a few tokens are spread along the columns, until all of the device works.
    parts = max(min(device.sm_count // blocks, pieces), 1) if size.rows < BLOCK else 1
    block_s = pieces / parts * BLOCK**2 * device.sm_count * score_s * work + _FORWARD.block_ns / 1e9
    return ceil(blocks * parts / device.sm_count) * block_s


def _score_s(device: Device, size: Size, costs: _Pass) -> float:
    """What one score takes of the whole device, in seconds."""
    if not size.half:
        return _filled_flops(size, costs) / (device.fp32_flops * FP32_PEAK_SHARE)
    flops = 2 * costs.products * size.width
    peak = device.bf16_flops or device.fp16_flops
    return flops / (peak * costs.peak_share) + EXPONENTIAL_COST * costs.exponentials / device.fp32_flops


def _masked_score_s(device: Device, size: Size, costs: _Pass) -> float:
    """The same with a mask or bias from memory."""
    if not size.half:
        return _score_s(device, size, costs) * FP32_MASK_COST
    peak = device.bf16_flops or device.fp16_flops
    return _filled_flops(size, costs) / (peak * costs.masked_share)


def _filled_flops(size: Size, costs: _Pass) -> int:
    return 2 * costs.products * FILLED_WIDTH * ceil(size.width / FILLED_WIDTH)
