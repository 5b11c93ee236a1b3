"""Ncu rules: what Nsight Compute itself advises for each profiled kernel."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.concepts.device.profiled_kernels import joined, require_profile
from foretrace.analyze.result import Result, Subject, analysis
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from foretrace.units import counted, shorten

_OPTIMISE = "OPT"


@analysis(
    Subject.COUNTERS,
    keep=("kernel", "rule", "speedup_pct", "speedup_type", "says"),
    denominators={
        "speedup_pct": "of the kernel's time (global), or of the part that the rule looks at (local)"
    },
)
def ncu_rules(trace: Trace, *, information: bool = False) -> Result:
    """Nsight Compute's own rule results for each profiled kernel, with the speed-up that it estimates.

    Rules are part of ncu's details page (`--page details --csv`) and of reports. Columns, the kernel with most time first, then
    the largest estimate:
        kernel: its name, as ncu prints it.
        rule: ncu's name of the rule; section: of its report.
        kind: OPT, something to improve; WRN, a warning; INF, information (--information).
        speedup_pct: what ncu estimates to gain; speedup_type: global, of the kernel's time; local, of the part the rule is about.
        says: ncu's words.

    What it cannot tell: whether a change is possible. ncu's estimates assume that nothing else becomes the limit.
    """
    profile, join = require_profile(trace), joined(trace)
    if profile.rules.is_empty():
        raise MissingDataError(
            f"{trace.path.name}: no rule results: ncu's raw page has none; print its details page too (--page details --csv)"
        )
    groups = join.profiled.select("group", "kernel", "total_ns", "dur_ns", "launches_count", "ids")
    of_launch = groups.explode("ids").select(
        "group", "kernel", "total_ns", "dur_ns", "launches_count", id="ids"
    )
    time = pl.coalesce(pl.col("total_ns").cast(pl.Float64), pl.col("dur_ns") * pl.col("launches_count"))
    rows = profile.rules if information else profile.rules.filter(pl.col("kind") != "INF")
    table = (
        rows.join(of_launch, on="id")
        .with_columns(time=time)
        # Several launches of one kernel: what is said of each is much the same.
        .unique(("group", "rule", "section", "speedup_type"), keep="first", maintain_order=True)
        .sort(
            "time",
            "group",
            "speedup_pct",
            descending=[True, False, True],
            nulls_last=True,
            maintain_order=True,
        )
        .select("kernel", "rule", "section", "kind", "speedup_pct", "speedup_type", "says")
    )
    return Result(says=_says(table), table=table)


def _says(table: pl.DataFrame) -> str:
    advice = table.filter(pl.col("kind") == _OPTIMISE)
    says = f"{counted(advice.height, 'piece')} of advice for {counted(advice['kernel'].n_unique(), 'kernel')}"
    best = advice.filter(pl.col("speedup_type") == "global").drop_nulls("speedup_pct")
    if best.is_empty():
        return says
    first = best.sort("speedup_pct", descending=True).row(0, named=True)
    return f"{says}; the largest estimate is {first['speedup_pct']:.0f} % for {shorten(first['kernel'], 60)} ({first['rule']})"
