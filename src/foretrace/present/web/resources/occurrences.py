"""`finding/NUMBER`: every place where a finding occurs, to step through them on the timeline.

An occurrence is work of the finding with no other work between it: on a GPU, kernels that follow each other on a
stream within a step; on the host, a call with all that it calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.errors import UsageError
from foretrace.present.web.recording_view import RecordingView
from foretrace.schema import DEVICE_KINDS
from foretrace.trace import Trace

_MOST = 2_000
_SPANS = 20_000


def occurrences(view: RecordingView, number: str) -> dict[str, Any]:
    """The occurrences of one finding in order of time, and the spans that are not dimmed."""
    found = view.diagnosis.findings
    if not number.isdigit() or not 1 <= int(number) <= len(found):
        raise UsageError(f"no finding {number[:20]!r}; there are {len(found)}")
    spans = view.finding_spans[int(number) - 1]
    rows = occurring(view.trace, spans)
    shown = rows.head(_MOST)
    return {
        "number": int(number),
        "spans": spans[:_SPANS].tolist(),
        "rows_count": rows.height,
        **{name: shown[name].to_list() for name in ("span", "from_ns", "to_ns", "step")},
    }


def occurring(trace: Trace, spans: NDArray[np.int64]) -> pl.DataFrame:
    """The occurrences: `span` (the longest of each), `from_ns`, `to_ns`, `step`; those on a GPU, if there are any."""
    rows = trace.spans[spans.astype(np.uint32)].with_columns(pl.col("dur_ns").fill_null(0))
    on_device = rows.filter(pl.col("kind").is_in(DEVICE_KINDS))
    if on_device.height:
        return _joined(on_device.with_columns(pl.Series("run", _runs(trace, on_device))))
    # What is called by another span of the finding is part of it.
    outer = rows.filter(~pl.col("parent_id").is_in(rows["id"].implode()).fill_null(value=False))
    return _joined(outer.with_row_index("run"))


def _runs(trace: Trace, rows: pl.DataFrame) -> NDArray[np.int64]:
    """For each span the number of its occurrence: another begins where other work lies between on the stream."""
    work = trace.device_spans.sort("track_id", "start_ns")
    place = np.zeros(trace.spans.height, np.int64)
    place[work["id"].to_numpy()] = np.arange(work.height)
    at = place[rows["id"].to_numpy()]
    order = np.argsort(at, kind="stable")
    step = rows["step"].fill_null(-1).to_numpy()[order]
    track = rows["track_id"].to_numpy()[order]
    new = (np.diff(at[order]) > 1) | (np.diff(step) != 0) | (np.diff(track) != 0)
    numbers = np.empty(len(at), np.int64)
    numbers[order] = np.concatenate(([0], np.cumsum(new)))
    return numbers


def _joined(rows: pl.DataFrame) -> pl.DataFrame:
    longest = pl.col("id").sort_by("dur_ns", descending=True).first()
    grouped = rows.group_by("run").agg(
        longest.cast(pl.Int64).alias("span"),
        pl.col("start_ns").min().alias("from_ns"),
        (pl.col("start_ns") + pl.col("dur_ns")).max().alias("to_ns"),
        pl.col("step").first(),
    )
    return grouped.drop("run").sort("from_ns", "span")


def in_middle_step(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the middle one of their steps, where a program has warmed up; all of them where there are no steps."""
    steps = rows["step"].drop_nulls().unique().sort()
    return rows.filter(pl.col("step") == steps[len(steps) // 2]) if len(steps) else rows
