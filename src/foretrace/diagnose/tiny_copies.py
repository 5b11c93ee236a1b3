"""Many small copies from the host, each with its own call and wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.runtime_calls import NOBODY, HostSpans
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_SMALL_BYTES = 64 << 10
_LEAST_PER_STEP, _LEAST_SHARE = 3, 0.02  # of the host's time
_COPYING = (
    r"^aten::(?:to|_to_copy|copy_|_copy_from|lift_fresh|item|fill_|index_put_|full|scalar_tensor|tensor)$"
)


@rule
def tiny_copies(case: Case) -> Iterator[Finding]:
    """Small tensors made on the host and copied to the device one by one, in every step.

    What it does
    Looks for at least three copies a step of less than 64 KB from the host, whose operators take at least 2 %
    of the host's time. The replay keeps the first copy of each step and drops the others with their
    operators and waits.

    Why it matters
    Each costs an operator, a call and, from pageable memory, a wait for the device, to move a few bytes.

    Use instead
    torch.arange(n, device="cuda") instead of torch.arange(n).cuda(); make constants once; copy one tensor.
    """
    copies = case.trace.require("copies", "no copies recorded; record with ProfilerActivity.CUDA")
    small = copies.filter((pl.col("direction") == "HtoD") & (pl.col("size_bytes") < _SMALL_BYTES))
    mine = case.tasks.join(
        small.select(pl.col("span_id").alias("id"), "size_bytes"), on="id", maintain_order="left"
    )
    if mine.height < _LEAST_PER_STEP * case.step_count:
        return
    step = pl.Series("step", case.program.step[mine["call"].to_numpy()])
    dropped = mine.with_columns(step).filter(pl.int_range(pl.len()).over("step") > 0)
    host = _operators(case, dropped["launch_id"].drop_nulls().cast(pl.Int64).to_numpy())
    if host.total_ns < _LEAST_SHARE * case.program.measured_host_ns:
        return
    program = case.program
    inside = intervals.covered_ns(host, program.call_start_ns, program.call_end_ns) > 0
    moved = int(mine["size_bytes"].sum())
    yield Finding(
        rule="tiny-copies",
        says=f"{mine.height / case.step_count:.3g} copies a step bring {moved / mine.height:.0f} bytes each to the device; "
        f"they take the host {host.total_ns / case.step_count / 1e6:.3g} ms.",
        why="A copy of a few bytes costs the host as much as a kernel, and from pageable memory a wait as well.",
        fix=Fix(
            "Make small tensors on the device, or copy them together.",
            'mask = torch.arange(n, device="cuda")   # not: torch.arange(n).cuda()',
        ),
        evidence={
            "copies_per_step_count": mine.height / case.step_count,
            "mean_bytes": moved / mine.height,
            "host_ns": host.total_ns // case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().to_list()),
        change=Change(
            "small copies made once a step", Edit(removed_host=host, removed_calls=np.flatnonzero(inside))
        ),
        unless="the values are made on the host from what only it knows, and differ from copy to copy.",
    )


def _operators(case: Case, calls: NDArray[np.int64]) -> intervals.Intervals:
    """The host time of the outermost copying operators around these calls; of the call where there is none."""
    host = HostSpans(case.trace)
    outer = host.outermost(calls, host.named(_COPYING, "op"))
    spans = np.unique(np.where(outer == NOBODY, calls, outer))
    return intervals.union(
        host.start_ns[spans] - case.program.start_ns, host.end_ns[spans] - case.program.start_ns
    )
