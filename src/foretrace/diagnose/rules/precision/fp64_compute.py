"""Matrix products run in double precision."""

from __future__ import annotations

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
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.hardware import Device
from foretrace.predict.changes import Change
from foretrace.predict.costs import gemm
from foretrace.predict.costs.gemm import CUDA_CORES_SHARE, PEAK_SHARE
from foretrace.predict.costs.precision import ITEM_BYTES
from foretrace.predict.edits import Edit

_DOUBLE = r"\bdouble\b"  # in the templates of torch's kernels


@needs(KERNELS)
@rule("Matrix multiplies run in double precision", "Double precision", see="gpu-efficiency")
def fp64_compute(case: Case) -> Iterator[Finding]:
    """Matrix products in fp64, which NumPy's arrays bring along unless told otherwise.

    Finds matrix products of fp64 operands that take at least {LEAST_SHARE} of GPU time, where the GPU works at least
    {LEAST_BUSY} of the step.

    Slow
        x = torch.from_numpy(array)  # NumPy's default is fp64
        model = model.double()

    Fast
        x = torch.from_numpy(array).float()
        model = model.float()

    Why
    Every tensor is twice as large as in fp32, and TF32 and bf16 on the tensor cores are out of reach.

    How the worth is predicted
    Each product is replaced by one of its size in fp32, at {CUDA_CORES_SHARE} of the peak of the CUDA cores; the better
    end of the range is TF32, at {PEAK_SHARE} of the tensor cores' peak. Every other kernel of fp64 takes half of its time.

    When not
    The results need fp64's 52 bits of mantissa.
    """
    products = costly_products(case, "products in fp64", pl.col("operand_dtype") == "fp64")
    if not len(products):
        return
    longest_first = DeviceWork(case, products.rows.sort("dur_ns", descending=True))
    yield Finding(
        says=f"{products.per_step_count:.0f} matrix products a step run in fp64: {products.gpu_pct:.0f} % of GPU time.",
        why="Every tensor is twice as large as in fp32, and TF32 and bf16 are out of reach.",
        fix=Fix(
            "Convert data and model to fp32; NumPy's arrays are fp64 unless told otherwise.",
            "x = torch.from_numpy(array).float()\nmodel = model.float()\n"
            "# check the results: 23 bits of mantissa, not 52; long sums and solvers may need fp64",
        ),
        evidence=products.evidence("products", counted="kernels"),
        where=longest_first.places(),
        change=None if case.device is None else _in_single(products, case.device),
        unless="the results need fp64's 52 bits of mantissa.",
    )


def _in_single(products: DeviceWork, device: Device) -> Change:
    """The products in fp32, with TF32 at the better end, and half the bytes for every other kernel of fp64."""
    others = products.case.device_work(
        pl.col("name").cast(pl.String).str.contains(_DOUBLE),
        ~pl.col("task").is_in(products.rows["task"].implode()),
    )
    halved = {task: dur // 2 for task, dur in others.rows.select("task", "dur_ns").iter_rows()}
    single, tf32 = (
        Edit(durations_ns=halved | _products_in(dtype, products, device, share), modelled=frozenset(halved))
        for dtype, share in (("fp32", CUDA_CORES_SHARE), ("tf32", PEAK_SHARE))
    )
    return Change("everything in fp32", single, others=(tf32,))


def _products_in(dtype: str, products: DeviceWork, device: Device, share: float) -> dict[int, int]:
    """How long the products take in another type; without those whose size is not known."""
    durations: dict[int, int] = {}
    for task, dur, op, shapes in products.rows.select("task", "dur_ns", "op", "shapes").iter_rows():
        if size := gemm.size(op or "", shapes):
            needed_ns = gemm.time_ns(device, dtype, size, ITEM_BYTES[dtype], share=share)
            durations[task] = min(dur, needed_ns or dur)
    return durations
