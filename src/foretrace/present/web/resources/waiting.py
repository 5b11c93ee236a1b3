"""`waiting`: what the GPU and the host wait for, in one place: idle time and its gaps, syncs, launches, critical path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from foretrace.analyze.result import Result
from foretrace.errors import MissingDataError
from foretrace.present.web.idle_gaps import KINDS, WHY, IdleGaps, first_id, idle_gaps, where
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.table import documented, of_frame, of_result
from foretrace.present.web.short_names import short
from foretrace.trace import Trace

_GAPS = 200
_SAYS = {
    "start_ns": "when the gap began",
    "idle_ns": "how long nothing ran on any stream of the GPU",
    "cause": "the largest part of the gap",
    "cause_pct": "of the gap",
    "waited_for": "the host's span in that part",
    "next": "the GPU work that ended the gap",
}
_OTHERS = {"syncs": "Blocking calls", "launches": "Launches", "critical-path": "Critical path"}


def waiting(view: RecordingView) -> dict[str, Any]:
    """Idle time by cause, its longest gaps, and the analyses of what holds the host or the GPU up."""
    idle = view.result("idle")
    found = idle_gaps(view)
    return {
        "says": idle.says,
        "idle": of_result(_explained(idle), says=documented("idle")),
        "gaps": None if found is None else _gaps(view.trace, found),
        "others": [_other(view, name, title) for name, title in _OTHERS.items()],
    }


def _explained(idle: Result) -> Result:
    """The causes with what each means, and the kind whose colour it has."""
    causes = idle.table["cause"].to_list()
    about = [
        pl.Series("why", [WHY[cause] for cause in causes], dtype=pl.String),
        pl.Series("kind", [KINDS.get(cause, "idle") for cause in causes], dtype=pl.String),
    ]
    return replace(idle, table=idle.table.with_columns(about))


def longest_gaps(view: RecordingView) -> pl.DataFrame:
    """The gaps that the page lists, each with the id of its details, `span`."""
    found = idle_gaps(view)
    return pl.DataFrame({"span": []}) if found is None else _longest(view.trace, found)


def _longest(trace: Trace, found: IdleGaps) -> pl.DataFrame:
    rows = found.gaps.with_row_index("span", offset=first_id(trace)).top_k(_GAPS, by="idle_ns")
    return rows.sort("idle_ns", "span", descending=[True, False])


def _gaps(trace: Trace, found: IdleGaps) -> dict[str, Any]:
    """The longest gaps; `span` is what the timeline selects."""
    rows = _longest(trace, found)
    frame = rows.select(
        "start_ns",
        "idle_ns",
        "cause",
        (100 * pl.col("cause_ns") / pl.col("idle_ns")).alias("cause_pct"),
        _names(trace, rows["span_id"]).alias("waited_for"),
        where(found, rows["span_id"]).alias("where"),
        _names(trace, rows["after_id"]).alias("next"),
        trace.spans["step"].gather(rows["after_id"]).alias("step"),
        "span",
    )
    shown = of_frame(frame, _SAYS)
    return {
        "name": "gaps", "says": "", **shown, "rows_count": found.gaps.height, "values": [], "notes": [],
    }  # fmt: skip


def _names(trace: Trace, ids: pl.Series) -> pl.Series:
    names = trace.spans["name"].gather(ids).cast(pl.String)
    sorts = trace.spans["kind"].gather(ids).cast(pl.String)
    texts = [
        None if name is None else short(name, sort or "") for name, sort in zip(names, sorts, strict=True)
    ]
    return pl.Series(texts, dtype=pl.String)


def _other(view: RecordingView, name: str, title: str) -> dict[str, Any]:
    """One more analysis; where its input was not recorded, why."""
    try:
        result = view.result(name)
    except MissingDataError as reason:
        return {"name": name, "title": title, "table": None, "missing": str(reason)}
    return {
        "name": name, "title": title, "table": of_result(result, says=documented(name)), "missing": None,
    }  # fmt: skip
