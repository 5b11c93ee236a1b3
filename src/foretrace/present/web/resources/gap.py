"""`span/ID` of an idle gap: why the GPU was idle there, part by part, and the host's spans that it waited for."""

from __future__ import annotations

from typing import Any

import polars as pl

from foretrace.present.web.idle_gaps import WHY, IdleGaps, first_id, where
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.links import link
from foretrace.present.web.resources.module_rows import device_title
from foretrace.present.web.short_names import short
from foretrace.trace import Trace
from foretrace.units import format_value

_PARTS = 4


def gap(view: RecordingView, found: IdleGaps, number: int) -> dict[str, Any]:
    """One gap in the shape of a span."""
    trace = view.trace
    row = found.gaps.row(number, named=True)
    start, length = row["start_ns"], row["idle_ns"]
    return {
        "id": first_id(trace) + number,
        "title": f"Idle: {row['cause']}",
        "subtitle": device_title(row["device"]),
        "name": f"{device_title(row['device'])} idle for {format_value('_ns', length)}: {row['cause']}",
        "from_ns": start,
        "to_ns": start + length,
        "facts": [
            {"label": label, "value": value, "code": code}
            for label, value, code in _facts(trace, found, number, row)
            if value
        ],
        "finding": None,
        "links": _links(trace, row),
    }


def _facts(
    trace: Trace, found: IdleGaps, number: int, row: dict[str, Any]
) -> list[tuple[str, str | None, bool]]:
    length = format_value("_ns", row["idle_ns"])
    waited = pl.Series([row["span_id"]], dtype=pl.Int64)
    return [
        ("Idle", f"{length}, from {row['start_ns'] / 1e6:,.3f} ms", False),
        ("Why", WHY[row["cause"]], False),
        ("Waited for", _name(trace, row["span_id"]), True),
        ("Source", where(found, waited)[0], True),
        ("Made of", "; ".join(_parts(found, number, row["idle_ns"])), False),
        ("Blocked in", _name(trace, row["sync_id"]), True),
        ("Before", _name(trace, row["before_id"]), True),
        ("Next work", _name(trace, row["after_id"]), True),
        ("Launched by", _name(trace, row["launch_id"]), True),
    ]


def _parts(found: IdleGaps, number: int, length: int) -> list[str]:
    """The causes of the gap, the longest first."""
    parts = found.parts.filter(pl.col("gap") == number)
    sums = (
        parts.group_by("cause")
        .agg(pl.col("part_ns").sum())
        .sort("part_ns", "cause", descending=[True, False])
    )
    return [
        f"{cause} {format_value('_ns', spent)} ({100 * spent / max(length, 1):.0f} %)"
        for cause, spent in sums.head(_PARTS).iter_rows()
    ]


def _name(trace: Trace, span_id: int | None) -> str | None:
    if span_id is None:
        return None
    row = trace.spans.row(span_id, named=True)
    return short(row["name"], row["kind"])


def _links(trace: Trace, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The host's span that was waited for, the launch that ended the gap, and the work around it; each span once."""
    wanted = {"waited for": "span_id", "launched by": "launch_id", "blocked in": "sync_id", "next work": "after_id", "before": "before_id"}  # fmt: skip
    seen: dict[int, str] = {}
    for label, column in wanted.items():
        if row[column] is not None:
            seen.setdefault(row[column], label)
    return [link(trace, label, number) for number, label in seen.items()]
