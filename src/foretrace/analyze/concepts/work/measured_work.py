"""Measured work: what kernels computed and moved, and how near to the device's limit, where Nsight Compute measured them."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.concepts.device.profiled_kernels import joined
from foretrace.trace import Trace

MEASURED, ESTIMATED = "ncu", "shapes"  # where a row's work is known from
# Sums over kernels; `measured` says whether all of them were measured.
SUMS = ("measured_bytes", "measured_flops", "measured_roof_ns", "measured_compute_ns")


def with_measured(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels (with `id` and `dur_ns`) with what was measured of each; nothing was where no profile is at hand.

    The time at the limit is the recorded one times the share of its peak that the most used part of the device reached: a kernel
    that uses a part at 90 % could take nine tenths of its time and no less, doing the same.
    """
    if trace.profile is None:
        return kernels.with_columns(
            *(pl.lit(None, pl.Float64).alias(name) for name in SUMS), measured=pl.lit(value=False)
        )
    join = joined(trace)
    seconds = pl.col("dur_ns") / 1e9
    flops = pl.sum_horizontal(
        "fp32_flops_per_s", "fp64_flops_per_s", "tensor_flops_per_s", ignore_nulls=False
    )
    of_group = join.profiled.select(
        "group",
        measured_bytes=pl.col("dram_bytes"),
        measured_flops=flops * seconds,
        reached=pl.max_horizontal("sm_pct", "memory_pct") / 100,
        computes=pl.col("sm_pct") >= pl.col("memory_pct"),
    )
    found = kernels.join(
        join.spans, left_on="id", right_on="span_id", how="left", maintain_order="left"
    ).join(of_group, on="group", how="left", maintain_order="left")
    at_limit = pl.col("dur_ns") * pl.col("reached")
    return found.with_columns(
        measured_roof_ns=at_limit,
        measured_compute_ns=pl.when("computes").then(at_limit).otherwise(0.0),
        measured=pl.col("reached").is_not_null() & pl.col("measured_bytes").is_not_null(),
    ).drop("group", "reached", "computes")


def summed() -> list[pl.Expr]:
    """Aggregates of kernels, or of sums of them: null where one of them is not known."""
    sums = [pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).alias(name) for name in SUMS]
    return [*sums, pl.col("measured").all()]


def as_measured(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls whose kernels ncu measured with what it measured, where shapes gave no more than a lower bound."""
    if not calls["measured"].any():
        return calls.with_columns(source=pl.lit(ESTIMATED))
    names = {"flops": "measured_flops", "bytes": "measured_bytes", "roof_ns": "measured_roof_ns"}
    names |= {"compute_ns": "measured_compute_ns"}
    replaced = {
        own: pl.when("measured")
        .then(pl.coalesce(measured, pl.col(own).cast(pl.Float64)))
        .otherwise(pl.col(own))
        for own, measured in names.items()
    }
    told = pl.when("measured").then(pl.lit(MEASURED)).otherwise(pl.lit(ESTIMATED))
    model = pl.when("measured").then(pl.coalesce("model", pl.lit(MEASURED))).otherwise(pl.col("model"))
    return calls.with_columns(**replaced, source=told, model=model)


def as_calls(rest: pl.DataFrame) -> pl.DataFrame:
    """Kernels that no operator with a model launched, where ncu measured them."""
    return rest.filter("measured").select(
        "op", "shapes", "kernel", "dtype", "time_ns", "calls_count",
        indirect=pl.lit(value=False),
        model=pl.lit(MEASURED),
        source=pl.lit(MEASURED),
        flops=pl.col("measured_flops"),
        bytes=pl.col("measured_bytes"),
        roof_ns=pl.col("measured_roof_ns"),
        compute_ns=pl.col("measured_compute_ns"),
    )  # fmt: skip


def profiled_calls(trace: Trace) -> pl.DataFrame:
    """Of counters alone: one row for each kernel, as rows of calls are."""
    groups = joined(trace).profiled
    launches = pl.col("launches_count")
    reached = pl.max_horizontal("sm_pct", "memory_pct") / 100
    time = pl.col("dur_ns") * launches
    flops_per_s = pl.sum_horizontal(
        "fp32_flops_per_s", "fp64_flops_per_s", "tensor_flops_per_s", ignore_nulls=False
    )
    return groups.select(
        "kernel",
        why=pl.lit(None, pl.String),
        dtype=pl.coalesce("tensor_type", pl.lit("fp32")),
        model=pl.lit(MEASURED),
        source=pl.lit(MEASURED),
        indirect=pl.lit(value=False),
        l2_bytes=pl.lit(None, pl.Int64),
        calls_count=launches,
        time_ns=time,
        flops=flops_per_s * time / 1e9,
        bytes=pl.col("dram_bytes") * launches,
        roof_ns=time * reached,
        compute_ns=pl.when(pl.col("sm_pct") >= pl.col("memory_pct")).then(time * reached).otherwise(0.0),
    )
