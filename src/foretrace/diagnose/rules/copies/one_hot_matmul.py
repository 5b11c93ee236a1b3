"""Rows of a table are looked up by a matrix product with one-hot vectors."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import one_hot_products
from foretrace.diagnose.patterns.one_hot_products import Lookup
from foretrace.diagnose.rule import KERNELS, SHAPES, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.hardware import Device
from foretrace.predict.changes import Change
from foretrace.predict.costs import streaming
from foretrace.predict.costs.precision import ITEM_BYTES
from foretrace.predict.costs.streaming import BANDWIDTH_SHARE, START_NS  # noqa: F401  # named on the page
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.02, "GPU time", JUDGEMENT)


@needs(KERNELS, SHAPES)
@rule("One-hot vectors are multiplied to look rows up", "One-hot products", see="roles")
def one_hot_matmul(case: Case) -> Iterator[Finding]:
    """Matrix products with one-hot tensors, which a lookup of rows replaces.

    Finds F.one_hot whose result, cast or not, a matrix product reads first, where making and multiplying it, forward and
    backward, takes at least {LEAST_SHARE} of GPU time. What reads a tensor is known by its shape and strides.

    Slow
        y = F.one_hot(ids, classes).float() @ table

    Fast
        y = F.embedding(ids, table)

    Why
    All but one of the products of each row are with zero. The one-hot tensor is as large as rows times classes; the
    lookup reads only the rows that it returns.

    How the worth is predicted
    What makes the one-hot tensor goes, on the host too. Each product is replaced by a lookup that reads and writes its
    rows in fp32 at {BANDWIDTH_SHARE} of the bandwidth, and takes at least {START_NS}; the gradient of the table is
    written once, and its rows are read and added.

    When not
    The tensor is made soft later, as by label smoothing. Nothing is said where the peaks of the device are not known.
    """
    lookups = one_hot_products.lookups(case)
    if not lookups:
        return
    device = case.known_device
    made, products = one_hot_products.making(case, lookups), one_hot_products.multiplying(case, lookups)
    dur_ns = made.dur_ns + products.dur_ns
    if too_little(case, "one-hot tensors are multiplied", dur_ns / case.device_ns, LEAST_SHARE):
        return
    spent_pct = 100 * dur_ns / case.device_ns
    yield Finding(
        says=f"{len(lookups) / case.step_count:.0f} one-hot tensors a step are made and multiplied: "
        f"{spent_pct:.0f} % of GPU time.",
        why="All but one of each row's products are with zero.",
        fix=Fix("Look the rows up.", "y = F.embedding(ids, table)  # not F.one_hot(ids, n).float() @ table"),
        evidence={
            "copies_ns": dur_ns // case.step_count,
            "copies_pct": spent_pct,
            "copies_per_step_count": len(lookups) / case.step_count,
            "spans": products.spans(),
        },
        where=case.places([lookup.product for lookup in lookups]),
        change=Change("rows looked up", _looked_up(device, lookups, made, products)),
        unless="the tensor is made soft later.",
    )


def _looked_up(device: Device, lookups: list[Lookup], made: DeviceWork, products: DeviceWork) -> Edit:
    """The rows read and written once, and no one-hot tensor made."""
    rate = streaming.rate_bytes_per_ns(device)
    durations = {
        task: min(dur, START_NS + round(count * ITEM_BYTES["fp32"] / rate))
        for task, dur, count in products.rows.select("task", "dur_ns", "moved_count").iter_rows()
    }
    case = made.case
    making = case.trace.spans[sorted({op for lookup in lookups for op in lookup.made_by})]
    return Edit(
        removed_host=case.during(making),
        removed_tasks=made.tasks,
        durations_ns=durations,
        modelled=frozenset(durations),
    )
