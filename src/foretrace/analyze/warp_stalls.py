"""Warp stalls: what the warps of profiled kernels wait for between two instructions."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.concepts.device.profiled_kernels import joined, require_profile
from foretrace.analyze.result import Result, Subject, analysis
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from foretrace.units import shorten

_ISSUING = "selected"
# What each reason means, after NVIDIA's Nsight Compute documentation, "Warp Stall Reasons".
_MEANS = {
    "barrier": "other warps of the block at a barrier",
    "branch_resolving": "the target of a branch",
    "dispatch_stall": "the dispatcher",
    "drain": "stores to finish at the end of the kernel",
    "gmma": "tensor cores (wgmma)",
    "imc_miss": "constants that are not in their cache",
    "lg_throttle": "the queue of local and global memory",
    "long_scoreboard": "data of global or local memory, or textures",
    "math_pipe_throttle": "a math pipe that is in use",
    "membar": "a memory barrier",
    "mio_throttle": "the queue of shared memory and special functions",
    "misc": "other reasons",
    "no_instruction": "instructions to be fetched",
    "not_selected": "its turn: another warp was chosen",
    "short_scoreboard": "shared memory or special functions",
    "sleeping": "the end of a sleep",
    "tex_throttle": "the queue of textures",
    "wait": "a fixed number of cycles of the instruction before",
    "warpgroup_arrive": "the other warps of its group",
}


@analysis(
    Subject.COUNTERS,
    keep=("kernel", "reason", "stall_pct", "cycles_count", "waits_for"),
    denominators={"stall_pct": "of the cycles between two instructions of a warp"},
)
def warp_stalls(trace: Trace) -> Result:
    """What warps of each profiled kernel wait for between two instructions, measured by Nsight Compute.

    Columns, per kernel and reason, the kernel with most time first, then the longest wait:
        kernel: its name, as ncu prints it.
        reason: ncu's name for what a warp waits for; the instruction that is issued (selected) is no wait and left out.
        waits_for: the same in words.
        cycles_count: mean cycles that a warp spends so between two of its instructions.
        stall_pct: of all cycles between two instructions of a warp.
        issue_pct: cycles in which a scheduler issued an instruction: where this is high, waits are hidden by other warps.

    What it cannot tell: which line of the kernel waits; ncu's own source page does.
    """
    profile, join = require_profile(trace), joined(trace)
    if profile.stalls.is_empty():
        raise MissingDataError(
            f"{trace.path.name}: no stall reasons among the counters; profile with `--section WarpStateStats` and print --page raw"
        )
    groups = join.profiled.select(
        "group", "kernel", "issue_pct", "cycles_per_issue", "total_ns", "dur_ns", "launches_count", "ids"
    )
    of_launch = groups.explode("ids").select("group", pl.col("ids").alias("id"))
    cycles = (
        profile.stalls.join(of_launch, on="id")
        .group_by("group", "reason", maintain_order=True)
        .agg(pl.col("cycles").mean())
    )
    between = groups.select("group", "cycles_per_issue")
    # As ncu has it: of the measured cycles between instructions, else of the sum of what was waited for.
    whole = pl.coalesce(pl.col("cycles_per_issue"), pl.col("cycles").sum().over("group"))
    every = cycles.join(between, on="group").with_columns(stall_pct=100 * pl.col("cycles") / whole)
    rows = every.filter((pl.col("reason") != _ISSUING) & (pl.col("cycles") > 0)).join(groups, on="group")
    time = pl.coalesce(pl.col("total_ns").cast(pl.Float64), pl.col("dur_ns") * pl.col("launches_count"))
    table = (
        rows.with_columns(time=time, cycles_count=pl.col("cycles"), waits_for=_words())
        .sort("time", "group", "cycles", descending=[True, False, True], nulls_last=True)
        .select("kernel", "reason", "waits_for", "stall_pct", "cycles_count", "issue_pct")
    )
    return Result(
        says=_says(table), table=table, denominators={"issue_pct": "of cycles in which the SM was active"}
    )


def _words() -> pl.Expr:
    return pl.col("reason").replace_strict(_MEANS, default=pl.col("reason").str.replace_all("_", " "))


def _says(table: pl.DataFrame) -> str:
    if table.is_empty():
        return "no warp waited"
    first = table.row(0, named=True)
    return (
        f"warps of {shorten(first['kernel'], 60)} wait most for {first['waits_for']}: "
        f"{first['stall_pct']:.0f} % of the cycles between two of their instructions"
    )
