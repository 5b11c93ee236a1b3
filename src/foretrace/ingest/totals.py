"""Profiles without a timeline: sums by name and scope, as statistics and Proton's trees tell them.

Such a Trace has `meta["totals"]`: a span stands for all calls of one name in one scope, its duration is their sum, and spans
lie end to end, which says nothing of when they ran. How often it ran, and in which scope, are arguments of the span
(`CALLS`, `SCOPE`); analyses that do not ask for them refuse such a Trace.

Tables of `nsys stats` tell medians, deviations, sizes and ranges too: they lie in `meta["stats"]`, and there are no spans.
`table` reads both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from foretrace.errors import InputError
from foretrace.ingest import span_tables
from foretrace.ingest.span_tables import ARGS, DEVICE, HOST, Recorded, frame
from foretrace.trace import Trace

CALLS, SCOPE, SHORTEST, LONGEST = "calls", "scope", "min_ns", "max_ns"
BETWEEN = " / "  # the names of scopes
# Tables of `nsys stats`, and the kind of span that their rows would be.
_KINDS = {"kernels": "kernel", "calls": "runtime", "copies": "copy", "ranges": "annotation"}
_TABLE = {
    "span_id": pl.Int64, "kind": pl.String, "name": pl.String, "total_ns": pl.Int64, "device": pl.Int32, "scope": pl.String,
    "calls_count": pl.Int64, "min_ns": pl.Int64, "max_ns": pl.Int64, "median_ns": pl.Float64, "deviation_ns": pl.Float64,
    "size_bytes": pl.Int64,
}  # fmt: skip
_MOST_NS = 10**15  # of one sum: eleven days


@dataclass(frozen=True)
class Entry:
    """All calls of one name in one scope."""

    scope: tuple[str, ...]
    name: str
    kind: str  # kernel, copy or runtime
    total_ns: int
    calls: int | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    device: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scope:
    """A part of the program that the user or the profiler named, with what was counted in it beside time."""

    path: tuple[str, ...]
    metrics: Mapping[str, float]


def to_trace(
    path: Path,
    form: str,
    entries: Sequence[Entry],
    *,
    file_bytes: int,
    scopes: Sequence[Scope] = (),
    devices: Sequence[dict[str, Any]] = (),
    notes: Sequence[str] = (),
) -> Trace:
    """The Trace of these sums."""
    if not entries:
        raise InputError(f"{path}: nothing that took time can be read in it")
    host: list[dict[str, Any]] = []
    device: list[dict[str, Any]] = []
    args: list[dict[str, Any]] = []
    at_ns = 0
    for row, entry in enumerate(entries):
        length = min(max(entry.total_ns, 0), _MOST_NS // max(len(entries), 1))
        span = {
            "kind": entry.kind,
            "name": entry.name,
            "start_ns": at_ns,
            "end_ns": at_ns + length,
            "row": row,
        }
        (host if entry.kind == "runtime" else device).append({**span, "device": entry.device})
        at_ns += length
        known = {CALLS: entry.calls, SHORTEST: entry.min_ns, LONGEST: entry.max_ns}
        args += [{"row": row, "key": key, "int": value} for key, value in known.items() if value is not None]
        args += [{"row": row, "key": SCOPE, "text": BETWEEN.join(entry.scope)}] if entry.scope else []
        args += [{"row": row, "key": key, "float": value} for key, value in entry.metrics.items()]
    meta = {
        "totals": True,
        "notes": list(notes),
        "scopes": [[BETWEEN.join(s.path), dict(s.metrics)] for s in scopes],
    }
    recorded = Recorded(
        path, form, frame(host, HOST), frame(device, DEVICE), frame(args, ARGS), list(devices), meta
    )
    return span_tables.to_trace(recorded, pid=None, file_bytes=file_bytes)


def stats(trace: Trace) -> Mapping[str, Sequence[Mapping[str, Any]]] | None:
    """The rows of `nsys stats` by kind: ranges, projected, kernels, calls, copies and sizes; `None` for any other Trace."""
    return trace.meta.get("stats")


def has_sections(trace: Trace) -> bool:
    """Whether a Trace of sums tells parts of the program."""
    listed = stats(trace)
    if listed is not None:
        return bool(listed.get("ranges"))
    return bool(trace.meta.get("scopes")) or trace.args.filter(pl.col("key") == SCOPE).height > 0


def table(trace: Trace) -> pl.DataFrame:
    """One row per span of such a Trace: span_id, name, kind, device, scope, total_ns, calls_count, min_ns, max_ns, median_ns,
    deviation_ns and size_bytes.
    """
    listed = stats(trace)
    if listed is not None:
        return _of_stats(listed)
    spans = trace.spans.select(
        pl.col("id").alias("span_id"), "track_id", "kind", pl.col("name").cast(pl.String), total_ns="dur_ns"
    )
    devices = trace.tracks.select(pl.col("id").alias("track_id"), "device")
    rows = spans.join(devices, on="track_id", how="left", maintain_order="left")
    for key, column, value in (
        (SCOPE, "scope", pl.col("text").cast(pl.String)), (CALLS, "calls_count", pl.col("int")),
        (SHORTEST, "min_ns", pl.col("int")), (LONGEST, "max_ns", pl.col("int")),
    ):  # fmt: skip
        found = trace.args.filter(pl.col("key") == key).select("span_id", value.alias(column))
        rows = rows.join(found, on="span_id", how="left", maintain_order="left")
    return rows.drop("track_id").with_columns(
        median_ns=pl.lit(None, pl.Float64), deviation_ns=pl.lit(None, pl.Float64), size_bytes=pl.lit(None, pl.Int64)
    )  # fmt: skip


def _of_stats(listed: Mapping[str, Sequence[Mapping[str, Any]]]) -> pl.DataFrame:
    sizes = {row["name"]: row["total"] for row in listed.get("sizes", ())}
    rows = [
        {
            "span_id": None, "kind": kind, "name": row["name"], "total_ns": row["total"], "device": None, "scope": None,
            "calls_count": row["calls_count"], "min_ns": row["min"], "max_ns": row["max"], "median_ns": row["median"],
            "deviation_ns": row["deviation"], "size_bytes": sizes.get(row["name"]) if kind == "copy" else None,
        }
        for name, kind in _KINDS.items()
        for row in listed.get(name, ())
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=_TABLE)
