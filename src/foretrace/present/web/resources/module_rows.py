"""Module rows of the timeline: the kernels of a device projected on the phases and modules that launched them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device.phases import PHASES
from foretrace.analyze.concepts.trees import attribution, module_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.errors import MissingDataError
from foretrace.present.web.owners import device_owners
from foretrace.present.web.recording_view import RecordingView
from foretrace.trace import Trace

_MODULE_ROWS = 7
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class ModuleRow:
    """One projected row: stretches, each with its label."""

    start: Numbers
    end: Numbers
    label: NDArray[np.int64]
    labels: list[str]
    kind: str


def device_title(device: int | None) -> str:
    """What the page calls a device."""
    return "GPU" if device is None else f"GPU {device}"


def module_rows(view: RecordingView) -> list[tuple[str, list[ModuleRow]]]:
    """For each device, its launched work by phase and by module, level by level."""
    trace = view.trace
    if not trace.has_device:
        return []
    work = view.classified
    if work.is_empty():
        return []
    path, names = _paths(trace, work)
    by_device = []
    for device in work["device"].unique(maintain_order=True).to_list():
        on_track = work["device"].eq_missing(device).to_numpy()
        chosen = work.filter(pl.Series(on_track))
        start, end = chosen["start_ns"].to_numpy(), chosen["end_ns"].to_numpy()
        step = chosen["step"].fill_null(-1).to_numpy()
        phase = chosen["phase"].to_numpy().astype(np.int64)
        phase[phase == len(PHASES) - 1] = NOBODY
        rows = [_row(start, end, phase, step, list(PHASES), "note")]
        rows += [_row(start, end, level[on_track], step, names, "op") for level in path]
        rows = [row for row in rows if len(row.start)]
        if rows:
            by_device.append((device_title(device), rows))
    return by_device


def _paths(trace: Trace, work: pl.DataFrame) -> tuple[list[Numbers], list[str]]:
    """For each launched device span, the module at each level of its path, and the modules' names."""
    try:
        tree = module_tree.find(trace)
    except MissingDataError:
        return [], []
    owner = device_owners(trace, work, tree.carried)
    owner[owner >= len(tree.names)] = NOBODY
    depth = attribution.depths(tree.parent)
    levels = []
    for level in range(min(int(depth.max(initial=-1)) + 1, _MODULE_ROWS)):
        ancestor = np.arange(len(tree.names))
        for _ in range(int(depth.max(initial=0))):
            ancestor = np.where(depth[ancestor] > level, tree.parent[ancestor], ancestor)
        ancestor = np.where(depth[ancestor] == level, ancestor, NOBODY)
        levels.append(np.where(owner == NOBODY, NOBODY, ancestor[owner]))
    return levels, tree.names


def _row(start: Numbers, end: Numbers, key: Numbers, step: Numbers, names: list[str], kind: str) -> ModuleRow:
    """Neighbours of one key and step as one stretch."""
    if not len(key):
        return ModuleRow(start, end, key, [], kind)
    changes = np.concatenate(([True], (key[1:] != key[:-1]) | (step[1:] != step[:-1])))
    first = np.flatnonzero(changes)
    reach = np.maximum.reduceat(end, first)
    label = key[first]
    known = label != NOBODY
    begin, until, label = start[first][known], reach[known], label[known]
    # Streams overlap: a stretch ends at the latest where the next one of the row begins.
    if len(begin) > 1:
        until[:-1] = np.maximum(np.minimum(until[:-1], begin[1:]), begin[:-1])
    used, place = np.unique(label, return_inverse=True)
    return ModuleRow(begin, until, place.reshape(-1), [names[number] for number in used.tolist()], kind)
