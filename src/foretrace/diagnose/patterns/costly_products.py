"""Matrix products and convolutions that take a good part of the time of a GPU that is busy."""

from __future__ import annotations

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.03, "GPU time", JUDGEMENT)
LEAST_BUSY = Share(1 / 3, "the step: a GPU that works less waits for the host, not for products", JUDGEMENT)


def costly_products(case: Case, *predicates: pl.Expr) -> DeviceWork:
    """Those products that the predicates choose; none of them where they hardly matter."""
    products = DeviceWork(case, case.products.filter(*predicates))
    idle = case.device_ns < LEAST_BUSY * case.step_ns * case.step_count
    return products.where(pl.lit(value=False)) if idle or products.gpu_share < LEAST_SHARE else products
