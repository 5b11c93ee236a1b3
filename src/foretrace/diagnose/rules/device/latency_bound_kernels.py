"""Profiled kernels that use neither the compute pipes nor the memory system much: they wait."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.concepts.device.profiled_kernels import joined
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import KERNELS, PROFILED, headline, needs, on, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Nanoseconds, Share

LEAST_SHARE = Share(0.05, "GPU time", JUDGEMENT)
LONG_NS = Nanoseconds(10_000, "a kernel; shorter ones are a matter of launches", JUDGEMENT)
WAITING = Share(
    0.60, "the peak of compute and of memory, below which ncu says latency", "Nsight Compute, SOLBottleneck"
)
AT_LIMIT = Share(
    0.80, "the peak, from which ncu says that a kernel is at its limit", "Nsight Compute, SOLBottleneck"
)


@on(PROFILED)
@needs(KERNELS)
@headline("{waiting_pct:.0f} % of GPU time is in kernels that wait more than they work")
@rule("Kernels wait more than they work", "Kernels", see="profiled")
def latency_bound_kernels(case: Case) -> Iterator[Finding]:
    """Profiled kernels of {LONG_NS} and more that use less than {WAITING} of compute and of memory.

    Finds kernels that Nsight Compute measured (--ncu FILE) below {WAITING} of the peak of the compute pipes and of the memory
    system, where they take at least {LEAST_SHARE} of GPU time.

    Slow
        for row in range(rows):
            out[row] = torch.softmax(x[row], -1)  # a few blocks at a time

    Fast
        out = torch.softmax(x, -1)  # one launch over all rows

    Why
    Nothing of the device is used well: warps wait for each other, for memory or for instructions, and there are too few of them
    to hide it. `foretrace show warp-stalls` says what they wait for, `foretrace show profiled` what limits their number.

    How the worth is predicted
    Each is replayed in the time that its work would take at {AT_LIMIT} of the peak that it uses most, as measured. Nothing is
    promised: how near a kernel comes to its limit depends on its code.

    When not
    The kernel is a library's, and no other version of it exists for these sizes.
    """
    join = joined(case.trace)
    facts = join.profiled.select(
        "group", "limiter", "bound", "occupancy_pct", reached=pl.max_horizontal("sm_pct", "memory_pct") / 100
    )
    measured = join.spans.join(facts, on="group").rename({"span_id": "id"})
    kernels = case.tasks.join(measured, on="id", maintain_order="left")
    waiting = (pl.col("dur_ns") >= LONG_NS) & (pl.col("reached") < WAITING)
    work = DeviceWork(case, kernels).where(waiting)
    if too_little(case, "profiled kernels that wait more than they work", work.gpu_share, LEAST_SHARE):
        return
    name, reached, limiter, occupancy = _longest(work)
    limits = "" if limiter in (None, "none") else f", limited by {limiter}"
    yield Finding(
        says=f"{work.per_step_count:.0f} kernels a step reach less than {WAITING} of what the device can do: "
        f"{work.gpu_pct:.0f} % of GPU time.",
        why=f"The longest, {name[:60]}, uses {100 * reached:.0f} % of its limit; its occupancy is {occupancy:.0f} %{limits}."
        if occupancy is not None
        else f"The longest, {name[:60]}, uses {100 * reached:.0f} % of its limit.",
        fix=Fix(
            "Give each launch more work, or use a kernel that is made for these sizes.",
            "y = torch.compile(function)(x)  # or one call over more rows; ncu says more: foretrace show ncu-rules",
        ),
        evidence=work.evidence("waiting", counted="kernels", kernel=name, reached_pct=100 * reached),
        where=work.places(),
        change=Change(
            f"these kernels at {AT_LIMIT} of their measured limit",
            _at_limit(work),
            doubt="how near a kernel comes to its limit depends on its code",
        ),
        unless="the kernel is a library's, and there is no other for these sizes.",
    )


def _longest(work: DeviceWork) -> tuple[str, float, str | None, float | None]:
    by_name = work.rows.group_by(pl.col("name").cast(pl.String)).agg(
        pl.col("dur_ns").sum(),
        pl.col("reached").mean(),
        pl.col("limiter").first(),
        pl.col("occupancy_pct").mean(),
    )
    name, _, reached, limiter, occupancy = by_name.sort("dur_ns", descending=True).row(0)
    return name, reached, limiter, occupancy


def _at_limit(work: DeviceWork) -> Edit:
    durations = {
        task: round(dur * reached / AT_LIMIT)
        for task, dur, reached in work.rows.select("task", "dur_ns", "reached").iter_rows()
    }
    return Edit(durations_ns=durations, modelled=frozenset(durations))
