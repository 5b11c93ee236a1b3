"""Kernels: which ones GPU time is spent in."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError, unknown
from foretrace.ingest import totals
from foretrace.trace import Trace
from foretrace.units import counted, format_value, shorten

_GROUPS: dict[str, tuple[str, ...]] = {
    "name": ("name",),
    "config": ("name", "op", "grid", "block", "registers_count", "shared_bytes"),
    "op": ("op",),
}
_FILL = ("blocks_per_sm", "occupancy_pct")
_MEASURES = (
    "mean_ns",
    "median_ns",
    "deviation_ns",
    "max_ns",
    "min_ns",
    "blocks_per_sm_count",
    "occupancy_pct",
)
_LAUNCH = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_bytes")


@analysis(
    Subject.WORK,
    denominators={
        "total_pct": "of the summed duration of the kernels listed",
        "occupancy_pct": "a mean over the calls that recorded it, weighted by duration",
        "blocks_per_sm_count": "a mean over the calls that recorded it, weighted by duration",
    },
    of_totals=True,
)
def kernels(
    trace: Trace, *, group_by: Literal["name", "config", "op"] = "name", orphans: bool = False
) -> Result:
    """Kernels by total time: grouped by name, by launch configuration ("config") or by operator ("op").

    Columns:
        calls_count: how often the kernel ran.
        total_ns: sum of its durations; kernels that overlap each count in full.
        total_pct: of the summed duration of all kernels listed.
        mean_ns, median_ns, max_ns, min_ns: over the calls.
        deviation_ns: sample standard deviation (n - 1) over the calls; null for a single call.
        blocks_per_sm_count: grid size / number of SMs; mean over calls, weighted by duration.
        occupancy_pct: the profiler's estimate from registers, shared memory and block size; mean over the calls that
            recorded it, weighted by duration. 0 with a full grid means that the profiler could not estimate it.
        registers_count, shared_bytes: per thread and per block, with group_by="config".

    Of a file that holds sums by name and no timeline, what it does not tell is null: mostly median_ns and deviation_ns.

    Kernels queued before the recording began belong to no step. They are excluded unless orphans is given; the notes
    say how many there are.

    What it cannot tell: how long the GPU was busy, since overlapping kernels count twice in a sum. See `overview`.
    """
    if group_by not in _GROUPS:
        raise unknown(f"kernels cannot group by {group_by!r}", group_by, _GROUPS, listed="choose from")
    if trace.meta.get("totals"):
        return _of_totals(trace, group_by)
    spans = trace.kernel_spans
    if spans.is_empty():
        raise MissingDataError(f"{trace.path.name}: no kernels recorded; record with ProfilerActivity.CUDA")
    linked = spans["launch_id"].null_count() < spans.height
    orphan = (spans["launch_id"].is_null() & spans["op_id"].is_null()) & linked
    needed = spans.select("name", "dur_ns", *_FILL, *(("op_id", *_LAUNCH) if group_by != "name" else ()))
    listed = needed if orphans or not linked else needed.filter(~orphan)
    table = _grouped(trace, listed, group_by)
    values: dict[str, Value] = {
        "kernel_count": listed.height,
        "distinct_count": table.height if group_by == "name" else listed["name"].n_unique(),
        "total_ns": int(listed["dur_ns"].sum()),
        "orphan_count": int(orphan.sum()),
        "orphan_ns": int(spans["dur_ns"].filter(orphan).sum()),
    }
    return Result(
        says=_says(table, values),
        table=table,
        values=values,
        notes=_notes(values, linked=linked, included=orphans),
    )


def _of_totals(trace: Trace, group_by: str) -> Result:
    """The same of a file that holds sums: one row per name."""
    if group_by != "name":
        raise MissingDataError(f"{trace.path.name}: it holds sums by name only, not by {group_by}")
    rows = totals.table(trace).filter(pl.col("kind") == "kernel")
    if rows.is_empty():
        raise MissingDataError(f"{trace.path.name}: no kernels recorded")
    whole = pl.when(pl.col("calls_count").null_count() == 0).then(pl.col("calls_count").sum())
    table = rows.group_by("name", maintain_order=True).agg(
        whole.alias("calls_count"),
        pl.col("total_ns").sum(),
        pl.col("max_ns").max(),
        pl.col("min_ns").min(),
        # Of several sums of one name neither is known.
        *(
            pl.when(pl.len() == 1).then(pl.col(name).first()).alias(name)
            for name in ("median_ns", "deviation_ns")
        ),
    )
    share = 100 * pl.col("total_ns") / pl.col("total_ns").sum()
    absent = ("blocks_per_sm_count", "occupancy_pct")
    table = table.with_columns(
        pl.when(pl.col("total_ns").sum() > 0).then(share).alias("total_pct"),
        mean_ns=pl.when(pl.col("calls_count") > 0).then(pl.col("total_ns") / pl.col("calls_count")),
        **{name: pl.lit(None, pl.Float64) for name in absent},
    )
    table = table.select("name", "calls_count", "total_ns", "total_pct", *_MEASURES)
    counts = table["calls_count"]
    values: dict[str, Value] = {
        "kernel_count": None if counts.null_count() else int(counts.sum()),
        "distinct_count": table.height,
        "total_ns": int(table["total_ns"].sum()),
    }
    unknown = "medians, spread and launch geometry" if table["median_ns"].null_count() else "launch geometry"
    notes = (
        f"sums by name, without a timeline: {unknown} {'are' if ',' in unknown else 'is'} not known",
        *trace.meta.get("notes", ()),
    )
    table = table.sort("total_ns", descending=True, maintain_order=True)
    what = f"{format_value('kernel_count', values['kernel_count'])} kernels ({table.height} distinct)"
    top = f"{shorten(str(table['name'][0]), 60)} takes {table['total_pct'][0] or 0:.1f} % of that"
    says = f"{what} took {format_value('_ns', values['total_ns'])} in total; {top}"
    return Result(says=says, table=table, values=values, notes=notes)


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
    by_name = group_by == "name"
    table = rows.group_by(keys, maintain_order=True).agg(
        *names,
        calls_count=pl.len(),
        total_ns=dur.sum(),
        median_ns=dur.median(),
        deviation_ns=dur.std(),
        max_ns=dur.max(),
        min_ns=dur.min(),
        **({"known_count": dur.count()} if rows["dur_ns"].null_count() else {}),
        **({} if by_name else {column: _by_duration(column) for column in _FILL}),
    )
    means = _by_name(rows, table) if by_name else {column: table[column] for column in _FILL}
    known = pl.col("known_count" if "known_count" in table.columns else "calls_count")
    table = table.with_columns(
        mean_ns=pl.when(known > 0).then(pl.col("total_ns") / known),
        blocks_per_sm_count=means["blocks_per_sm"],
        occupancy_pct=means["occupancy_pct"],
    )
    share = 100 * pl.col("total_ns") / pl.col("total_ns").sum()
    table = table.with_columns(total_pct=pl.when(pl.col("total_ns").sum() > 0).then(share))
    first = [*keys, *(name.meta.output_name() for name in names), "calls_count", "total_ns", "total_pct"]
    return table.select(*first, *_MEASURES).sort("total_ns", descending=True, maintain_order=True)


def _triple(name: str) -> pl.Expr:
    """Three extents as one value, "128,1,1"; null where they were not recorded."""
    return pl.concat_str(*(pl.col(f"{name}_{axis}") for axis in "xyz"), separator=",").alias(name)


def _by_duration(name: str) -> pl.Expr:
    """Mean of a column weighted by duration, over the rows that have it."""
    weight = pl.col("dur_ns").filter(pl.col(name).is_not_null()).sum()
    return pl.when(weight > 0).then((pl.col(name) * pl.col("dur_ns")).sum() / weight).alias(name)


def _by_name(rows: pl.DataFrame, table: pl.DataFrame) -> dict[str, pl.Series]:
    """The same means for each name of the table: several times faster than an expression per group."""
    of_table = table["name"].to_physical().to_numpy()
    size = int(of_table.max()) + 1 if len(of_table) else 0
    means = {}
    for column in _FILL:
        known = rows.select("name", "dur_ns", column)
        if known["dur_ns"].null_count() or known[column].null_count():
            known = known.drop_nulls()
        code = known["name"].to_physical().to_numpy()
        dur = known["dur_ns"].to_numpy()
        total = np.bincount(code, dur * known[column].to_numpy(), size)[of_table]
        # Usually all of it is known: then the weights are in the table already.
        weight = (
            np.bincount(code, dur, size)[of_table] if len(dur) < rows.height else table["total_ns"].to_numpy()
        )
        mean = np.divide(total, weight, out=np.full(len(total), np.nan), where=weight > 0)
        means[column] = pl.Series(column, mean).fill_nan(None)
    return means


def _says(table: pl.DataFrame, values: dict[str, Value]) -> str:
    count, total = values["kernel_count"], values["total_ns"]
    if table.is_empty() or not isinstance(total, int) or not isinstance(count, int):
        return "all kernels were queued before the recording began"
    top = table.row(0, named=True)
    label = shorten(str(top.get("name") or top.get("op") or "no operator"), 60)
    share = top["total_pct"]
    takes = f"; {label} takes {share:.1f} % of that" if share is not None else ""
    what = f"{counted(count, 'kernel')} ({values['distinct_count']} distinct)"
    return f"{what} took {format_value('_ns', total)} in total{takes}"


def _notes(values: dict[str, Value], *, linked: bool, included: bool) -> tuple[str, ...]:
    if not linked:
        return ("no kernel is linked to its launch: all kernels are counted",)
    count, length = values["orphan_count"], values["orphan_ns"]
    if not isinstance(count, int) or not isinstance(length, int) or not count:
        return ()
    queued = device_time.queued_before(count, length, noun="kernel")
    return (f"{queued}: {'included' if included else 'excluded from all totals'}",)
