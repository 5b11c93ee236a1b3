"""Holes: memory that torch holds from the device and no block uses, at any event; what of it could be used again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots.lifetimes import DeviceMemory, segment_lives
from foretrace.snapshot import COMMON_POOL

_GROWS = {"segment_map": 1, "segment_unmap": -1}


@dataclass(frozen=True)
class Holes:
    """What torch held and no block used after an event."""

    reserved_bytes: int
    active_bytes: int
    largest_bytes: int  # the largest hole in one piece
    whole_bytes: (
        int  # in segments with no block in them: cached, and given back before torch runs out of memory
    )
    split_bytes: int  # in segments that blocks still use: these cannot be given back
    private_bytes: int  # reserved in pools of their own, of CUDA graphs for example

    @property
    def unused_bytes(self) -> int:
        """All of it."""
        return self.whole_bytes + self.split_bytes

    @property
    def unused_pct(self) -> float:
        """Of what torch held."""
        return 100 * self.unused_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


def holes(memory: DeviceMemory, event: int) -> Holes:
    """The holes after an event."""
    low, high, private = _ranges(memory, event)
    lives = memory.lives
    active = np.flatnonzero(lives.active_after(event))
    begin = _ordered(lives.address[active])
    order = np.argsort(begin, kind="stable")
    begin, size = begin[order], lives.size[active][order]
    place = np.searchsorted(low, begin, side="right") - 1
    inside = (place >= 0) & (begin < np.append(high, 0)[place])
    begin, size, place = begin[inside], size[inside], place[inside]
    used = np.bincount(place, size, minlength=len(low)).astype(np.int64)
    free = (high - low) - used
    # The hole before each block, and the one behind the last of each range.
    stop = begin + size
    first = np.append(True, place[1:] != place[:-1]) if len(place) else np.zeros(0, bool)
    before = np.where(first, low[place], np.append(0, stop[:-1])) if len(place) else begin
    gaps = begin - before
    last = np.append(first[1:], True) if len(first) else first
    behind = high[place[last]] - stop[last]
    empty = used == 0
    largest = max((int(part.max(initial=0)) for part in (gaps, behind, free[empty])), default=0)
    return Holes(
        reserved_bytes=int((high - low).sum()),
        active_bytes=int(used.sum()),
        largest_bytes=largest,
        whole_bytes=int(free[empty].sum()),
        split_bytes=int(np.maximum(free[~empty], 0).sum()),
        private_bytes=int((high - low)[private].sum()),
    )


@dataclass(frozen=True)
class UnusedBeside:
    """Segments that blocks use in part: the largest block of each (its row), and the bytes that none uses."""

    largest: Array
    unused: Array


def unused_beside(memory: DeviceMemory, event: int) -> UnusedBeside:
    """What lay unused beside blocks after an event, segment by segment."""
    low, high, _ = _ranges(memory, event)
    lives = memory.lives
    rows = np.flatnonzero(lives.active_after(event))
    begin = _ordered(lives.address[rows])
    place = np.searchsorted(low, begin, side="right") - 1
    inside = (place >= 0) & (begin < np.append(high, 0)[place])
    rows, place = rows[inside], place[inside]
    used = np.bincount(place, lives.size[rows], minlength=len(low)).astype(np.int64)
    order = np.lexsort((lives.size[rows], place))
    last = np.append(place[order][1:] != place[order][:-1], True) if len(order) else np.zeros(0, bool)
    chosen = order[last]
    return UnusedBeside(rows[chosen], np.maximum(high - low - used, 0)[place[chosen]])


def _ordered(addresses: Array) -> Array:
    """Addresses of 64 bits as signed numbers in the same order, the same distances apart."""
    signed: Array = (addresses ^ np.uint64(1 << 63)).view(np.int64)
    return signed


def _ranges(memory: DeviceMemory, event: int) -> tuple[Array, Array, Array]:
    """What was held from the device then: where each piece began and stopped, in order, and whether in a private pool."""
    pieces = segment_lives(memory.events, memory.segments).filter(
        ~pl.col("expandable") & (pl.col("start") <= event) & (pl.col("end") > event)
    )
    growing = _mapped(memory, event)
    low = np.concatenate((_ordered(pieces["address"].to_numpy()), growing[0]))
    high = np.concatenate((low[: pieces.height] + pieces["total_bytes"].to_numpy(), growing[1]))
    alone = (pieces["pool"].fill_null(COMMON_POOL) != COMMON_POOL).to_numpy()
    private = np.concatenate((alone, growing[2]))
    order = np.argsort(low, kind="stable")
    return low[order], high[order], private[order]


def _mapped(memory: DeviceMemory, event: int) -> tuple[Array, Array, Array]:
    """The mapped ranges of expandable segments then: what is mapped at the end, without what was mapped later."""
    grown = memory.segments.filter("expandable")
    begin = _ordered(grown["address"].to_numpy())
    later = memory.events[event + 1 :].filter(pl.col("action").cast(pl.String).is_in(list(_GROWS)))
    where = _ordered(later["address"].fill_null(0).to_numpy())
    sign = later["action"].cast(pl.String).replace_strict(_GROWS, default=0, return_dtype=pl.Int64).to_numpy()
    at = np.concatenate(
        (begin, begin + grown["total_bytes"].to_numpy(), where, where + later["size_bytes"].to_numpy())
    )
    change = np.concatenate((np.ones(len(begin), int), -np.ones(len(begin), int), -sign, sign))
    points, code = np.unique(at, return_inverse=True)
    level = np.cumsum(np.bincount(code, change, minlength=len(points))) > 0.5
    edge = np.diff(np.append(0, level.astype(int))) if len(level) else np.zeros(0, int)
    low, high = points[edge > 0], points[edge < 0]
    alone = begin[(grown["pool"].fill_null(COMMON_POOL) != COMMON_POOL).to_numpy()]
    return low, high, np.isin(low, alone)
