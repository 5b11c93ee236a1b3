"""Matrix products: how long one of a given size takes on a device."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from foretrace import hardware
from foretrace.predict.costs import streaming
from foretrace.sourced import JUDGEMENT, Count, Factor, Share

_MEASURED = "600 sizes in bf16 from 1 GFLOP to 2.5 TFLOP; above 20 GFLOP off by 5 % on average"
PEAK_SHARE = Share(0.84, "the tensor cores' peak, reached by cuBLAS", _MEASURED, devices="H200")
GROWING_PEAK_SHARE = Share(
    0.65,
    "the peak, reached by a product whose tiles are not known: what the last wave leaves idle is in it",
    "operators that ran at more than one size in the H200's recordings: see predict/batch.py",
    devices="H200",
)
TURNED_SHARE = Share(
    0.52,
    "TF32's peak, where both operands must be transposed, as for the gradient of a weight",
    "benchmarks/pairs",
    devices="H200",
)
CUDA_CORES_SHARE = Share(
    0.75, "fp32's peak, reached by products on the CUDA cores", "benchmarks/pairs", devices="H200"
)
TILE = Count(128, "rows and columns of the usual block", "names of cuBLAS's kernels")
# Rows and columns that one block computes: cuBLAS takes those that leave least of the device idle in the last wave.
_TILES = (
    (128, 128), (128, 256), (256, 128), (192, 192), (128, 192), (192, 128), (128, 160), (160, 128), (128, 320), (320, 128),
    (64, 256), (256, 64), (64, 128), (128, 64), (64, 64),
)  # fmt: skip
_SMALL_TILE = Factor(
    0.3,
    "a block of half the usual area multiplies at 2 to the minus this of the rate",
    _MEASURED,
    devices="H200",
)
_LEAST_USED = Share(0.05, "the device, used by any product at least", JUDGEMENT)
_STEP_K = Count(64, "K that a block loads at once", "names of cuBLAS's kernels")
_SPLIT_K = Count(
    1024,
    "K that each part takes at least where cuBLAS splits a small grid along it",
    _MEASURED,
    devices="H200",
)

_FIRST = {"aten::mm": 0, "aten::addmm": 1, "aten::_addmm_activation": 1, "aten::bmm": 0, "aten::baddbmm": 1}


@dataclass(frozen=True)
class Size:
    """One product, or a batch of them: (M x K) times (K x N)."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """Multiplies and adds."""
        return 2 * self.batch * self.m * self.n * self.k

    def bytes(self, item_bytes: int) -> int:
        """Both operands read and the result written once."""
        return self.batch * item_bytes * (self.m * self.k + self.k * self.n + self.m * self.n)


def size(op: str, shapes: str | None) -> Size | None:
    """What an operator multiplied; None where it is no product or its shapes were not recorded."""
    first = _FIRST.get(op)
    if first is None or not shapes:
        return None
    try:
        left, right = json.loads(shapes)[first : first + 2]
        *batch, m, k = map(int, left)
        inner, n = map(int, right[-2:])
    except (ValueError, TypeError):
        return None
    return Size(prod(batch), m, n, k) if inner == k and min(m, n, k) > 0 else None


def time_ns(
    device: hardware.Device, dtype: str, product: Size, item_bytes: int, *, share: float = PEAK_SHARE
) -> int | None:
    """How long a product of this size takes; None where the device does not compute in this type."""
    peak = hardware.peak_flops(device, dtype)
    if not peak:
        return None
    padded = ceil(product.k / _STEP_K) * _STEP_K / product.k
    computing = product.flops * padded / (peak * share * _used(product, device.sm_count))
    writing = item_bytes * product.batch * product.m * product.n / device.memory_bandwidth_bytes
    moving = streaming.moving_s(device, product.bytes(item_bytes))
    return round(max(computing + writing, moving) * 1e9) + streaming.START_NS


@lru_cache(maxsize=4096)
def _used(product: Size, sm_count: int) -> float:
    """Of the rate of a device full of usual blocks, what the best size of a block reaches on this product."""
    best = _LEAST_USED
    for rows, columns in _TILES:
        tiles = product.batch * ceil(product.m / rows) * ceil(product.n / columns)
        parts = max(min(sm_count // tiles, product.k // _SPLIT_K), 1)
        places = ceil(tiles * parts / sm_count) * sm_count / parts
        slower = min(rows * columns / TILE**2, 1.0) ** _SMALL_TILE
        best = max(best, product.batch * product.m * product.n / (places * rows * columns) * slower)
    return best
