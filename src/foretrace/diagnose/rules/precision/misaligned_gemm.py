"""Matrix products whose sizes are not a multiple of eight fall back to slower kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.errors import MissingDataError
from foretrace.hardware import Device
from foretrace.predict.changes import Change
from foretrace.predict.costs import gemm
from foretrace.predict.costs.precision import ITEM_BYTES
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Bytes, Count, Share

_GUIDE = "NVIDIA, Matrix Multiplication Background User's Guide"
LEAST_SHARE = Share(0.03, "GPU time", JUDGEMENT)
LEAST_SAVED = Share(0.02, "GPU time, saved by padding", JUDGEMENT)
LOADED_BYTES = Bytes(16, "what a load for the tensor cores takes at once", _GUIDE)
PADDED = Count(64, "the multiple that sizes are padded to", _GUIDE)
ROWS_FROM = Count(
    64, "rows: below, they are a batch of requests or tokens, and kernels pad them themselves", JUDGEMENT
)
LARGE_FLOPS = Count(
    1_000_000_000,
    "FLOPs of a product: smaller ones tell nothing about the rate that the device reaches",
    JUDGEMENT,
)
LEAST_RATE = Share(0.6, "the peak, which aligned products are taken to reach at least", JUDGEMENT)
MOST_RATE = Share(0.9, "the peak, which aligned products are taken to reach at most", JUDGEMENT)
_TYPES = ("fp16", "bf16", "tf32")
# Kernels that load 16 bytes at once, by TMA or by their own account: their operands are aligned, whatever M is.
_LOADS_ALIGNED = re.compile(r"^nvjet|align8|ldg8|sm90_xmma_gemm.*warpgroup")
# TF32 is judged by these alone: its kernels' names do not all tell what they load.
_LOADS_PIECES = re.compile(r"(?:align|ldg)[12](?:\D|$)")


@dataclass(frozen=True)
class _Product:
    """A matrix product on tensor cores."""

    task: int
    dur_ns: int
    dtype: str
    size: gemm.Size | None
    kernel: str

    @property
    def odd_sides(self) -> dict[str, int]:
        """The sizes that are not a multiple of what is loaded at once, by the names of their dimensions."""
        at_once = LOADED_BYTES // ITEM_BYTES[self.dtype]
        sides = {} if self.size is None else {side: getattr(self.size, side) for side in ("m", "n", "k")}
        return {side: extent for side, extent in sides.items() if extent % at_once}


@needs(KERNELS)
@rule("Matrix sizes do not fit the tensor cores", "Matrix sizes", see="roofline")
def misaligned_gemm(case: Case) -> Iterator[Finding]:
    """Products on tensor cores with a size that is not a multiple of 16 bytes: 8 in fp16 or bf16, 4 in TF32.

    Finds matrix products with a K or N, or an M above {ROWS_FROM}, that is not a multiple of 8 in half precision or of 4 in
    TF32, and that run in kernels which do not load 16 bytes at once, by their names. They must take at least {LEAST_SHARE}
    of GPU time, and padding must save at least {LEAST_SAVED}.

    Slow
        embedding = nn.Embedding(50257, width)

    Fast
        embedding = nn.Embedding(50304, width)  # the next multiple of 64

    Why
    Tensor cores load 16 bytes at once. Rows that do not begin at a multiple of that are loaded piece by piece. The usual
    culprit is a vocabulary of 50257 words.

    How the worth is predicted
    Each product is replaced by one with these sizes rounded up to a multiple of {PADDED}, at the rate that aligned products
    of the same recording reach, between {LEAST_RATE} and {MOST_RATE} of the peak.

    When not
    The size is given from outside, so that padding it costs a copy.
    """
    on_tensor_cores = DeviceWork(case, case.products).where(pl.col("tensor_cores").fill_null(value=True))
    if on_tensor_cores.gpu_share < LEAST_SHARE:
        return
    if on_tensor_cores.rows["shapes"].null_count() == len(on_tensor_cores):
        raise MissingDataError(f"{case.trace.path.name}: no shapes recorded; record with record_shapes=True")
    products = _products(on_tensor_cores)
    misaligned = [product for product in products if _is_misaligned(product)]
    work = on_tensor_cores.where(pl.col("task").is_in([product.task for product in misaligned]))
    if too_little(case, "products of odd sizes", work.gpu_share, LEAST_SHARE):
        return
    if case.device is None:
        raise MissingDataError(f"{case.trace.path.name}: the peaks of this device are not known")
    rate = _aligned_rate(case.device, [product for product in products if not _is_misaligned(product)])
    durations = {product.task: _padded_ns(case.device, product, rate) for product in misaligned}
    saved = (work.dur_ns - sum(durations.values())) / case.device_ns
    if too_little(case, f"products of odd sizes take {work.gpu_pct:.3g} % of GPU time", saved, LEAST_SAVED):
        return
    sizes = sorted({extent for product in misaligned for extent in product.odd_sides.values()})
    largest = sizes[-1]
    evidence = work.evidence("products")
    spans = evidence.pop("spans")
    yield Finding(
        says=f"{work.per_step_count:.0f} matrix products a step have a size that is not a multiple of {int(LOADED_BYTES)} bytes "
        f"({', '.join(str(size) for size in sizes[-3:])}) and take {work.gpu_pct:.0f} % of GPU time.",
        why="Tensor cores load 16 bytes at once; such rows are loaded piece by piece.",
        fix=Fix(
            f"Pad to a multiple of {PADDED}: {largest} to {_padded(largest)}.",
            f"size = {_padded(largest)}  # was {largest}\n"
            "# what is added must not count: for a vocabulary, logits[..., :size_before] before the loss",
        ),
        evidence={**evidence, "sizes": sizes[-5:], "spans": spans},
        where=work.places(),
        change=Change(
            f"sizes padded to multiples of {PADDED}",
            Edit(durations_ns=durations, modelled=frozenset(durations)),
        ),
        unless="the size is given from outside, so that padding it costs a copy.",
    )


def _products(on_tensor_cores: DeviceWork) -> list[_Product]:
    """The products in types that tensor cores load 16 bytes of at once."""
    rows = on_tensor_cores.where(pl.col("operand_dtype").is_in(_TYPES)).rows
    columns = ("task", "dur_ns", "operand_dtype", "op", "shapes", "text")
    return [
        _Product(task, dur_ns, dtype, gemm.size(op or "", shapes), kernel)
        for task, dur_ns, dtype, op, shapes, kernel in rows.select(columns).iter_rows()
    ]


def _is_misaligned(product: _Product) -> bool:
    """Whether a size does not fit, and the kernel does not load 16 bytes at once."""
    if not any(side != "m" or extent > ROWS_FROM for side, extent in product.odd_sides.items()):
        return False
    if _LOADS_ALIGNED.search(product.kernel):
        return False
    return product.dtype != "tf32" or _LOADS_PIECES.search(product.kernel) is not None


def _aligned_rate(device: Device, aligned: list[_Product]) -> float:
    """The share of the peak that aligned products of this recording reach."""
    ideal_ns = recorded_ns = 0
    for product in aligned:
        if product.size and product.size.flops >= LARGE_FLOPS:
            ideal_ns += _time_ns(device, product.dtype, product.size, share=1.0) or 0
            recorded_ns += product.dur_ns
    return min(max(ideal_ns / recorded_ns, LEAST_RATE), MOST_RATE) if recorded_ns else gemm.PEAK_SHARE


def _padded_ns(device: Device, product: _Product, rate: float) -> int:
    """How long the padded product takes; no longer than the recorded one."""
    assert product.size is not None
    size, odd = product.size, product.odd_sides
    m, n, k = (
        _padded(odd[side]) if side in odd else extent
        for side, extent in zip("mnk", (size.m, size.n, size.k), strict=True)
    )
    size = replace(size, m=m, n=n, k=k)
    return min(product.dur_ns, _time_ns(device, product.dtype, size, share=rate) or product.dur_ns)


def _time_ns(device: Device, dtype: str, size: gemm.Size, *, share: float) -> int | None:
    return gemm.time_ns(device, dtype, size, ITEM_BYTES[dtype], share=share)


def _padded(extent: int) -> int:
    return -(-extent // PADDED) * PADDED
