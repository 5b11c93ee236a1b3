"""Stacks of a Trace as files for flame-graph viewers: speedscope's JSON, or folded lines.

Formats: https://www.speedscope.app/file-format-schema.json, and Brendan Gregg's `frame;frame;frame weight`.
Weights are nanoseconds that a stack has to itself; on the device, kernels are the innermost frames.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from foretrace._version import __version__
from foretrace.analyze.concepts.trees import stack_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.analyze.concepts.trees.stack_tree import StackTree
from foretrace.analyze.stacks import Metric, weighted
from foretrace.trace import Trace
from foretrace.units import visible

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_NO_STACK, _BACKWARD = "(no Python stack)", "[backward]"


@dataclass(frozen=True)
class Frame:
    """One frame of a stack, as viewers name it."""

    name: str
    file: str | None = None
    line: int | None = None

    @property
    def label(self) -> str:
        """Name and place in one text without the separators of folded stacks."""
        line = "" if self.line is None else f":{self.line}"
        place = f" ({self.file}{line})" if self.file else ""
        return " ".join(f"{self.name}{place}".replace(";", ",").split())


def to_folded(trace: Trace, metric: Metric) -> str:
    """One line per distinct stack, outermost frame first: `main;forward;linear 1200`."""
    merged: dict[str, int] = {}
    for frames, weight in _weighted(trace, metric):
        key = ";".join(frame.label for frame in frames)
        merged[key] = merged.get(key, 0) + weight
    return "".join(f"{key} {weight}\n" for key, weight in merged.items())


def to_speedscope(trace: Trace, metric: Metric) -> str:
    """A speedscope document with one sampled profile."""
    numbers: dict[Frame, int] = {}
    samples, weights = [], []
    for frames, weight in _weighted(trace, metric):
        samples.append([numbers.setdefault(frame, len(numbers)) for frame in frames])
        weights.append(weight)
    profile = {
        "type": "sampled",
        "name": f"{metric} time",
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    document = {
        "$schema": _SCHEMA,
        "exporter": f"foretrace {__version__}",
        "name": visible(trace.path.name),
        "activeProfileIndex": 0,
        "shared": {"frames": [_shared(frame) for frame in numbers]},
        "profiles": [profile],
    }
    return json.dumps(document, ensure_ascii=False)


def _shared(frame: Frame) -> dict[str, Any]:
    described: dict[str, Any] = {"name": frame.name}
    if frame.file is not None:
        described["file"] = frame.file
        if frame.line is not None:
            described["line"] = frame.line
    return described


def _weighted(trace: Trace, metric: Metric) -> list[tuple[tuple[Frame, ...], int]]:
    """Stacks with their time, outermost frame first; callers keep the order that they first ran in."""
    tree = stack_tree.find(trace)
    chains = _chains(tree)
    rows = weighted(trace, tree, metric).sort("stack", "backward", "leaf", nulls_last=True)
    found = []
    for stack, backward, leaf, weight in rows.iter_rows():
        frames = (Frame(_NO_STACK),) if stack is None else chains[stack]
        if backward:
            frames = (*frames, Frame(_BACKWARD))
        if leaf is not None:
            frames = (*frames, Frame(leaf))
        found.append((frames, weight))
    return found


def _chains(tree: StackTree) -> list[tuple[Frame, ...]]:
    """For each stack its frames, outermost first."""
    chains: list[tuple[Frame, ...]] = []
    for above, frame in zip(tree.parent.tolist(), tree.frames.iter_rows(), strict=True):
        outer = () if above == NOBODY else chains[above]
        chains.append((*outer, Frame(*frame)))
    return chains
