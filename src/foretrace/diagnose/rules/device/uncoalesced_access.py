"""Profiled kernels whose threads use little of the memory that they move."""

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
WASTED = Share(0.30, "the sectors that a kernel's global loads and stores move", JUDGEMENT)
AT_LIMIT = Share(
    0.80, "the peak, from which ncu says that a kernel is at its limit", "Nsight Compute, SOLBottleneck"
)
_BOUND = "memory"


@on(PROFILED)
@needs(KERNELS)
@headline("{uncoalesced_pct:.0f} % of GPU time is in kernels that move memory which no thread asked for")
@rule("Kernels move memory that no thread asked for", "Kernels", see="memory-access")
def uncoalesced_access(case: Case) -> Iterator[Finding]:
    """Profiled kernels that wait for memory and use little of each sector that they move.

    Finds kernels of {LONG_NS} and more that Nsight Compute measured (--ncu FILE) as bound by memory, of whose sectors at least
    {WASTED} are in excess of what their threads ask for, where they take at least {LEAST_SHARE} of GPU time.

    Slow
        y = x.t().contiguous()  # neighbouring threads read elements a row apart

    Fast
        y = x.t()  # a view; a product reads either order at full speed

    Why
    Memory moves in sectors of 32 bytes. Where neighbouring threads read elements far apart, each brings a sector for four bytes,
    and caches are busy with what nobody uses.

    How the worth is predicted
    Each is replayed in the time that the sectors which are asked for take, but not below the time that its traffic with device
    memory takes at {AT_LIMIT} of the measured bandwidth. Nothing is promised: whether the order can change depends on the code.

    When not
    The order of the elements is what the kernel is for, as in a transpose that something needs.
    """
    join = joined(case.trace)
    facts = join.profiled.select(
        "group", "bound", wasted=pl.col("excess_sectors_pct") / 100, dram=pl.col("dram_pct") / 100
    )
    measured = join.spans.join(facts, on="group").rename({"span_id": "id"})
    kernels = case.tasks.join(measured, on="id", maintain_order="left")
    work = DeviceWork(case, kernels).where(
        pl.col("dur_ns") >= LONG_NS, pl.col("bound") == _BOUND, pl.col("wasted") >= WASTED
    )
    if too_little(case, "profiled kernels that move memory in vain", work.gpu_share, LEAST_SHARE):
        return
    by_name = work.rows.group_by(pl.col("name").cast(pl.String)).agg(
        pl.col("dur_ns").sum(), pl.col("wasted").mean()
    )
    name, _, wasted = by_name.sort("dur_ns", descending=True).row(0)
    yield Finding(
        says=f"{work.per_step_count:.0f} kernels a step wait for memory that no thread asked for: {work.gpu_pct:.0f} % of GPU time.",
        why=f"Of the sectors that {name[:60]} moves, {100 * wasted:.0f} % are in excess: neighbouring threads do not read "
        "neighbouring elements.",
        fix=Fix(
            "Keep the order of the elements, or change it once instead of in every step.",
            "y = x.t()  # a view, without .contiguous(); or store x in the order in which it is read",
        ),
        evidence=work.evidence("uncoalesced", counted="kernels", kernel=name, wasted_pct=100 * wasted),
        where=work.places(),
        change=Change(
            "only the sectors that threads ask for moved",
            _without_waste(work),
            doubt="whether the elements can be read in another order depends on the code",
        ),
        unless="the order of the elements is what the kernel is for.",
    )


def _without_waste(work: DeviceWork) -> Edit:
    durations = {
        task: round(dur * min(max(1 - wasted, (dram or 0.0) / AT_LIMIT), 1.0))
        for task, dur, wasted, dram in work.rows.select("task", "dur_ns", "wasted", "dram").iter_rows()
    }
    return Edit(durations_ns=durations, modelled=frozenset(durations))
