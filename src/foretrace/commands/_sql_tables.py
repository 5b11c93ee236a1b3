"""The tables that SQL sees: those of the recording, device work joined with its spans, and what `show tables` says of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from foretrace import schema
from foretrace.errors import unknown
from foretrace.schema import Column
from foretrace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable

_SPANS = schema.TABLES["spans"]
_TRACKS = schema.TABLES["tracks"]
# What a span, its track and its operator say of device work, so that most queries need no join.
JOINED: Mapping[str, Column] = {
    **{name: _SPANS[name] for name in ("name", "start_ns", "dur_ns", "launch_id", "op_id", "step")},
    **{name: _TRACKS[name] for name in ("device", "stream")},
    "operator": Column(schema.TEXT, "name of the operator that launched it", nullable=True),
}
_DEVICE_WORK = ("kernels", "copies")
TABLES: Mapping[str, Mapping[str, Column]] = {
    name: {**columns, **JOINED} if name in _DEVICE_WORK else columns
    for name, columns in schema.TABLES.items()
}

_SHOW_TABLES = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)
_DESCRIBE = re.compile(
    r"\s*(?:desc|describe|show\s+columns\s+(?:from|in))\s+(?:table\s+)?[\"`]?(\w+)[\"`]?\s*;?\s*",
    re.IGNORECASE,
)


def table(trace: Trace, name: str) -> pl.DataFrame:
    """One table as SQL sees it."""
    frame = trace.table(name)
    if name not in _DEVICE_WORK:
        return frame
    own = [column for column in JOINED if column in _SPANS]
    # Row numbers are ids: gathering is a join, and the quicker one.
    joined = frame.hstack(trace.spans.select(*own, "track_id")[frame["span_id"]])
    where = trace.tracks.select(pl.col("id").alias("track_id"), "device", "stream")
    operators = trace.spans.select(pl.col("id").alias("op_id"), pl.col("name").alias("operator"))
    joined = joined.join(where, on="track_id", how="left", maintain_order="left")
    joined = joined.join(operators, on="op_id", how="left", maintain_order="left")
    return joined.select(*TABLES[name])


def answered(trace: Trace, query: str) -> pl.DataFrame | None:
    """What `show tables` and `describe TABLE` yield; `None` for any other query."""
    if _SHOW_TABLES.fullmatch(query):
        rows = [
            {"table": name, "rows_count": trace.table(name).height, "says": _says(name)} for name in TABLES
        ]
        return pl.DataFrame(rows)
    if found := _DESCRIBE.fullmatch(query):
        name = found[1].lower()
        if name not in TABLES:
            raise unknown(f"sql: no table {found[1]!r}", name, TABLES)
        return described([name]).drop("table")
    return None


def described(tables: Iterable[str] = tuple(TABLES)) -> pl.DataFrame:
    """Every column of some tables: its type, whether a value may be absent, and what it holds."""
    return pl.DataFrame(
        [
            {"table": table, "column": name, "type": _type(column.dtype), "null": column.nullable, "says": column.says}
            for table in tables
            for name, column in TABLES[table].items()
        ]
    )  # fmt: skip


def _says(name: str) -> str:
    says = (inspect.getdoc(getattr(Trace, name)) or "").partition("\n")[0]
    return f"{says.rstrip('.')}, with their names, times and operators." if name in _DEVICE_WORK else says


def _type(dtype: pl.DataType | type[pl.DataType]) -> str:
    name = str(dtype).partition("(")[0]
    return "String" if name in ("Categorical", "Enum") else name
