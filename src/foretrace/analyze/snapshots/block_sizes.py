"""How large a block is of which the history tells what was asked for.

The allocator rounds what is asked, and gives the rest of a hole away too where it is not worth splitting: up to 1 MiB of a large
one (c10/cuda/CUDACachingAllocator.cpp of torch 2.13: round_size, should_split). `memory_allocated` counts whole blocks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.sourced import Bytes

_ALLOCATOR = "c10/cuda/CUDACachingAllocator.cpp of torch 2.13"
LEAST_BLOCK = Bytes(512, "what block sizes are multiples of", _ALLOCATOR)
SMALL = Bytes(1 << 20, "the largest request that the pool of small blocks serves", _ALLOCATOR)
_MOST_DIVISION = 15  # of roundup_power2_divisions: for 32,768 MiB and more


def rounded(asked: Array, settings: Mapping[str, Any]) -> Array:
    """What the allocator makes of the sizes asked for."""
    size: Array = np.maximum(-(-asked // LEAST_BLOCK) * LEAST_BLOCK, LEAST_BLOCK)
    divisions = settings.get("roundup_power2_divisions")
    if not isinstance(divisions, Mapping) or not any(divisions.values()) or not len(asked):
        return size
    power = np.maximum(np.frexp(asked.astype(np.float64))[1] - 1, 0)  # of the power of two at or below it
    by_power = np.array([int(divisions.get(str(1 << place), 0) or 0) for place in range(_MOST_DIVISION + 1)])
    parts = by_power[np.clip(power - 20, 0, _MOST_DIVISION)]
    grain = np.maximum((1 << power) // np.maximum(parts, 1), 1)
    coarse = -(-asked // grain) * grain
    sizes: Array = np.where((parts > 1) & (asked > LEAST_BLOCK * parts), coarse, size)
    return sizes


def whole(
    size: Array, address: Array, start: Array, end: Array, segments: pl.DataFrame, settings: Mapping[str, Any]
) -> Array:
    """Rounded sizes with the rest of the hole, where the allocator does not split it off.

    `segments` has address, total_bytes, start, end (numbers of events) and `expandable`: there, all is split.
    """
    limit = int(settings.get("max_split_size", -1) or -1)
    large = np.flatnonzero((size > SMALL) & (start >= 0))
    around = _segment_of(address[large], start[large], segments)
    large, around = large[around >= 0], around[around >= 0]
    fixed = ~segments["expandable"].to_numpy()[around]
    large, around = large[fixed], around[fixed]
    stop = (segments["address"].to_numpy() + segments["total_bytes"].to_numpy().astype(np.uint64))[around]
    left = (stop - address[large]).view(np.int64) - size[large]
    whole_size = size.copy()
    # No other large block fits behind it: the hole ends with the segment.
    alone = (left >= 0) & (left <= SMALL)
    whole_size[large[alone]] += left[alone]
    rest = np.zeros(len(size), bool)
    rest[large[~alone & (left > 0)]] = True
    order = np.argsort(around, kind="stable")
    shares = np.flatnonzero(np.diff(around[order])) + 1
    for mine in np.split(order, shares):
        if rest[large[mine]].any():
            _between(whole_size, large[mine], rest, address, start, end, int(stop[mine[0]]), limit)
    return whole_size


def _segment_of(address: Array, at: Array, segments: pl.DataFrame) -> Array:
    """The row of the segment that held each address then, or -1."""
    first, born, died = (segments[name].to_numpy() for name in ("address", "start", "end"))
    stop = first + segments["total_bytes"].to_numpy().astype(np.uint64)
    lows, group = np.unique(first, return_inverse=True)
    # By address and, where segments came and went at one address, by time: one number for both.
    span = max(int(at.max(initial=0)), int(born.max(initial=0))) + 2
    order = np.lexsort((born, group))
    key = group[order] * span + born[order] + 1
    highest = np.zeros(len(lows), np.uint64)
    np.maximum.at(highest, group, stop)
    highest = np.maximum.accumulate(highest)
    found = np.full(len(address), -1)
    place = np.searchsorted(lows, address, side="right") - 1
    open_ = np.flatnonzero(place >= 0)
    while len(open_):
        near = np.searchsorted(key, place[open_] * span + at[open_] + 1, side="right") - 1
        row = order[np.maximum(near, 0)]
        fits = (
            (near >= 0)
            & (group[row] == place[open_])
            & (address[open_] < stop[row])
            & (died[row] > at[open_])
        )
        found[open_[fits]] = row[fits]
        # Segments do not overlap, but one may lie where a larger one was before.
        place[open_] -= 1
        open_ = open_[~fits & (place[open_] >= 0)]
        open_ = open_[address[open_] < highest[place[open_]]]
    return found


def _between(
    whole_size: Array,
    mine: Array,
    rest: Array,
    address: Array,
    start: Array,
    end: Array,
    stop: int,
    limit: int,
) -> None:
    """Adds what lies between a block of one segment and the next block above it, in the order of events."""
    happened = [(int(start[row]), 1, int(row)) for row in mine] + [
        (int(end[row]), 0, int(row)) for row in mine
    ]
    taken: list[int] = []
    for _, begins, row in sorted(happened):
        where = int(address[row])
        if not begins:
            place = bisect_left(taken, where)
            if place < len(taken) and taken[place] == where:
                del taken[place]
            continue
        if rest[row]:
            above = bisect_right(taken, where)
            left = (taken[above] if above < len(taken) else stop) - where - int(whole_size[row])
            oversize = 0 < limit <= whole_size[row]
            if 0 < left <= SMALL or (oversize and left > 0):
                whole_size[row] += left
        taken.insert(bisect_left(taken, where), where)
