"""Matrix products and convolutions that take a good part of the time of a GPU that is busy."""

from __future__ import annotations

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.seen import seen, too_little
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.03, "GPU time", JUDGEMENT)
LEAST_BUSY = Share(1 / 3, "the step: a GPU that works less waits for the host, not for products", JUDGEMENT)


def costly_products(case: Case, what: str, *predicates: pl.Expr) -> DeviceWork:
    """Those products that the predicates choose; none of them where they hardly matter, which is kept as seen."""
    products = DeviceWork(case, case.products.filter(*predicates))
    none = products.where(pl.lit(value=False))
    if too_little(case, what, products.gpu_share, LEAST_SHARE):
        return none
    busy = case.device_ns / (case.step_ns * case.step_count)
    if busy >= LEAST_BUSY:
        return products
    seen(
        case,
        f"{what}: {products.gpu_pct:.3g} % of GPU time, but the GPU works {100 * busy:.3g} % of the step: the CPU is the limit",
    )
    return none
