"""Durations: how often and how long everything of one name ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import polars as pl

from foretrace.analyze.result import Result, Value, analysis
from foretrace.errors import MissingDataError, UsageError
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_KINDS = {
    "kernels": ("kernel",),
    "calls": ("runtime",),
    "copies": ("copy", "set"),
    "ranges": ("annotation",),
    "operators": ("op",),
}
_COLUMNS = ("mean_ns", "median_ns", "min_ns", "max_ns", "deviation_ns", "size_bytes")


@analysis(
    denominators={"total_pct": "of the summed duration of all rows of its kind"},
    keep=("kind", "name", "calls_count", "total_ns", "total_pct", "mean_ns"),
    reads_totals=True,
)
def durations(
    trace: Trace, *, of: Literal["all", "kernels", "calls", "copies", "ranges", "operators"] = "all"
) -> Result:
    """Calls and durations by name, of kernels, runtime calls, copies, ranges and operators, as `nsys stats` prints them.

    Columns:
        kind: kernels, calls (of the CUDA or HIP runtime and driver), copies (and memsets), ranges or operators.
        calls_count: how often something of this name ran.
        total_ns: the sum of the durations; what is inside something of the same name counts in both.
        total_pct: of the summed duration of all rows of its kind.
        mean_ns, median_ns, min_ns, max_ns: over the calls.
        deviation_ns: sample standard deviation (n - 1) over the calls; null for a single call.
        size_bytes: of copies and memsets: bytes in all.

    Everything in the recording counts, also what was queued before it began. Tables of `nsys stats` are shown as they are.

    What it cannot tell: how long the GPU was busy, since work that overlaps counts in full. See `overview`.
    """
    if of != "all" and of not in _KINDS:
        raise UsageError(f"durations of {of!r} are not known; choose from all, {', '.join(_KINDS)}")
    kinds = tuple(_KINDS) if of == "all" else (of,)
    totals = trace.meta.get("totals")
    table = _of_totals(totals, kinds) if totals else _of_spans(trace, kinds)
    if table.is_empty():
        raise MissingDataError(f"{trace.path.name}: no {', '.join(kinds)} recorded")
    share = 100 * pl.col("total_ns") / pl.col("total_ns").sum().over("kind")
    table = table.with_columns(total_pct=share.fill_nan(None))
    order = pl.col("kind").replace_strict(
        {kind: place for place, kind in enumerate(kinds)}, return_dtype=pl.Int64
    )
    table = table.sort(order, "total_ns", "name", descending=[False, True, False]).select(
        "kind", "name", "calls_count", "total_ns", "total_pct", *_COLUMNS
    )
    values: dict[str, Value] = {}
    for kind in kinds:
        rows = table.filter(pl.col("kind") == kind)
        values[f"{kind}_count"] = int(rows["calls_count"].sum())
        values[f"{kind}_ns"] = int(rows["total_ns"].sum())
    told = [f"{counted(int(values[f'{kind}_count'] or 0), kind.removesuffix('s'))}" for kind in kinds if values[f"{kind}_count"]]  # fmt: skip
    top = table.row(0, named=True)
    says = f"{', '.join(told)}; {format_value('_ns', top['total_ns'])} in {top['name']}"
    return Result(says=says.replace("copys", "copies"), table=table, values=values)


def _of_spans(trace: Trace, kinds: Sequence[str]) -> pl.DataFrame:
    sizes = trace.copies.select(pl.col("span_id").alias("id"), "size_bytes")
    tracks = trace.tracks.filter(pl.col("device").is_not_null())["id"]
    frames = []
    for kind in kinds:
        rows = trace.spans.filter(pl.col("kind").is_in(_KINDS[kind]) & pl.col("dur_ns").is_not_null())
        if kind == "ranges":  # a device's copies of ranges are none of the program's
            rows = rows.filter(~pl.col("track_id").is_in(tracks.implode()))
        named = rows.select("id", pl.col("name").cast(pl.String), "dur_ns").join(sizes, on="id", how="left")
        found = named.group_by("name").agg(
            calls_count=pl.len().cast(pl.Int64),
            total_ns=pl.col("dur_ns").sum(),
            mean_ns=pl.col("dur_ns").mean(),
            median_ns=pl.col("dur_ns").median(),
            min_ns=pl.col("dur_ns").min(),
            max_ns=pl.col("dur_ns").max(),
            deviation_ns=pl.col("dur_ns").std(),
            size_bytes=pl.when(pl.col("size_bytes").is_not_null().any()).then(pl.col("size_bytes").sum()),
        )
        frames.append(found.select(pl.lit(kind).alias("kind"), "name", "calls_count", "total_ns", *_COLUMNS))
    return pl.concat(frames)


def _of_totals(totals: Mapping[str, Sequence[Mapping[str, Any]]], kinds: Sequence[str]) -> pl.DataFrame:
    sizes = {row["name"]: row["total"] for row in totals.get("sizes", ())}
    rows = [
        {
            "kind": kind, "name": row["name"], "calls_count": row["calls_count"], "total_ns": row["total"],
            "mean_ns": row["total"] / row["calls_count"] if row["calls_count"] else None, "median_ns": row["median"],
            "min_ns": row["min"], "max_ns": row["max"], "deviation_ns": row["deviation"],
            "size_bytes": sizes.get(row["name"]) if kind == "copies" else None,
        }
        for kind in kinds
        for row in totals.get(kind, ())
    ]  # fmt: skip
    types = {"kind": pl.String, "name": pl.String, "calls_count": pl.Int64, "total_ns": pl.Int64, "mean_ns": pl.Float64,
             "median_ns": pl.Float64, "min_ns": pl.Int64, "max_ns": pl.Int64, "deviation_ns": pl.Float64, "size_bytes": pl.Int64}  # fmt: skip
    return pl.DataFrame(rows, schema=types)
