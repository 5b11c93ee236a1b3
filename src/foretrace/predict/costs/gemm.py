"""Matrix products: how long one of a given size takes on a device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, prod

from foretrace import hardware
from foretrace.predict.costs import streaming
from foretrace.predict.costs.precision import ITEM_BYTES
from foretrace.sourced import JUDGEMENT, Count, Factor, Nanoseconds, Share

_MEASURED_TF32 = (
    "160 sizes: benchmarks/products.py, the corpus and the pairs of docs/accuracy.md; of the half not fitted to, half are within 10 %, "
    "nine tenths within 35 %"
)
_MEASURED = "600 sizes in bf16 from 1 GFLOP to 2.5 TFLOP; above 20 GFLOP off by 5 % on average"
PEAK_SHARE = Share(0.84, "the tensor cores' peak, reached by cuBLAS", _MEASURED, devices="H200")
GROWING_PEAK_SHARE = Share(
    0.65,
    "the peak, reached by a product whose tiles are not known: what the last wave leaves idle is in it",
    "operators that ran at more than one size in the H200's recordings: see predict/batch.py",
    devices="H200",
)
CUDA_CORES_SHARE = Share(
    0.75,
    "fp32's peak, reached by products on the CUDA cores",
    "the pairs of docs/accuracy.md",
    devices="H200",
)
TILE = Count(128, "rows and columns of the usual block", "names of cuBLAS's kernels")
_LEAST_USED = Share(0.05, "the device, used by any product at least", JUDGEMENT)
FIRST = {"aten::mm": 0, "aten::addmm": 1, "aten::_addmm_activation": 1, "aten::bmm": 0, "aten::baddbmm": 1}


@dataclass(frozen=True)
class Size:
    """One product, or a batch of them: (M x K) times (K x N)."""

    batch: int
    m: int
    n: int
    k: int
    layout: str = (
        ""  # N or T for each operand: T lies in memory as its transpose; empty where it is not known
    )

    @property
    def aligned(self) -> int:
        """The largest power of two that divides the rows of both operands and of the result, as they lie in memory."""
        left = self.m if self.layout[:1] == "T" else self.k
        right = self.k if self.layout[1:] == "T" else self.n
        rows = gcd(left, right, self.n)
        return rows & -rows

    @property
    def flops(self) -> int:
        """Multiplies and adds."""
        return 2 * self.batch * self.m * self.n * self.k

    def bytes(self, item_bytes: int) -> int:
        """Both operands read and the result written once."""
        return self.batch * item_bytes * (self.m * self.k + self.k * self.n + self.m * self.n)


@lru_cache(maxsize=16384)
def size(op: str, shapes: str | None, strides: str | None = None) -> Size | None:
    """What an operator multiplied; None where it is no product or its shapes were not recorded."""
    first = FIRST.get(op)
    if first is None or not shapes:
        return None
    try:
        left, right = json.loads(shapes)[first : first + 2]
        *batch, m, k = map(int, left)
        inner, n = map(int, right[-2:])
    except (ValueError, TypeError):
        return None
    if inner != k or min(m, n, k) <= 0:
        return None
    return Size(prod(batch), m, n, k, _layout(strides, first))


def _layout(strides: str | None, first: int) -> str:
    try:
        pairs = [tuple(map(int, steps[-2:])) for steps in json.loads(strides or "")[first : first + 2]]
        return "".join("T" if down == 1 != across else "N" for down, across in pairs)
    except (ValueError, TypeError):
        return ""


@dataclass(frozen=True)
class Rates:
    """How products of one type run: what depends on the kernels that there are for it."""

    tiles: tuple[tuple[int, int], ...]  # rows and columns of a block; cuBLAS takes what leaves least idle
    shares: Mapping[str, Share]  # of the peak, by layout
    small_tile: Factor
    step_k: Count
    split_k: Count
    start_ns: Nanoseconds  # from a kernel's start to its first work, and back
    whole: int = 1  # the elements of a row, of which a multiple is loaded at once


def _shares(nt: float, nn: float, tn: float, of: str, source: str) -> dict[str, Share]:
    shares = {"NT": nt, "NN": nn, "TN": tn, "TT": min(nt, nn, tn), "": nn}
    return {layout: Share(share, of, source, devices="H200") for layout, share in shares.items()}


_OF_SMALL = "a block of half the usual area multiplies at 2 to the minus this of the rate"
_OF_STEP = "K that a block loads at once"
_OF_SPLIT = "K that each part takes at least where cuBLAS splits a small grid along it"
_HALF_TILES = (
    (128, 128), (128, 256), (256, 128), (192, 192), (128, 192), (192, 128), (128, 160), (160, 128), (128, 320), (320, 128),
    (64, 256), (256, 64), (64, 128), (128, 64), (64, 64),
)  # fmt: skip
_TF32_TILES = ((128, 128), (128, 256), (256, 128), (64, 256), (256, 64), (64, 128), (128, 64), (64, 64))
_HALF = Rates(
    _HALF_TILES,
    _shares(PEAK_SHARE, PEAK_SHARE, PEAK_SHARE, "the tensor cores' peak in half precision", _MEASURED),
    Factor(0.3, _OF_SMALL, _MEASURED, devices="H200"),
    Count(64, _OF_STEP, "names of cuBLAS's kernels"),
    Count(1024, _OF_SPLIT, _MEASURED, devices="H200"),
    streaming.START_NS,
    8,
)
_TF32 = Rates(
    _TF32_TILES,
    _shares(0.88, 0.79, 0.55, "the tensor cores' peak in TF32", _MEASURED_TF32),
    Factor(0.1, _OF_SMALL, _MEASURED_TF32, devices="H200"),
    Count(48, _OF_STEP, _MEASURED_TF32, devices="H200"),
    Count(2800, _OF_SPLIT, _MEASURED_TF32, devices="H200"),
    Nanoseconds(5_000, "a product in TF32, whatever its size", _MEASURED_TF32, devices="H200"),
    4,
)
_RATES = {"tf32": _TF32, "bf16": _HALF, "fp16": _HALF, "fp8": _HALF}
# By the elements that rows are a multiple of, where that is less than what is loaded at once.
_IN_PIECES = "fitted to 49 sizes in bf16 and 45 in TF32, benchmarks/products.py: half are within 18 %"
_HALF_PIECES = {
    4: Factor(3.0, "times as long to compute, loaded by 8 bytes", _IN_PIECES, devices="H200"),
    2: Factor(4.2, "times as long to compute, loaded by 4 bytes", _IN_PIECES, devices="H200"),
    1: Factor(7.2, "times as long to compute, loaded by 2 bytes", _IN_PIECES, devices="H200"),
}
_TF32_PIECES = {
    2: Factor(3.4, "times as long to compute, loaded by 8 bytes", _IN_PIECES, devices="H200"),
    1: Factor(3.1, "times as long to compute, loaded by 4 bytes", _IN_PIECES, devices="H200"),
}
_PIECES = {"bf16": _HALF_PIECES, "fp16": _HALF_PIECES, "tf32": _TF32_PIECES}


def time_ns(
    device: hardware.Device, dtype: str, product: Size, item_bytes: int, *, share: float | None = None
) -> int | None:
    """How long a product of this size takes; None where the device does not compute in this type."""
    peak = hardware.peak_flops(device, dtype)
    if not peak:
        return None
    rates = _RATES.get(dtype, _HALF)
    share = rates.shares[product.layout] if share is None else share
    padded = ceil(product.k / rates.step_k) * rates.step_k / product.k
    padded *= _PIECES.get(dtype, {}).get(product.aligned, 1.0)
    computing = product.flops * padded / (peak * share * used(product, device.sm_count, rates))
    writing = item_bytes * product.batch * product.m * product.n / device.memory_bandwidth_bytes
    moving = streaming.moving_s(device, product.bytes(item_bytes))
    return round(max(computing + writing, moving) * 1e9) + rates.start_ns


def narrowed_ns(device: hardware.Device, dur_ns: int, product: Size, given: str, dtype: str) -> int:
    """How long a product of fp32 or TF32 that took `dur_ns` takes in a narrower type."""
    item_bytes = ITEM_BYTES[dtype]
    moving = product.bytes(ITEM_BYTES[given]) / device.memory_bandwidth_bytes
    if moving > product.flops / device.fp32_flops:  # the CUDA cores wait for memory already: few rows
        return round(dur_ns * item_bytes / ITEM_BYTES[given])
    needed_ns = time_ns(device, dtype, product, item_bytes)
    if needed_ns is None:
        return dur_ns
    faster = (hardware.peak_flops(device, given) or 1.0) / (hardware.peak_flops(device, dtype) or 1.0)
    return min(dur_ns, max(needed_ns, round(dur_ns * faster)))


def used(product: Size, sm_count: int, rates: Rates) -> float:
    """Of the rate of a device full of usual blocks, what the best size of a block reaches on this product."""
    best = _LEAST_USED
    for rows, columns in rates.tiles:
        tiles = product.batch * ceil(product.m / rows) * ceil(product.n / columns)
        parts = max(min(sm_count // tiles, product.k // rates.split_k), 1)
        places = ceil(tiles * parts / sm_count) * sm_count / parts
        slower = min(rows * columns / TILE**2, 1.0) ** rates.small_tile
        best = max(best, product.batch * product.m * product.n / (places * rows * columns) * slower)
    return best
