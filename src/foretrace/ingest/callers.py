"""The user's lines that called operators, which the recorder writes into a Run's recordings (capture/callers.py)."""

from __future__ import annotations

from typing import Any

import polars as pl

from foretrace import schema

MEMBER = "foretraceCallers"
_VERSION = 1
_PLACE = {"file": pl.Int64, "function": pl.Int64, "line": pl.Int32, "last_line": pl.Int32}


def table(member: object, spans: pl.DataFrame, epoch_ns: int) -> pl.DataFrame:
    """For each span that it names by start and name, the user's line; none where the member is absent or damaged."""
    empty = pl.DataFrame(schema=schema.polars_schema("callers"))
    rows = _rows(member)
    if rows is None:
        return empty
    wanted = rows.select(
        (pl.col("start_ns") - epoch_ns).alias("start_ns"), pl.exclude("start_ns")
    ).unique(("start_ns", "name"), keep="none")  # fmt: skip
    calls = spans.filter(pl.col("kind").is_in(("op", "python", "annotation"))).select(
        pl.col("id").alias("span_id"), "start_ns", pl.col("name").cast(pl.String)
    )
    # Of calls with the same name and start, the outer one gets the line: nothing distinguishes them.
    calls = calls.unique(("start_ns", "name"), keep="first", maintain_order=True)
    found = calls.join(wanted, on=("start_ns", "name"), how="inner", maintain_order="left")
    return found.select(pl.col(name).cast(dtype) for name, dtype in empty.schema.items())


def _rows(member: object) -> pl.DataFrame | None:
    """The member's columns with their texts; None where it is not what the recorder writes."""
    if not isinstance(member, dict) or member.get("version") != _VERSION:
        return None
    try:
        texts = pl.Series("text", member["texts"], pl.String, strict=True)
        names = pl.Series("name", member["names"], pl.String, strict=True)
        places = pl.DataFrame(member["places"], schema=_PLACE, orient="row", strict=True)
        codes = pl.DataFrame(
            {key: pl.Series(member[key], dtype=pl.Int64) for key in ("start", "name", "place")}
        )
        if not _within(codes["name"], names) or not _within(codes["place"], places):
            return None
        if not _within(places["file"], texts) or not _within(places["function"], texts):
            return None
    except (KeyError, TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        return None
    where = places.select(
        texts.gather(places["file"]).alias("file"),
        texts.gather(places["function"]).alias("function"),
        "line",
        "last_line",
    )
    return where[codes["place"]].with_columns(
        start_ns=codes["start"].cum_sum(), name=names.gather(codes["name"])
    )


def _within(codes: pl.Series, of: Any) -> bool:
    return codes.null_count() == 0 and bool(codes.is_between(0, len(of) - 1).all())
