"""Profiled: how fast each kernel ran against the device's limits, as Nsight Compute measured it."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.concepts.device.profiled_kernels import BLOCK, GRID, Joined, joined, require_profile
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.trace import Trace
from foretrace.units import counted, format_value, shorten

_WARP = 32
_COLUMNS = (
    "kernel", "total_ns", "total_pct", "roof_pct", "bound", "sm_pct", "memory_pct", "dram_pct", "occupancy_pct",
    "theoretical_occupancy_pct", "limiter", "warp_efficiency_pct", "achieved_flops_per_s", "tensor_type",
    "achieved_bytes_per_s", "intensity_flops_per_byte", "dram_bytes", "measured_ns", "calls_count", "launches_count",
    "waves_count", "registers_count", "grid", "block", "matched",
)  # fmt: skip


@analysis(
    Subject.COUNTERS,
    keep=(
        "kernel",
        "total_ns",
        "total_pct",
        "roof_pct",
        "bound",
        "occupancy_pct",
        "limiter",
        "achieved_bytes_per_s",
    ),
    denominators={
        "total_pct": "of the summed duration of all rows",
        "roof_pct": "of the peak of the part of the device that is used most: compute or memory",
        "sm_pct": "of the peak of the compute pipes",
        "memory_pct": "of the peak of the most used part of the memory system",
        "dram_pct": "of the peak of device memory",
        "occupancy_pct": "of the warps that an SM can hold, while it was active",
        "theoretical_occupancy_pct": "of the warps that an SM can hold",
        "warp_efficiency_pct": "of the 32 threads of a warp",
        "matched_pct": "of the time of the profiled launches, as measured by ncu",
        "covered_pct": "of the summed duration of the recording's kernels",
    },
)
def profiled(trace: Trace) -> Result:
    """Speed of light, occupancy and its limiter, warp efficiency and roofline of each kernel, measured by Nsight Compute.

    One row for each kernel and launch geometry that was profiled, longest first. Where a recording of the same program is at
    hand, its kernels are found by name and geometry, and its times are used; ncu's own are of kernels that ran alone.

    Columns:
        kernel: its name, as ncu prints it.
        total_ns: summed duration of these kernels in the recording; without one, of the profiled launches.
        total_pct: of the summed duration of all rows.
        roof_pct: how much of its peak the most used part of the device reached: the larger of sm_pct and memory_pct.
        bound: by ncu's rule: compute or memory, whichever is larger, where one is at least 60 %; compute and memory, where they
            are within 10 points; small grid, below 60 % of both with less than one wave of blocks; latency, below otherwise.
        sm_pct, memory_pct, dram_pct: throughput of the SMs, of the memory system's busiest part, and of device memory.
        occupancy_pct, theoretical_occupancy_pct: warps that were active, and that registers, shared memory and block size allow.
        limiter: what allows the fewest blocks on an SM; small grid, where there are fewer blocks than a wave has.
        warp_efficiency_pct: threads that an instruction runs for, on average.
        achieved_flops_per_s: of tensor cores, fp32 and fp64 instructions; fp16 instructions are not counted, since compilers
            also move constants with them. Null where tensor cores worked and their operations were not counted.
        tensor_type: what tensor cores multiplied.
        achieved_bytes_per_s, dram_bytes: read from and written to device memory, a second and by each launch.
        intensity_flops_per_byte: achieved_flops_per_s / achieved_bytes_per_s.
        measured_ns: mean duration of the profiled launches.
        calls_count: kernels of the recording; launches_count: launches that were profiled.
        waves_count: how often the GPU is filled with blocks. registers_count: registers of a thread.
        grid, block: launch geometry.
        matched: whether the recording has this kernel with this geometry; null without a recording.

    What it cannot tell: how kernels run beside each other; ncu runs one at a time, many times over, with caches emptied before
    each unless it was told otherwise.
    """
    profile, join = require_profile(trace), joined(trace)
    table = _table(join)
    values: dict[str, Value] = {
        "launches_count": profile.height,
        "profiled_ns": join.profiled_ns,
        "matched_pct": join.matched_pct,
        "covered_pct": join.covered_pct,
    }
    names = ", ".join(path.name for path in profile.paths)
    notes = [f"measured by Nsight Compute: {names}", *profile.notes]
    return Result(says=_says(table, join, profile.height), table=table, values=values, notes=tuple(notes))


def _table(join: Joined) -> pl.DataFrame:
    known = bool(join.kernel_ns)
    measured = pl.col("dur_ns") * pl.col("launches_count")
    flops = pl.sum_horizontal(
        "fp32_flops_per_s", "fp64_flops_per_s", "tensor_flops_per_s", ignore_nulls=False
    )
    moved = pl.when(pl.col("dram_bytes_per_s") > 0).then("dram_bytes_per_s")
    rows = join.profiled.with_columns(
        total_ns=pl.col("total_ns").cast(pl.Float64) if known else measured,
        calls_count=pl.col("calls_count") if known else pl.lit(None, pl.UInt32),
        matched=pl.col("calls_count").is_not_null() if known else pl.lit(None, pl.Boolean),
        roof_pct=pl.max_horizontal("sm_pct", "memory_pct"),
        warp_efficiency_pct=100 * pl.col("active_threads") / _WARP,
        achieved_flops_per_s=flops,
        achieved_bytes_per_s=pl.col("dram_bytes_per_s"),
        intensity_flops_per_byte=flops / moved,
        measured_ns=pl.col("dur_ns"),
        waves_count=pl.col("waves"),
        registers_count=pl.col("registers"),
        grid=_size(GRID),
        block=_size(BLOCK),
    )
    whole = pl.col("total_ns").sum()
    rows = rows.with_columns(total_pct=pl.when(whole > 0).then(100 * pl.col("total_ns") / whole))
    return rows.sort("total_ns", descending=True, nulls_last=True, maintain_order=True).select(_COLUMNS)


def _size(names: tuple[str, ...]) -> pl.Expr:
    return pl.concat_str([pl.col(name).cast(pl.String) for name in names], separator="x")


def _says(table: pl.DataFrame, join: Joined, launches: int) -> str:
    first = table.row(0, named=True)
    says = f"{launches:,} launches of {counted(table.height, 'kernel')} profiled"
    if join.matched_pct is not None:
        says += f", {join.matched_pct:.1f} % of their time found in the recording ({join.covered_pct:.1f} % of its kernel time)"
    if first["total_pct"] is None or first["roof_pct"] is None:
        return says
    name = shorten(first["kernel"], 60)
    limits = "" if first["limiter"] in (None, "none") else f", limited by {first['limiter']}"
    occupancy = (
        "" if first["occupancy_pct"] is None else f"; occupancy {first['occupancy_pct']:.0f} %{limits}"
    )
    moved = first["achieved_bytes_per_s"]
    rate = "" if moved is None else f", {format_value('_bytes_per_s', moved)} of memory"
    return (
        f"{says}; {name} takes {first['total_pct']:.0f} % and reaches {first['roof_pct']:.0f} % of its limit "
        f"({first['bound']}){rate}{occupancy}"
    )
