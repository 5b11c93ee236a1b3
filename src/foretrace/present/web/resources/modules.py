"""`modules`: trees of time, to be drawn as a table, a flame graph, left-heavy or as a sandwich."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from foretrace.analyze.result import Result
from foretrace.errors import MissingDataError
from foretrace.present.export import flamegraph
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.short_names import short

_LEAST = 2e-4  # of the whole: a narrower frame cannot be seen or clicked
_NODES = 20_000


def modules(view: RecordingView) -> dict[str, Any]:
    """The tree of modules by GPU and by host time, and that of Python stacks; MissingDataError where there is none."""
    trees: list[dict[str, Any]] = []
    says: list[str] = []
    reason: MissingDataError | None = None
    try:
        result = view.result("modules")
        says.append(result.says)
        if view.trace.has_device:
            trees.append(_tree("Modules, by GPU time", "gpu_ns", result, "device"))
        trees.append(_tree("Modules, by host time", "host_ns", result, "host"))
        trees += _passes(result, "device" if view.trace.has_device else "host")
    except MissingDataError as missing:
        reason = missing
    if view.trace.stacks.height:
        if view.trace.has_device:
            trees.append(_stacks(view, "Python stacks, by GPU time", "gpu_ns", "device"))
        trees.append(_stacks(view, "Python stacks, by host time", "host_ns", "host"))
    trees = [tree for tree in trees if tree["name"]]
    if not trees and reason is not None:
        raise reason
    return {"says": "; ".join(says), "trees": trees}


def _passes(result: Result, side: str) -> list[dict[str, Any]]:
    """The same tree of the forward pass alone, and of the backward; none where there was no backward."""
    if not result.table[f"{side}_backward_ns"].fill_null(0).sum():
        return []
    measure, what = ("gpu_ns", "GPU") if side == "device" else ("host_ns", "host")
    return [
        _tree(f"Modules, {part} only, by {what} time", measure, _of_pass(result, side, part), side)
        for part in ("forward", "backward")
    ]


def _of_pass(result: Result, side: str, part: str) -> Result:
    """The modules with the time of one pass as their total, and what is not in their submodules as their self time."""
    total = result.table[f"{side}_{part}_ns"].fill_null(0).to_list()
    own = total.copy()
    for row, around in enumerate(_parents(result)):
        if around >= 0:
            own[around] -= total[row]
    columns = {f"{side}_total_ns": pl.Series(total), f"{side}_self_ns": pl.Series(own)}
    return replace(result, table=result.table.with_columns(**columns))


def _parents(result: Result) -> list[int]:
    """For each row, the one around it, or -1."""
    parent: list[int] = []
    around: list[int] = []  # the last row seen at each depth
    for row, depth in enumerate(result.table["depth"].to_list()):
        parent.append(around[depth - 1] if depth else -1)
        del around[depth:]
        around.append(row)
    return parent


def _tree(title: str, measure: str, result: Result, side: str) -> dict[str, Any]:
    table = result.table
    return {
        "title": title,
        "measure": measure,
        "parent": _parents(result),
        "name": [name.strip() for name in table["module"].to_list()],
        "total": table[f"{side}_total_ns"].fill_null(0).to_list(),
        "self": table[f"{side}_self_ns"].fill_null(0).to_list(),
        "calls": table["calls_count"].to_list(),
    }


def _stacks(view: RecordingView, title: str, measure: str, metric: str) -> dict[str, Any]:
    """Stacks folded into a tree; narrow frames are left to their callers."""
    places: dict[tuple[int, str], int] = {}
    parent: list[int] = []
    name: list[str] = []
    own: list[int] = []
    for line in flamegraph.to_folded(view.trace, "device" if metric == "device" else "host").splitlines():
        path, _, weight = line.rpartition(" ")
        at = -1
        for frame in path.split(";"):
            key = at, frame
            if key not in places:
                places[key] = len(name)
                parent.append(at)
                name.append(short(frame, "kernel") if frame.startswith("void ") else frame)
                own.append(0)
            at = places[key]
        own[at] += int(weight)
    return {"title": title, "measure": measure, **_pruned(parent, name, own)}


def _pruned(parent: list[int], name: list[str], own: list[int]) -> dict[str, Any]:
    """The tree without frames too narrow to see; their time becomes their caller's own."""
    total = own.copy()
    for node in range(len(name) - 1, -1, -1):
        if parent[node] >= 0:
            total[parent[node]] += total[node]
    whole = sum(total[node] for node in range(len(name)) if parent[node] < 0)
    least = _LEAST * whole
    ordered = sorted(total, reverse=True)
    if len(ordered) > _NODES:
        least = max(least, ordered[_NODES])
    kept: dict[int, int] = {}
    own = own.copy()
    for node in range(len(name)):
        if total[node] >= least and (parent[node] < 0 or parent[node] in kept):
            kept[node] = len(kept)
        elif parent[node] in kept:
            own[parent[node]] += total[node]
    nodes = list(kept)
    return {
        "parent": [kept[parent[node]] if parent[node] >= 0 else -1 for node in nodes],
        "name": [name[node] for node in nodes],
        "total": [total[node] for node in nodes],
        "self": [own[node] for node in nodes],
        "calls": [None] * len(nodes),
    }
