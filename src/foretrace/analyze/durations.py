"""Durations: how often and how long everything of one name ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError, unknown
from foretrace.ingest import totals
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
    Subject.WORK,
    denominators={"total_pct": "of the summed duration of all rows of its kind"},
    keep=("kind", "name", "calls_count", "total_ns", "total_pct", "mean_ns"),
    of_totals=True,
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

    Everything in the recording counts, also what was queued before it began. Tables of `nsys stats` are shown as they are;
    of other files that hold sums by name, what these do not tell is null.

    What it cannot tell: how long the GPU was busy, since work that overlaps counts in full. See `overview`.
    """
    if of != "all" and of not in _KINDS:
        raise unknown(f"durations of {of!r} are not known", of, ("all", *_KINDS), listed="choose from")
    kinds = tuple(_KINDS) if of == "all" else (of,)
    table = _of_totals(trace, kinds) if trace.meta.get("totals") else _of_spans(trace, kinds)
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


def _of_totals(trace: Trace, kinds: Sequence[str]) -> pl.DataFrame:
    """The same of a file that holds sums by name; what it does not tell is null."""
    rows = totals.table(trace).with_columns(pl.col("kind").cast(pl.String))
    calls = pl.when(pl.col("calls_count").null_count() == 0).then(pl.col("calls_count").sum())
    # Of several sums of one name the middle and the spread are not known.
    single = [
        pl.when(pl.len() == 1).then(pl.col(name).first()).alias(name)
        for name in ("median_ns", "deviation_ns")
    ]
    frames = [
        rows.filter(pl.col("kind").is_in(_KINDS[kind]))
        .group_by("name", maintain_order=True)
        .agg(
            calls.alias("calls_count"), pl.col("total_ns").sum(), *single, pl.col("min_ns").min(), pl.col("max_ns").max(),
            size_bytes=pl.when(pl.col("size_bytes").is_not_null().any()).then(pl.col("size_bytes").sum()),
        )
        .with_columns(mean_ns=pl.when(pl.col("calls_count") > 0).then(pl.col("total_ns") / pl.col("calls_count")))
        .select(pl.lit(kind).alias("kind"), "name", "calls_count", "total_ns", *_COLUMNS)
        for kind in kinds
    ]  # fmt: skip
    return pl.concat(frames)
