"""How fast the GPU itself ran: by kernels that both recordings hold, launched in the same way.

A lower clock, or another program on the same GPU, slows the same kernels down. That is no change of the program.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from foretrace import analyze
from foretrace.errors import MissingDataError
from foretrace.sourced import JUDGEMENT, Count, Share
from foretrace.trace import Trace

Launch = tuple[str, str, str]  # name, grid and block
Kernels = Mapping[Launch, tuple[int, float]]  # how often it ran, and the sum of its durations

FEWEST = Count(
    10, "kernels in both, below which a change of their times may be one of the program", JUDGEMENT
)
ENOUGH = Share(0.5, "the GPU time of either recording, in kernels that both have", JUDGEMENT)


def kernel_times(trace: Trace) -> Kernels:
    """Every kernel of a recording, by how it is launched; empty where none was recorded."""
    try:
        table = analyze.run(trace, "kernels", group_by="config").table
    except MissingDataError:
        return {}
    launch = [pl.col(name).cast(pl.String).fill_null("") for name in ("name", "grid", "block")]
    sums = table.group_by(launch).agg(pl.col("calls_count").sum(), pl.col("total_ns").sum())
    return {(name, grid, block): (calls, total) for name, grid, block, calls, total in sums.iter_rows()}


def slowed(before: Kernels, after: Kernels) -> float:
    """What the same kernels took after, as a multiple of before; 1 where too few are the same to tell."""
    both = before.keys() & after.keys()
    if len(both) < FEWEST:
        return 1.0
    for kernels in (before, after):
        total_ns = sum(time_ns for _, time_ns in kernels.values())
        if sum(kernels[launch][1] for launch in both) < ENOUGH * total_ns:
            return 1.0
    before_ns = sum(before[launch][1] for launch in both)
    after_ns = sum(after[launch][1] / after[launch][0] * before[launch][0] for launch in both)
    return after_ns / before_ns if before_ns and after_ns else 1.0
