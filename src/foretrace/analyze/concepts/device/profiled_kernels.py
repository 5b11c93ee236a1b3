"""Profiled kernels: what Nsight Compute measured, by kernel and launch geometry, and which kernels of the recording those are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import polars as pl

from foretrace.analyze.concepts.names.kernel_signatures import Signature, signature
from foretrace.errors import MissingDataError
from foretrace.kernel_profile import LAUNCHES, KernelProfile
from foretrace.trace import Trace, once_per_trace

GRID, BLOCK = ("grid_x", "grid_y", "grid_z"), ("block_x", "block_y", "block_z")
GEOMETRY = (*GRID, *BLOCK)
# Of the rules of Nsight Compute 2024.1: SOLBottleneck, TheoreticalOccupancy.
_BUSY_PCT, _APART_PCT = 60, 10
_LIMITS = {
    "limit_registers_count": "registers",
    "limit_shared_count": "shared memory",
    "limit_warps_count": "block size",
    "limit_blocks_count": "blocks per SM",
    "limit_barriers_count": "barriers",
}
_NUMBERS = [name for name, (dtype, _) in LAUNCHES.items() if dtype == pl.Float64]
_HOW = "record with `foretrace run --with ncu`, or name its CSV: --ncu FILE"


@dataclass(frozen=True)
class Joined:
    """Profiled kernels, one row for each name and geometry, and the kernels of the recording that each is."""

    profiled: (
        pl.DataFrame
    )  # group, launches_count, the columns of a KernelProfile as means, calls_count and total_ns
    spans: pl.DataFrame  # span_id, group: kernels of the recording whose name and geometry were profiled
    profiled_ns: float  # time of all profiled launches, as measured there
    matched_ns: float  # of those whose name and geometry the recording has
    kernel_ns: int  # time of all kernels of the recording; 0 where it has none
    covered_ns: int  # of those that were profiled

    @property
    def matched_pct(self) -> float | None:
        """Share of the profiled launches' time that was found in the recording; None where there is none to look in."""
        return 100 * self.matched_ns / self.profiled_ns if self.kernel_ns and self.profiled_ns else None

    @property
    def covered_pct(self) -> float | None:
        """Share of the recording's kernel time whose kernels were profiled."""
        return 100 * self.covered_ns / self.kernel_ns if self.kernel_ns else None


def require_profile(trace: Trace) -> KernelProfile:
    """What Nsight Compute measured of this program; an error that says how to get it."""
    if trace.profile is None:
        raise MissingDataError(f"{trace.path.name}: no counters of kernels; {_HOW}")
    return trace.profile


@once_per_trace
def joined(trace: Trace) -> Joined:
    """The profiled kernels, and where the recording has them."""
    profile = require_profile(trace)
    groups = grouped(profile)
    kernels = _recorded(trace)
    places = _places(groups)
    found = [
        _match(name, tuple(sizes), places) for name, *sizes in kernels.select("name", *GEOMETRY).iter_rows()
    ]
    kernels = kernels.with_columns(group=pl.Series(found, dtype=pl.Int64))
    spans = kernels.explode("span_id", "dur_ns").drop_nulls("group")
    per_group = spans.group_by("group").agg(calls_count=pl.len(), total_ns=pl.col("dur_ns").sum())
    groups = groups.join(per_group, on="group", how="left", maintain_order="left")
    measured = pl.col("dur_ns") * pl.col("launches_count")
    return Joined(
        groups,
        spans.select("span_id", "group"),
        profiled_ns=float(groups.select(measured.sum()).item() or 0),
        matched_ns=float(
            groups.filter(pl.col("calls_count").is_not_null()).select(measured.sum()).item() or 0
        ),
        kernel_ns=int(trace.kernel_spans["dur_ns"].sum()) if trace.kernels.height else 0,
        covered_ns=int(spans["dur_ns"].sum()),
    )


def grouped(profile: KernelProfile) -> pl.DataFrame:
    """One row for each kernel name and geometry: how many launches were profiled, and the mean of what was measured."""
    numbers = [pl.col(name).mean() for name in _NUMBERS]
    rows = profile.launches.group_by("kernel", *GEOMETRY, maintain_order=True).agg(
        *numbers,
        pl.col("id").alias("ids"),
        pl.col("device_name").drop_nulls().first(),
        pl.col("tensor_type").drop_nulls().first(),
        launches_count=pl.len(),
    )
    return rows.with_row_index("group").with_columns(
        pl.col("group").cast(pl.Int64), bound=bound(), limiter=pl.Series(_limiters(rows), dtype=pl.String)
    )


def bound() -> pl.Expr:
    """What holds a kernel back, as ncu's own rule of the bottleneck decides it."""
    compute, memory = pl.col("sm_pct"), pl.col("memory_pct")
    return (
        pl.when(compute.is_null() | memory.is_null())
        .then(pl.lit(None, pl.String))
        .when((compute < _BUSY_PCT) & (memory < _BUSY_PCT) & (pl.col("waves") < 1))
        .then(pl.lit("small grid"))
        .when((compute < _BUSY_PCT) & (memory < _BUSY_PCT))
        .then(pl.lit("latency"))
        .when((compute - memory).abs() < _APART_PCT)
        .then(pl.lit("compute and memory"))
        .when(compute > memory)
        .then(pl.lit("compute"))
        .otherwise(pl.lit("memory"))
    )


def _limiters(rows: pl.DataFrame) -> list[str | None]:
    """What allows the fewest blocks on an SM; nothing where all its warps can be used, unknown where it was not measured."""
    found: list[str | None] = []
    for row in rows.select("theoretical_occupancy_pct", "waves", *_LIMITS).iter_rows(named=True):
        limits = {name: row[name] for name in _LIMITS if row[name] is not None}
        if not limits or row["theoretical_occupancy_pct"] is None:
            found.append(None)
            continue
        fewest = min(limits.values())
        reasons = [_LIMITS[name] for name, count in limits.items() if count == fewest]
        reasons = reasons if row["theoretical_occupancy_pct"] < 100 else []
        if row["waves"] is not None and row["waves"] < 1:
            reasons.append("small grid")
        found.append(", ".join(reasons) or "none")
    return found


def _recorded(trace: Trace) -> pl.DataFrame:
    """The recording's kernels by name and geometry, each with its spans."""
    kernels = trace.kernel_spans.drop_nulls("dur_ns").select(
        pl.col("name").cast(pl.String),
        *(pl.col(name).cast(pl.Int64) for name in GEOMETRY),
        "span_id",
        "dur_ns",
    )
    return kernels.group_by("name", *GEOMETRY, maintain_order=True).agg("span_id", "dur_ns")


Places = dict[tuple[str, tuple[int | None, ...]], list[tuple[Signature, int]]]


def _places(groups: pl.DataFrame) -> Places:
    """The profiled kernels by function and geometry."""
    places: Places = defaultdict(list)
    for group, name, *sizes in groups.select("group", "kernel", *GEOMETRY).iter_rows():
        own = signature(name)
        places[own.function, tuple(sizes)].append((own, group))
    return places


def _match(name: str, sizes: tuple[int | None, ...], places: Places) -> int | None:
    """The profiled kernel that this one is; None where there is none, or where several may be meant."""
    if None in sizes:
        return None
    own = signature(name)
    candidates = places.get((own.function, sizes), [])
    exact = [group for other, group in candidates if other == own]
    if exact:
        return exact[0]
    fitting = [group for other, group in candidates if other.fits(own)]
    return fitting[0] if len(fitting) == 1 else None
