"""What was measured, as truth.json holds it: step times of a program as it is and with each change, and their ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BASE = "base"


def speedup_range(base_ms: Sequence[float], change_ms: Sequence[float]) -> list[float]:
    """Least and greatest ratio of any run of the program as it is to any run with the change."""
    ratios = [before / after for before in base_ms for after in change_ms]
    return [round(min(ratios), 3), round(max(ratios), 3)]


def truth_of(
    entry: Mapping[str, Any], device: str, runs: Mapping[str, Sequence[Mapping[str, float]]]
) -> dict[str, Any]:
    """The truth of one program from the runs of each variant; a change without a run is not in it."""
    base = runs.get(BASE, ())
    out: dict[str, Any] = {"program": entry["what"], "device": device, **_figures(base), "changes": {}}
    for name, what in entry["changes"].items():
        if runs.get(name) and base:
            figures = _figures(runs[name])
            ratio = speedup_range([run["step_ms"] for run in base], [run["step_ms"] for run in runs[name]])
            rule = entry.get("rule", {}).get(name, "")
            out["changes"][name] = {"what": what, "rule": rule, **figures, "speedup_range": ratio}
    return out


def _figures(runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    if not runs:
        return {"step_ms": []}
    return {
        "step_ms": [round(run["step_ms"], 3) for run in runs],
        "lo": round(min(run["lo"] for run in runs), 3),
        "hi": round(max(run["hi"] for run in runs), 3),
    }
