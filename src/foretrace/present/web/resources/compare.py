"""`compare/OTHER`: two runs side by side, the step as a waterfall from one to the other."""

from __future__ import annotations

from typing import Any

import polars as pl

from foretrace.compare.flame import frames, tree
from foretrace.compare.memory import snapshot_beside
from foretrace.compare.traces import Comparison
from foretrace.compare.traces import compare as compare_traces
from foretrace.present.text.comparison import headline, shown_causes
from foretrace.present.web.kinds import cause_kind
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import table
from foretrace.present.web.resources.snapshot_compare import compared

_OPERATORS = 300  # those that differ most
_SAYS = {
    "a_ns": "GPU time per whole step of the first run",
    "b_ns": "GPU time per whole step of the second run",
    "a_count": "calls per whole step of the first run",
    "b_count": "calls per whole step of the second run",
    "difference_ns": "second less first, per step",
    "before_ns": "GPU time per whole step of the first run",
    "after_ns": "GPU time per whole step of the second run",
    "before_count": "calls per whole step of the first run",
    "after_count": "calls per whole step of the second run",
    "change": "whether both runs call it; those with other shapes or in another module are matched in order",
    "a_host_ns": "time on the host per whole step of the first run",
    "b_host_ns": "time on the host per whole step of the second run",
}


def compare(view: RecordingView, other: RecordingView) -> dict[str, Any]:
    """What makes the step of the other run longer or shorter than this one's."""
    found = compare_traces(view.case, other.case, names=(view.name, other.name))
    return {
        "says": headline(found.steps),
        "verdict": found.steps.verdict,
        "why": found.steps.judged.why,
        "a": {"name": found.a.name, "step_ns": found.steps.before_ns},
        "b": {"name": found.b.name, "step_ns": found.steps.after_ns},
        "rows": _rows(found),
        "frames": _frames(found),
        "operators": _table("operators", found, found.operators.head(_OPERATORS)),
        "kernels": _table("kernels", found, found.kernels),
        "nodes": _table("nodes", found, found.nodes),
        "memory": _memory(view, other),
        "notes": list(found.notes),
    }


def _memory(view: RecordingView, other: RecordingView) -> dict[str, Any] | None:
    """What the snapshots of the two Runs differ in at their peaks, where both have one."""
    both = [(each.name, snapshot_beside(each.case)[0]) for each in (view, other)]
    known = [(name, found) for name, found in both if found is not None]
    return compared(*known) if len(known) == len(both) else None


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
        for cause in shown_causes(found.steps)
    ]


def _frames(found: Comparison) -> list[dict[str, Any]]:
    """The differential flame graph, laid out: shares of the whole width."""
    return [
        {
            "name": frame.name,
            "depth": frame.depth,
            "start": round(frame.start, 5),
            "width": round(frame.width, 5),
            "a_ns": frame.before_ns,
            "b_ns": frame.after_ns,
        }
        for frame in frames(tree(found))
    ]
