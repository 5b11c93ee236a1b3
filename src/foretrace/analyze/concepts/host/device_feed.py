"""How much of the time the host kept the GPU fed with work."""

from __future__ import annotations

import polars as pl

from foretrace.sourced import JUDGEMENT, Factor
from foretrace.trace import Trace, once_per_trace

# In the corpus, GPU-limited programs lie above 99 %, others below 90 %.
FED_PCT = Factor(
    90.0, "per cent of the time with work running or queued, from which a program is GPU-limited", JUDGEMENT
)


@once_per_trace
def fed_pct(trace: Trace) -> float | None:
    """Share of the time, from the first to the last launched work, in which a GPU had work running or queued."""
    work = trace.device_spans.select("start_ns", "end_ns", "launch_id").drop_nulls("launch_id")
    if not work.height:
        return None
    launch_ns = trace.spans["start_ns"].gather(work["launch_id"])
    reach = pl.col("end_ns").cum_max().shift(1)
    waits = work.select(  # in order of start, as all spans are
        wait_ns=pl.when(pl.lit(launch_ns) > reach).then((pl.col("start_ns") - reach).clip(0)).otherwise(0)
    )
    first, last = work.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    share: float = 100 * (1 - int(waits["wait_ns"].sum() or 0) / max(last - first, 1))
    return share


def gpu_bound(trace: Trace) -> bool:
    """Whether the GPU hardly ever waited for the host, so that the host's delays cost nothing."""
    fed = fed_pct(trace)
    return fed is not None and fed >= FED_PCT
