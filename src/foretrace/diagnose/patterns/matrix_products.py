"""Matrix products of a Case: their kernels with the sizes that they multiplied, and what such a product takes.

Not a rule itself; `no-tensor-cores` and `misaligned-gemm` share it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

import polars as pl

from foretrace import hardware
from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.concepts.work import flops
from foretrace.diagnose.case import Case

# Of the tensor cores' peak, what cuBLAS reaches while it multiplies; of the memory's, what streams. The results are written
# behind the last multiply, at the memory's peak. So it was for 600 sizes in bf16 from 1 GFLOP to 2.5 TFLOP on an H200, with
# 5 % of error on average above 20 GFLOP.
PEAK_SHARE, BANDWIDTH_SHARE = 0.84, 0.80
# Where both operands have to be turned, as for the gradient of a weight, the tensor cores' TF32 stays at this.
TURNED_SHARE = 0.52
CONVOLVED_SHARE = 0.65  # of the peak, what convolutions reach
TILE = 128  # rows and columns of the usual block
# Rows and columns that one block computes: cuBLAS takes those that leave least of the device idle in the last wave.
_TILES = (
    (128, 128), (128, 256), (256, 128), (192, 192), (128, 192), (192, 128), (128, 160), (160, 128), (128, 320), (320, 128),
    (64, 256), (256, 64), (64, 128), (128, 64), (64, 64),
)  # fmt: skip
_SMALL_TILE = 0.3  # a block with half of the usual area multiplies at 2 to the minus this of the rate
_LEAST_USED = 0.05  # no product leaves more of the device idle than all but this
_STEP_K = 64  # of K, what a block loads at once
_SPLIT_K = 1024  # of K, what each part takes at least where a small grid is split along it; cuBLAS splits such products
LAUNCH_NS = 2_000  # from the start of a kernel to its first multiply, and back

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
        *batch, m, k = (int(each) for each in left)
        inner, n = (int(each) for each in right[-2:])
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
    moving = product.bytes(item_bytes) / (device.memory_bandwidth_bytes * BANDWIDTH_SHARE)
    return round(max(computing + writing, moving) * 1e9) + LAUNCH_NS


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


def kernels(case: Case) -> pl.DataFrame:
    """Tasks that multiply matrices or convolve: with tensor_cores, op, shapes, operand_dtype, op_flops and op_bytes."""
    return case.keep("products", lambda: _kernels(case))


def _kernels(case: Case) -> pl.DataFrame:
    names = case.tasks["name"].unique().cast(pl.String)
    told = [decode(name) for name in names]
    facts = pl.DataFrame(
        {"text": names, "multiplies": [each.multiplies for each in told],
         "tensor_cores": pl.Series([each.tensor_cores for each in told], dtype=pl.Boolean)}
    )  # fmt: skip
    mine = case.tasks.with_columns(text=pl.col("name").cast(pl.String)).join(
        facts, on="text", maintain_order="left"
    )
    mine = mine.filter("multiplies")
    owners = flops.kernel_owners(case.trace)
    work = flops.work_of(case.trace, owners).select(
        pl.col("span_id").alias("owner_id"),
        pl.col("flops").alias("op_flops"),
        pl.col("bytes").alias("op_bytes"),
        pl.col("dtype").alias("operand_dtype"),
    )
    mine = mine.join(owners.select("id", "owner_id"), on="id", how="left", maintain_order="left")
    mine = mine.join(work, on="owner_id", how="left", maintain_order="left")
    asked = case.trace.ops.select(pl.col("span_id").alias("owner_id"), pl.col("shapes").cast(pl.String))
    mine = mine.join(asked, on="owner_id", how="left", maintain_order="left")
    return mine.with_columns(op=case.trace.spans["name"].gather(mine["owner_id"]).cast(pl.String))
