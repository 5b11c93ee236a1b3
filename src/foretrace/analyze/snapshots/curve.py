"""The curve of one device: what was held after events, by category, at as many of them as a picture has room for."""

from __future__ import annotations

import numpy as np

from foretrace.analyze.concepts.memory.memory_categories import CATEGORIES
from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots.lifetimes import BEFORE, DeviceMemory
from foretrace.analyze.snapshots.origins import PARAMETER, Origins

_KEPT = 4  # of a stretch: its first event, the lowest and the highest level, the most reserved


def chosen_events(
    memory: DeviceMemory, most: int, *, from_ns: int | None = None, to_ns: int | None = None
) -> Array:
    """At most so many events in order, those at the ends included: of each stretch those with the extreme levels.

    BEFORE is the first where all are asked for; within a time, the last event before it, whose level holds there.
    """
    low = 0 if from_ns is None else int(np.searchsorted(memory.time_ns, from_ns, side="left"))
    high = memory.events.height
    if to_ns is not None:
        high = int(np.searchsorted(memory.time_ns, to_ns, side="right"))
    inside = np.arange(low, high)
    if len(inside) > most:
        inside = _extremes(memory, low, high, max(most // _KEPT, 1))
    found: Array = np.concatenate(([max(low - 1, BEFORE)], inside)).astype(np.int64)
    return found


def _extremes(memory: DeviceMemory, low: int, high: int, parts: int) -> Array:
    edges = np.linspace(low, high, parts + 1).astype(np.int64)
    kept = [np.array([high - 1])]
    for begin, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        level, reserved = memory.allocated[begin:stop], memory.reserved[begin:stop]
        extremes = (0, int(np.argmin(level)), int(np.argmax(level)), int(np.argmax(reserved)))
        kept.append(begin + np.unique(extremes))
    return np.unique(np.concatenate(kept))


def by_category(origins: Origins, events: Array) -> dict[str, Array]:
    """Bytes that the program held after each of these events, by category; they sum to what was allocated."""
    memory, lives = origins.memory, origins.memory.lives
    count = memory.events.height
    names = origins.categories.to_numpy()
    found = {}
    for category in sorted(set(names), key=_order):
        mine = names == category
        # One place more at the front for BEFORE, and one behind for what was never freed.
        change = np.zeros(count + 2, np.int64)
        np.add.at(change, lives.start[mine] + 1, lives.size[mine])
        np.subtract.at(change, lives.asked[mine] + 1, lives.size[mine])
        levels: Array = np.cumsum(change)[events + 1]
        if levels.any():
            found[category] = levels
    return found


def levels(memory: DeviceMemory, events: Array) -> tuple[Array, Array]:
    """What the program held, and torch from the device, after each of these events."""
    allocated = np.append(memory.allocated, memory.baseline_bytes)[events]
    reserved = np.append(memory.reserved, memory.reserved_after(BEFORE))[events]
    return allocated, reserved


def _order(category: str) -> tuple[int, str]:
    """What stays for long lies at the bottom."""
    order = (PARAMETER, *CATEGORIES)
    return (order.index(category) if category in order else len(order), category)
