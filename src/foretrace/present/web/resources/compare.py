"""`compare/OTHER`: two runs side by side, the step as a waterfall from one to the other."""

from __future__ import annotations

from typing import Any

import polars as pl

from foretrace.compare.traces import Comparison
from foretrace.compare.traces import compare as compare_traces
from foretrace.present.web.kinds import KINDS, LABELS
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import table
from foretrace.present.web.resources.step_time import step_time

_SAYS = {
    "a_ns": "GPU time per whole step of the first run",
    "b_ns": "GPU time per whole step of the second run",
    "a_count": "calls per whole step of the first run",
    "b_count": "calls per whole step of the second run",
    "difference_ns": "second less first, per step",
    "a_host_ns": "time on the host per whole step of the first run",
    "b_host_ns": "time on the host per whole step of the second run",
}


def compare(view: RecordingView, other: RecordingView) -> dict[str, Any]:
    """What makes the step of the other run longer or shorter than this one's."""
    found = compare_traces(view.trace, other.trace, names=(view.name, other.name))
    return {
        "says": found.says,
        "a": {"name": found.a.name, "step_ns": found.a.step_ns},
        "b": {"name": found.b.name, "step_ns": found.b.step_ns},
        "rows": _rows(view, other),
        "kernels": _table("kernels", found, found.kernels),
        "nodes": _table("nodes", found, found.nodes),
        "notes": list(found.notes),
    }


def _table(name: str, found: Comparison, frame: pl.DataFrame) -> dict[str, Any]:
    return {
        "name": name,
        "says": found.says,
        **table.of_frame(frame, _SAYS),
        "values": [],
        "notes": list(found.notes),
    }


def _rows(view: RecordingView, other: RecordingView) -> list[dict[str, Any]]:
    """The mean whole step by kind of work on both sides: each side's parts sum to its step."""
    sides = [{part["kind"]: part["ns"] for part in step_time(each)["parts"]} for each in (view, other)]
    rows = [
        {
            "kind": kind,
            "label": LABELS[kind],
            "a_ns": sides[0].get(kind, 0.0),
            "b_ns": sides[1].get(kind, 0.0),
        }
        for kind in KINDS
        if any(kind in side for side in sides)
    ]
    return sorted(rows, key=lambda row: -abs(row["b_ns"] - row["a_ns"]))
