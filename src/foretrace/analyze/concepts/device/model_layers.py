"""Layers: which of a model's repeated blocks each piece of GPU work belongs to.

From modules: of all groups of modules of one class under one parent (the blocks of a model), the one with most GPU time. Without
modules, as in a compiled or captured program, from kernels: each run of attention kernels in a step is one layer. It begins with as many
norms, products and collectives as come before every run in the same order, and ends where the next begins.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_roles
from foretrace.analyze.concepts.trees import attribution, module_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.errors import MissingDataError
from foretrace.trace import Trace

_INSTANCE = re.compile(r"_\d+$")
_ATTENTION = [
    device_roles.ROLES.index(role) for role in (device_roles.FUSED_ATTENTION, device_roles.ATTENTION_PIECES)
]
_PRODUCT = device_roles.ROLES.index("gemm")
# Roles that every layer has in the same order; copies and elementwise work between them come and go with fusion.
_LANDMARKS = [device_roles.ROLES.index(role) for role in ("gemm", "norm", "communication", "convolution")]


@dataclass(frozen=True)
class Layers:
    """Names of layers in order, and for each piece of GPU work the layer it belongs to, or NOBODY."""

    source: str  # modules or kernels
    names: list[str]
    layer: Array


def find(trace: Trace, work: pl.DataFrame) -> Layers:
    """The layers of the work, rows of `device_roles.classified`; MissingDataError where there is no sign of any."""
    layers = _from_modules(trace) or _from_kernels(work)
    if layers is None:
        raise MissingDataError(
            f"{trace.path.name}: no layers found: neither modules of one class beside one another (record with_stack=True) nor "
            "attention kernels that repeat in a step"
        )
    return layers


def _from_modules(trace: Trace) -> Layers | None:
    try:
        tree = module_tree.find(trace, "modules")
    except MissingDataError:
        return None
    owners = attribution.device_owners(trace, attribution.attribute(trace, tree.carried))
    owner = owners["owner"].fill_null(NOBODY).to_numpy()
    count = len(tree.names)
    owner = np.where(owner < count, owner, NOBODY)  # the optimizer, and backward work of no module
    own = attribution.sums(owner, owners["dur_ns"].to_numpy(), count)
    total = attribution.with_descendants(tree.parent, own)
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for module, name in enumerate(tree.names):
        groups[int(tree.parent[module]), _INSTANCE.sub("", name)].append(module)
    repeated = [modules for modules in groups.values() if sum(total[module] > 0 for module in modules) > 1]
    if not repeated:
        return None
    blocks = max(repeated, key=lambda modules: int(total[modules].sum()))
    blocks = [module for module in blocks if total[module] > 0]
    place = np.full(count + 1, NOBODY)  # NOBODY is the last
    place[blocks] = np.arange(len(blocks))
    parent = np.append(tree.parent, NOBODY)
    at = owner.copy()
    while len(up := np.flatnonzero((at != NOBODY) & (place[at] == NOBODY))):
        at[up] = parent[at[up]]
    return Layers("modules", [tree.names[module] for module in blocks], place[at])


def _from_kernels(work: pl.DataFrame) -> Layers | None:
    layer = np.full(work.height, NOBODY)
    steps = work["step"].fill_null(-1).to_numpy()
    if (steps >= 0).any() and not (steps >= 0).all():
        steps = np.where(steps < 0, NOBODY - 1, steps)  # work between steps is of no layer
    role, most = work["role"].to_numpy(), 0
    for step in np.unique(steps[steps >= NOBODY]).tolist():
        rows = np.flatnonzero(steps == step)
        rows = rows[np.argsort(work["start_ns"].to_numpy()[rows], kind="stable")]
        bounds = _bounds(role[rows])
        for number, (first, last) in enumerate(bounds):
            layer[rows[first:last]] = number
        most = max(most, len(bounds))
    if most < 2:
        return None
    return Layers("kernels", [f"layer {number}" for number in range(most)], layer)


def _bounds(roles: Array) -> list[tuple[int, int]]:
    """Where each layer of a step begins and ends, from the roles of its work in order."""
    runs = list(_attention_runs(roles))
    if len(runs) < 2:
        return []
    marks = np.flatnonzero(np.isin(roles, _LANDMARKS))
    edges = [0, *(end for _, end in runs)]
    before = [marks[(marks >= edge) & (marks < start)] for edge, (start, _) in zip(edges, runs, strict=False)]
    lead = min(
        _common_end(roles[first].tolist(), roles[second].tolist()) for first, second in pairwise(before)
    )
    starts = [
        int(places[len(places) - lead]) if lead else start
        for places, (start, _) in zip(before, runs, strict=True)
    ]
    inner = sorted(len(places) - lead for places in before[1:])
    after = marks[marks >= runs[-1][1]]
    tail = inner[len(inner) // 2]
    last = int(after[tail]) if tail < len(after) else len(roles)
    return list(zip(starts, [*starts[1:], last], strict=True))


def _attention_runs(roles: Array) -> Iterator[tuple[int, int]]:
    """Attention kernels with no product between them: first and one past the last."""
    start = end = -1
    for place, role in enumerate(roles.tolist()):
        if role in _ATTENTION:
            start, end = (place if start < 0 else start), place + 1
        elif role == _PRODUCT and start >= 0:
            yield start, end
            start = -1
    if start >= 0:
        yield start, end


def _common_end(first: Sequence[int], second: Sequence[int]) -> int:
    """How many items at the end are the same."""
    count = 0
    for left, right in zip(reversed(first), reversed(second), strict=False):
        if left != right:
            break
        count += 1
    return count
