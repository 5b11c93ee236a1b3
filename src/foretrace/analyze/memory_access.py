"""Memory access: how well profiled kernels use the memory system."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.concepts.device.profiled_kernels import joined, require_profile
from foretrace.analyze.result import Result, Subject, analysis
from foretrace.trace import Trace
from foretrace.units import counted, shorten

_SECTOR = 32  # bytes
_POOR_PCT = 50


@analysis(
    Subject.COUNTERS,
    keep=(
        "kernel",
        "load_use_pct",
        "store_use_pct",
        "l1_hit_pct",
        "l2_hit_pct",
        "dram_pct",
        "bank_conflicts_count",
    ),
    denominators={
        "load_use_pct": "of the 32 bytes of a sector",
        "store_use_pct": "of the 32 bytes of a sector",
        "excess_sectors_pct": "of the sectors that global loads and stores move",
        "l1_hit_pct": "of sectors looked up in the L1 cache",
        "l2_hit_pct": "of sectors looked up in the L2 cache",
        "l1_pct": "of the peak of the L1 cache",
        "l2_pct": "of the peak of the L2 cache",
        "dram_pct": "of the peak of device memory",
    },
)
def memory_access(trace: Trace) -> Result:
    """Use of sectors, cache hits, bank conflicts and spills of each profiled kernel, measured by Nsight Compute.

    Columns, the kernel with most time first:
        kernel: its name, as ncu prints it.
        load_use_pct, store_use_pct: of each 32-byte sector that global loads and stores move, what threads use; null where there
            were none. Below 100 % neighbouring threads do not touch neighbouring bytes.
        excess_sectors_pct: sectors beyond those that would do for what threads ask for.
        l1_hit_pct, l2_hit_pct: sectors that were found in the cache.
        l1_pct, l2_pct, dram_pct: throughput of the caches and of device memory.
        dram_bytes: read from and written to device memory by a launch.
        bank_conflicts_count: conflicts between threads in shared memory, a launch.
        spills_count: requests to local memory for registers that did not fit, a launch.

    What it cannot tell: which line does it; ncu's own source page does. TMA's loads are not counted as loads of threads.
    """
    require_profile(trace)
    join = joined(trace)
    time = pl.coalesce(pl.col("total_ns").cast(pl.Float64), pl.col("dur_ns") * pl.col("launches_count"))
    table = (
        join.profiled.with_columns(
            time=time, load_use_pct=_use("load_bytes_per_sector"), store_use_pct=_use("store_bytes_per_sector")
        )
        .sort("time", descending=True, nulls_last=True, maintain_order=True)
        .select(
            "kernel", "load_use_pct", "store_use_pct", "excess_sectors_pct", "l1_hit_pct", "l2_hit_pct", "l1_pct", "l2_pct", "dram_pct",
            "dram_bytes", "bank_conflicts_count", "spills_count",
        )
    )  # fmt: skip
    return Result(says=_says(table), table=table)


def _use(name: str) -> pl.Expr:
    return pl.when(pl.col(name) > 0).then(100 * pl.col(name) / _SECTOR)


def _says(table: pl.DataFrame) -> str:
    poor = table.filter((pl.col("load_use_pct") < _POOR_PCT) | (pl.col("store_use_pct") < _POOR_PCT))
    if table["load_use_pct"].null_count() == table.height == table["store_use_pct"].null_count():
        return (
            f"caches and device memory of {counted(table.height, 'kernel')}; use of sectors was not measured"
        )
    if poor.is_empty():
        return f"no profiled kernel wastes more than {100 - _POOR_PCT} % of the sectors that its threads move"
    first = poor.row(0, named=True)
    used = min(pct for pct in (first["load_use_pct"], first["store_use_pct"]) if pct is not None)
    return f"threads of {shorten(first['kernel'], 60)} use {used:.0f} % of the bytes that they move: access is not coalesced"
