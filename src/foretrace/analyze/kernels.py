"""Kernels: which ones the GPU's time goes to."""

from __future__ import annotations

import polars as pl

from foretrace.analyze import device_time
from foretrace.analyze.result import Result, Value, analysis
from foretrace.errors import MissingDataError, UsageError
from foretrace.trace import Trace
from foretrace.units import counted, format_value, shorten

_GROUPS: dict[str, tuple[str, ...]] = {
    "name": ("name",),
    "config": ("name", "op", "grid", "block", "registers_count", "shared_bytes"),
    "op": ("op",),
}
_FILL = ("blocks_per_sm", "occupancy_pct")
_LAUNCH = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_bytes")
_COLUMNS = ("id", "name", "dur_ns", "op_id", "launch_id")


@analysis
def kernels(trace: Trace, *, group_by: str = "name", orphans: bool = False) -> Result:
    """Kernels by total time: grouped by name, by launch configuration ("config") or by operator ("op")."""
    if group_by not in _GROUPS:
        raise UsageError(f"kernels cannot group by {group_by!r}; choose from {', '.join(_GROUPS)}")
    spans = _with_geometry(trace, _FILL if group_by != "config" else (*_FILL, *_LAUNCH))
    if spans.is_empty():
        raise MissingDataError(f"{trace.path.name}: no kernels recorded; record with ProfilerActivity.CUDA")
    linked = spans["launch_id"].null_count() < spans.height
    left_out = spans.filter(device_time.ORPHAN) if linked else spans.clear()
    counted = spans if orphans or not linked else spans.filter(~device_time.ORPHAN)
    table = _grouped(trace, counted, group_by)
    total = int(counted["dur_ns"].sum())
    values: dict[str, Value] = {
        "kernel_count": counted.height,
        "distinct_count": counted["name"].n_unique(),
        "total_ns": total,
        "orphan_count": left_out.height,
        "orphan_ns": int(left_out["dur_ns"].sum()),
    }
    return Result(
        name="kernels",
        says=_says(table, values),
        table=table,
        values=values,
        denominators={
            "total_pct": "of the summed duration of the kernels listed",
            "occupancy_pct": "a mean by duration over the calls that recorded it",
            "blocks_per_sm_count": "a mean by duration over the calls that recorded it",
        },
        notes=_notes(values, linked=linked, included=orphans),
    )


def _with_geometry(trace: Trace, columns: tuple[str, ...]) -> pl.DataFrame:
    """Kernels' spans, with these columns of the kernels table."""
    spans = trace.spans.lazy().filter(pl.col("kind") == "kernel").select(_COLUMNS).collect()
    geometry = trace.kernels.select("span_id", *columns)
    if geometry.height == spans.height and (geometry["span_id"] == spans["id"]).all():
        return spans.hstack(geometry.drop("span_id"))  # the usual case: no join to pay for
    return spans.join(geometry, left_on="id", right_on="span_id", how="left", maintain_order="left")


def _grouped(trace: Trace, rows: pl.DataFrame, group_by: str) -> pl.DataFrame:
    """One row per group, the longest total first."""
    keys = _GROUPS[group_by]
    if "op" in keys:
        # Row numbers are ids: gathering is a join.
        rows = rows.with_columns(op=trace.spans["name"].gather(rows["op_id"]).alias("op"))
    if "grid" in keys:
        rows = rows.with_columns(_triple("grid"), _triple("block")).rename({"registers": "registers_count"})
    names = [pl.col("name").n_unique().alias("names_count")] if group_by == "op" else []
    dur = pl.col("dur_ns")
    table = rows.group_by(keys, maintain_order=True).agg(
        *names,
        calls_count=pl.len(),
        total_ns=dur.sum(),
        mean_ns=dur.mean(),
        median_ns=dur.median(),
        max_ns=dur.max(),
        min_ns=dur.min(),
        blocks_per_sm_count=_by_duration("blocks_per_sm"),
        occupancy_pct=_by_duration("occupancy_pct"),
    )
    share = 100 * pl.col("total_ns") / pl.col("total_ns").sum()
    table = table.with_columns(total_pct=pl.when(pl.col("total_ns").sum() > 0).then(share))
    first = [*keys, *(name.meta.output_name() for name in names), "calls_count", "total_ns", "total_pct"]
    return table.select(*first, pl.exclude(first)).sort("total_ns", descending=True, maintain_order=True)


def _triple(name: str) -> pl.Expr:
    """Three extents as one value, "128,1,1"; null where they were not recorded."""
    return pl.concat_str(*(pl.col(f"{name}_{axis}") for axis in "xyz"), separator=",").alias(name)


def _by_duration(name: str) -> pl.Expr:
    """Mean of a column weighted by duration, over the rows that have it."""
    weight = pl.col("dur_ns").filter(pl.col(name).is_not_null()).sum()
    return pl.when(weight > 0).then((pl.col(name) * pl.col("dur_ns")).sum() / weight).alias(name)


def _says(table: pl.DataFrame, values: dict[str, Value]) -> str:
    count, total = values["kernel_count"], values["total_ns"]
    if table.is_empty() or not isinstance(total, int) or not isinstance(count, int):
        return "every kernel was launched before the recording began"
    top = table.row(0, named=True)
    label = shorten(str(top.get("name") or top.get("op") or "no operator"), 60)
    share = top["total_pct"]
    takes = f"; {label} takes {share:.1f} % of it" if share is not None else ""
    what = f"{counted(count, 'kernel')}, {values['distinct_count']} distinct"
    return f"{what}, run for {format_value('_ns', total)} in total{takes}"


def _notes(values: dict[str, Value], *, linked: bool, included: bool) -> tuple[str, ...]:
    if not linked:
        return ("no launch is linked to its kernel: all kernels are counted",)
    count, length = values["orphan_count"], values["orphan_ns"]
    if not isinstance(count, int) or not isinstance(length, int) or not count:
        return ()
    what = f"{counted(count, 'kernel')} ({format_value('_ns', length)}) launched before the recording began"
    return (f"{what}: {'included' if included else 'left out'}",)
