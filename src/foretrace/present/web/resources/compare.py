"""`compare/OTHER`: two runs side by side, the step as a waterfall from one to the other."""

from __future__ import annotations

from typing import Any

import polars as pl

from foretrace.compare.traces import Comparison
from foretrace.compare.traces import compare as compare_traces
from foretrace.present.web.kinds import cause_kind
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import table

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
    found = compare_traces(view.case, other.case, names=(view.name, other.name))
    return {
        "says": found.says,
        "verdict": found.steps.verdict,
        "a": {"name": found.a.name, "step_ns": found.steps.before_ns},
        "b": {"name": found.b.name, "step_ns": found.steps.after_ns},
        "rows": _rows(found),
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


def _rows(found: Comparison) -> list[dict[str, Any]]:
    """What explains the difference, the largest first: each side's parts sum to its step."""
    return [
        {
            "kind": cause_kind(cause.what, cause.kind),
            "label": cause.what,
            "a_ns": cause.before_ns,
            "b_ns": cause.after_ns,
        }
        for cause in found.steps.causes
    ]
