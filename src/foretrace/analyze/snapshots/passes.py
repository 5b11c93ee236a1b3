"""Backward passes and optimizer steps in the history of one device, as numbers of events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device.phases import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE
from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots.lifetimes import DeviceMemory
from foretrace.analyze.snapshots.places import OTHER, Places

_FREES = ("free_requested", "free_completed")


@dataclass(frozen=True)
class Passes:
    """Runs of events of one phase: their first and last event, and the first event after them of another phase."""

    first: Array
    last: Array
    left: Array  # the number of events where none came after
    frees_tell: bool  # whether frees have stacks, so that `last` is the last free too

    def next_of(self, event: Array) -> Array:
        """The place of the first run that begins after each event; one past the last where none does."""
        place: Array = np.searchsorted(self.first, event, side="right")
        return place

    def around(self, event: Array) -> Array:
        """The place of the run that each event lies in or after; -1 before the first."""
        place: Array = np.searchsorted(self.first, event, side="right") - 1
        return place


def backward_passes(memory: DeviceMemory, places: Places) -> Passes:
    """Runs of backward work with no forward, optimizer or other work of the program's thread between."""
    return _runs(memory, places, (BACKWARD, RECOMPUTE), (FORWARD, OPTIMIZER))


def optimizer_steps(memory: DeviceMemory, places: Places) -> Passes:
    """Runs of allocations in an optimizer's code; one where the backward pass updates parameter by parameter."""
    return _runs(memory, places, (OPTIMIZER,), (FORWARD,))


def _runs(memory: DeviceMemory, places: Places, inside: tuple[str, ...], between: tuple[str, ...]) -> Passes:
    events = memory.events
    stack = events["stack"].to_numpy()
    phase = places.phases.gather(np.where(stack < 0, places.count, stack))
    action = events["action"].cast(pl.String)
    allocates, frees = (action == "alloc").to_numpy(), action.is_in(list(_FREES)).to_numpy()
    is_inside = phase.is_in(list(inside)).to_numpy()
    other = (phase == OTHER).to_numpy() & places.of_program[stack]
    breaks = allocates & (phase.is_in(list(between)).to_numpy() | other)
    # Where no free has a stack, a free without one says nothing.
    frees_tell = bool((stack[frees] >= 0).any())
    told = frees & is_inside & frees_tell
    part = np.cumsum(breaks)
    rows = np.flatnonzero(allocates & is_inside)
    parts, begin = np.unique(part[rows], return_index=True)
    first = rows[begin]
    last = np.zeros(len(part) and int(part[-1]) + 1, np.int64)
    of_run = np.flatnonzero((allocates & is_inside) | told)
    last[part[of_run]] = of_run
    stops = np.append(np.flatnonzero(breaks), len(stack))
    return Passes(first, last[parts], stops[np.searchsorted(stops, first)], frees_tell)
