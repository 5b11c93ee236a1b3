"""`memory`: what was allocated over time by category, what was live at the peak, and its largest blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.memory import memory_categories, memory_curve
from foretrace.analyze.concepts.memory.memory_curve import Curve
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import table
from foretrace.units import counted

_POINTS = 2_000
_LARGEST = 100
_BEFORE = memory_categories.CATEGORIES[memory_categories.BEFORE]
_UNKNOWN = memory_categories.CATEGORIES[memory_categories.UNKNOWN]
_SAYS = {
    "size_bytes": "as rounded up by the allocator",
    "category": "what it held, told from when it was allocated and freed",
    "op": "the innermost operator that allocated it",
    "where": "the source line behind that operator",
    "start_ns": "when it was allocated; empty if before the recording",
    "lived_ns": "until it was freed; empty if it was not, or began before the recording",
}
Times = NDArray[np.int64]


def memory(view: RecordingView) -> dict[str, Any]:
    """The memory of the device with the highest peak."""
    result = view.result("memory")
    curve = memory_curve.curves(view.trace)[0]
    blocks = _blocks(view, curve)
    at = _moments(curve)
    rows = (
        result.table.filter(pl.col("device_name") == curve.device)
        if "device_name" in result.table.columns
        else result.table
    )
    rows = rows.filter(pl.col("peak_bytes") > 0).sort("peak_bytes", descending=True, maintain_order=True)
    return {
        "says": result.says,
        "at_ns": at.tolist(),
        "series": _series(curve, blocks, at),
        "peak": {
            "at_ns": curve.peak_at_ns,
            "bytes": curve.peak_bytes,
            "parts": [
                {"label": label, "bytes": size, "pct": share}
                for label, size, share in rows.select("category", "peak_bytes", "peak_pct").iter_rows()
            ],
        },
        "largest": _largest(view, curve, blocks),
    }


def _blocks(view: RecordingView, curve: Curve) -> pl.DataFrame:
    blocks = view.trace.allocations.filter(pl.col("device") == curve.device)
    categories = memory_categories.categories(view.trace, blocks) if curve.addressed else pl.lit(_UNKNOWN)
    return blocks.with_columns(categories.alias("category"))


def _moments(curve: Curve) -> Times:
    """The times of the curve's points; where they are many, of the highest of each stretch."""
    at = curve.points["at_ns"].to_numpy()
    if len(at) <= _POINTS:
        return at
    value = curve.points["allocated_bytes"].to_numpy()
    edges = np.linspace(0, len(at), _POINTS + 1).astype(np.int64)
    best = [low + int(np.argmax(value[low:high])) for low, high in pairwise(edges.tolist())]
    return at[best]


def _series(curve: Curve, blocks: pl.DataFrame, at: Times) -> list[dict[str, Any]]:
    """Live bytes of each category at each moment; with what no block accounts for they sum to the curve."""
    whole = _value_at(curve.points["at_ns"].to_numpy(), curve.points["allocated_bytes"].to_numpy(), at)
    if not curve.addressed:
        return [{"label": "allocated", "kind": "unknown", "bytes": whole.tolist()}]
    unlisted = max(
        (curve.baseline_bytes or 0) - int(blocks.filter(pl.col("start_ns").is_null())["size_bytes"].sum()), 0
    )
    left = whole.copy()
    found = []
    for category in memory_categories.CATEGORIES:
        live = _live(blocks.filter(pl.col("category") == category), at)
        if category == _BEFORE:
            live = live + unlisted
        live = np.minimum(live, np.maximum(left, 0))
        left = left - live
        if category == _UNKNOWN:
            live = live + np.maximum(left, 0)
        if live.any():
            found.append({"label": category, "kind": category.replace(" ", "-"), "bytes": live.tolist()})
    return found


def _live(blocks: pl.DataFrame, at: Times) -> Times:
    events = memory_curve.changes(blocks)
    before = int(blocks.filter(pl.col("start_ns").is_null())["size_bytes"].sum())
    total = before + np.concatenate(([0], np.cumsum(events["bytes"].to_numpy())))
    live: Times = total[np.searchsorted(events["at_ns"].to_numpy(), at, side="right")]
    return live


def _value_at(times: Times, values: NDArray[Any], at: Times) -> Times:
    place = np.searchsorted(times, at, side="right") - 1
    found: Times = values[np.maximum(place, 0)].astype(np.int64)
    return found


def _largest(view: RecordingView, curve: Curve, blocks: pl.DataFrame) -> dict[str, Any]:
    """The largest blocks that were live at the peak."""
    live = memory_curve.live_at(blocks, curve.peak_at_ns)
    top = live.sort("size_bytes", descending=True, maintain_order=True).head(_LARGEST)
    names = view.trace.spans["name"]
    frame = top.select(
        "size_bytes",
        "category",
        names.gather(top["op_id"]).cast(pl.String).alias("op"),
        pl.Series("where", [_where(view, stack) for stack in top["stack_id"].to_list()], dtype=pl.String),
        "start_ns",
        lived_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    shown = table.of_frame(frame, _SAYS)
    return {
        "name": "largest-blocks",
        "says": f"{counted(live.height, 'block')} live at the peak; the largest first",
        **shown,
        "rows_count": live.height,
        "values": [],
        "notes": [],
    }


def _where(view: RecordingView, stack: int | None) -> str | None:
    if stack is None:
        return None
    return view.case.user_frame(stack).text
