"""Counters: what CUPTI's range profiler counted on the device, per kernel or per range."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from foretrace.units import counted, format_value

# unit__what.how, as CUPTI names its metrics; Kineto's own begin with kineto__.
_METRIC = r"^[a-z0-9]+__[a-z0-9_]+(?:\.[a-z0-9_]+)*$"
_SHARE = r"\.pct"
# Instructions of the CUDA cores that compute, and the FLOPs of each.
_FLOPS = (
    (r"^smsp__sass_thread_inst_executed_op_[dfh](?:add|mul)_pred_on\.sum$", 1),
    (r"^smsp__sass_thread_inst_executed_op_[dfh]fma_pred_on\.sum$", 2),
)


@analysis(
    Subject.COUNTERS,
    denominators={
        "mean_pct": "of the counter's own peak, a mean over the ranges",
        "mean_count": "per range",
    },
)
def counters(trace: Trace) -> Result:
    """Hardware counters that CUPTI's range profiler recorded, per kernel or range and metric.

    torch.profiler records them where it was given metrics:
    `profile(experimental_config=_ExperimentalConfig(profiler_metrics=[...], profiler_measure_per_kernel=True))`.
    With profiler_measure_per_kernel a range is one kernel, otherwise it is the whole recording.

    Columns:
        name: the kernel, or the range; CUPTI calls a range without a name __missing__.
        metric: as CUPTI names it.
        ranges_count: how often it was counted.
        total_count, mean_count: the sum over the ranges, and per range.
        mean_pct: for metrics that are a share of a peak (.pct), which have no sum.

    Values: cuda_core_flops are FLOPs of the CUDA cores, from the executed instructions (an addition or a multiplication is
    one, a fused multiply-add two; half-precision instructions count as one operation each), null where they were not
    counted. Tensor cores are not among them.

    What it cannot tell: how long a kernel takes without counters. CUPTI runs kernels one at a time while it counts, and some
    several times, so times of such a recording are no measure of the program.
    """
    ranges = _ranges(trace)
    if ranges.is_empty():
        raise MissingDataError(
            f"{trace.path.name}: no hardware counters recorded; give torch.profiler "
            "experimental_config=_ExperimentalConfig(profiler_metrics=[...]), or record with `foretrace run --with ncu`"
        )
    is_share = pl.col("metric").str.contains(_SHARE)
    table = (
        ranges.group_by("name", "metric", maintain_order=True)
        .agg(ranges_count=pl.len(), sum=pl.col("value").sum(), mean=pl.col("value").mean())
        .select(
            "name",
            "metric",
            "ranges_count",
            pl.when(~is_share).then("sum").alias("total_count"),
            pl.when(~is_share).then("mean").alias("mean_count"),
            pl.when(is_share).then("mean").alias("mean_pct"),
        )
    )
    size = pl.coalesce("total_count", "mean_pct")
    table = table.sort(
        size.sum().over("metric"), "metric", size, "name", descending=[True, False, True, False]
    )
    values: dict[str, Value] = {
        "ranges_count": ranges["span_id"].n_unique(),
        "metrics_count": ranges["metric"].n_unique(),
        "cuda_core_flops": _cuda_core_flops(ranges),
    }
    return Result(says=_says(values), table=table, values=values, notes=_NOTES)


_NOTES = ("recorded with counters: kernels ran one at a time, some several times, so times are no measure",)


def _ranges(trace: Trace) -> pl.DataFrame:
    """One row per counted range and metric: span_id, name, metric, value."""
    keys = trace.args["key"].unique()
    metrics = keys.filter(keys.cast(pl.String).str.contains(_METRIC))
    found = trace.args.filter(pl.col("key").is_in(metrics.implode()))
    value = pl.coalesce(pl.col("int").cast(pl.Float64), "float")
    rows = found.select("span_id", metric=pl.col("key").cast(pl.String), value=value).drop_nulls("value")
    names = trace.spans["name"].gather(rows["span_id"]).cast(pl.String)
    return rows.with_columns(names.alias("name"))


def _cuda_core_flops(ranges: pl.DataFrame) -> int | None:
    counted_rows = [
        (ranges.filter(pl.col("metric").str.contains(pattern))["value"], each) for pattern, each in _FLOPS
    ]
    if not any(len(values) for values, _ in counted_rows):
        return None
    return round(sum(float(values.sum()) * each for values, each in counted_rows))


def _says(values: dict[str, Value]) -> str:
    ranges, metrics = int(values["ranges_count"] or 0), int(values["metrics_count"] or 0)
    flops = values["cuda_core_flops"]
    work = f"; the CUDA cores computed {format_value('_flops', flops)}" if flops is not None else ""
    return f"{counted(metrics, 'hardware counter')} over {counted(ranges, 'range')}{work}"
