"""Layers: what each call of a repeated block keeps for the backward pass.

A stack has no names of modules, but a line that calls block after block (`for block in self.blocks: x = block(x)`) is one frame
with the same allocations inside, again and again: each time they begin anew is a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device.phases import FORWARD
from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots.origins import ACTIVATION, Origins


@dataclass(frozen=True)
class Layers:
    """The calls of one line in the forward pass before an event, and what each saved."""

    where: str  # the line that calls the block
    saved_bytes: tuple[int, ...]  # per call, in order: held for the backward pass
    saved: tuple[Array, ...] = ()  # the same, as rows of the lives, in order of allocation

    @property
    def largest(self) -> int:
        """The place of the call that saved most."""
        return max(range(len(self.saved_bytes)), key=lambda place: self.saved_bytes[place])


def find(origins: Origins, event: int) -> Layers | None:
    """The repeated block that saved most in the last forward pass up to an event; `None` where no block repeats."""
    rows = _last_forward(origins, event)
    if not len(rows):
        return None
    lives = origins.memory.lives
    saved = np.where((origins.categories.gather(rows) == ACTIVATION).to_numpy(), lives.size[rows], 0)
    calls = origins.places.calls
    here = pl.DataFrame(
        {"at": np.arange(len(rows)), "stack": lives.stack[rows].astype(np.int32), "saved": saved}
    )
    under = here.join(calls, on="stack").sort("depth", "at")
    best: Layers | None = None
    for (depth, frame), of_frame in under.group_by("depth", "frame", maintain_order=True):
        inner = of_frame.join(
            calls.filter(pl.col("depth") == depth + 1).select("stack"), on="stack", how="semi"
        )
        size = inner["saved"].to_numpy()
        bounds = _split(inner["stack"].to_numpy())
        found = tuple(int(size[low:high].sum()) for low, high in bounds)
        if len(found) > 1 and sum(found) > (sum(best.saved_bytes) if best else 0):
            at = rows[inner["at"].to_numpy()]
            kept = tuple(at[low:high][size[low:high] > 0] for low, high in bounds)
            best = Layers(origins.places.words[int(frame)].removesuffix(" forward"), found, kept)
    return best


def peak_checkpointed(origins: Origins, layers: Layers) -> int | None:
    """The peak of this forward and backward pass if each call were checkpointed; `None` where the history ends before.

    A checkpointed call keeps its output alone, which is the next one's input, and the first that the backward lets go of. The
    rest of what it saves is gone behind it, and there again when its backward begins: when the call behind it has let go of all
    that it saved.
    """
    memory, lives = origins.memory, origins.memory.lives
    calls = [rows for rows in layers.saved if len(rows)]
    count = len(memory.allocated)
    first, last = int(lives.start[calls[0][0]]), max(int(lives.end[rows].max()) for rows in calls)
    backward = origins.backward.first[np.searchsorted(origins.backward.first, lives.start[calls[-1][-1]]) :]
    if last >= count or not len(backward):
        return None
    change = np.zeros(count + 1, np.int64)
    again = int(backward[0])
    for rows in reversed(calls):
        ends = int(lives.start[rows[-1]])
        gone = np.delete(rows, np.argmin(lives.end[rows]))
        until = np.clip(lives.end[gone], ends, max(again, ends))
        change[ends] -= int(lives.size[gone].sum())
        np.add.at(change, until, lives.size[gone])
        again = int(lives.end[rows].max())
    level = memory.allocated + np.cumsum(change)[:count]
    return int(level[first : last + 1].max())


def _last_forward(origins: Origins, event: int) -> Array:
    """The blocks of the forward pass that ended or was running then, in order of allocation."""
    lives = origins.memory.lives
    forward = (origins.phases == FORWARD).to_numpy() & (lives.start >= 0) & (lives.start <= event)
    rows: Array = np.flatnonzero(forward)
    if not len(rows):
        return rows
    part = np.searchsorted(origins.backward.first, lives.start[rows])
    last: Array = rows[part == part[-1]]
    return last


def _split(stacks: Array) -> list[tuple[int, int]]:
    """From one beginning to the next: the first of the stacks that come as often as most do begins."""
    if not len(stacks):
        return []
    new = np.append(True, stacks[1:] != stacks[:-1])
    kinds, runs = np.unique(stacks[new], return_counts=True)
    usual = int(np.bincount(runs).argmax())
    first_of = {int(kind): int(np.argmax(stacks == kind)) for kind in kinds[runs == usual]}
    head = min(first_of, key=lambda kind: first_of[kind])
    if usual < 2:
        return []
    begins = np.flatnonzero(new & (stacks == head))
    # What comes before the first beginning belongs to it: a buffer that is made once.
    bounds = np.append(np.append(0, begins[1:]), len(stacks)).tolist()
    return list(pairwise(bounds))
