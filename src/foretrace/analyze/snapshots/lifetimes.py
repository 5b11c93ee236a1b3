"""Lifetimes: when each block of one device was allocated and freed, and the memory in use after each event.

An event is known by its number, the row in the history of its device: several happen in one microsecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots import block_sizes
from foretrace.snapshot import COMMON_POOL, Snapshot
from foretrace.units import counted

BEFORE = -1  # the number of an event that was before the history
_TAKEN = ("segment_alloc", "segment_map")
_RETURNED = ("segment_free", "segment_unmap")


@dataclass(frozen=True)
class Lives:
    """Blocks from their allocation to their free, in order of allocation: one entry of each array per block."""

    address: Array
    size: Array  # of the whole block
    requested: Array  # what was asked for; the same where that is not known
    start: Array  # number of the event that allocated it, or BEFORE
    asked: Array  # of the one by which the program let it go; the number of events where it did not
    end: Array  # of the one after which it could be used again; the same
    stack: Array
    stream: Array
    pool: pl.Series

    def __len__(self) -> int:
        return len(self.size)

    def allocated_after(self, event: int) -> Array:
        """Which blocks the program held after that event."""
        held: Array = (self.start <= event) & (self.asked > event)
        return held

    def active_after(self, event: int) -> Array:
        """Which blocks were held then, or let go while a stream may still use them."""
        active: Array = (self.start <= event) & (self.end > event)
        return active


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device: its history, its blocks and what it held at the end."""

    device: int
    events: pl.DataFrame
    lives: Lives
    segments: pl.DataFrame
    blocks: pl.DataFrame
    notes: tuple[str, ...]

    @cached_property
    def timed(self) -> bool:
        """Whether the history has times; that of an older torch has none."""
        return self.events["time_ns"].null_count() < self.events.height

    @cached_property
    def time_ns(self) -> Array:
        """When each event happened; without times (`timed`), the numbers of the events."""
        if not self.timed:
            return np.arange(self.events.height, dtype=np.int64)
        times = self.events["time_ns"].fill_null(strategy="forward").fill_null(strategy="backward")
        return times.to_numpy()

    @cached_property
    def baseline_bytes(self) -> int:
        """Held before the first event."""
        return int(self.lives.size[self.lives.allocated_after(BEFORE)].sum())

    @cached_property
    def allocated(self) -> Array:
        """Bytes that the program held after each event, as torch.cuda.memory_allocated counts."""
        return self._held(self.lives.asked)

    @cached_property
    def active(self) -> Array:
        """The same, with what a stream may still use."""
        return self._held(self.lives.end)

    @cached_property
    def reserved(self) -> Array:
        """Bytes that torch held from the device after each event: back from what it holds at the end."""
        action = self.events["action"].cast(pl.String)
        size = self.events["size_bytes"].to_numpy()
        taken, returned = (action.is_in(list(names)).to_numpy() for names in (_TAKEN, _RETURNED))
        change = np.cumsum(np.where(taken, size, np.where(returned, -size, 0)))
        final = int(self.segments["total_bytes"].sum())
        return final - (change[-1] if len(change) else 0) + change

    @cached_property
    def peak(self) -> int:
        """The number of the event after which the program held most; BEFORE where that was at the start."""
        if not len(self.allocated):
            return BEFORE
        most = int(np.argmax(self.allocated))
        return most if self.allocated[most] > self.baseline_bytes else BEFORE

    @cached_property
    def peak_bytes(self) -> int:
        """The most that the program held at once."""
        return self.baseline_bytes if self.peak == BEFORE else int(self.allocated[self.peak])

    @cached_property
    def peak_reserved_bytes(self) -> int:
        """The most that torch held from the device."""
        return max(self.reserved_after(BEFORE), int(self.reserved.max(initial=0)))

    @property
    def reserved_is_known(self) -> bool:
        """Whether the segments can hold what the history does: a file made or cut by hand may tell of too few."""
        return self.peak_bytes <= self.peak_reserved_bytes

    def reserved_after(self, event: int) -> int:
        """What torch held from the device after an event."""
        if event != BEFORE and len(self.reserved):
            return int(self.reserved[event])
        final = int(self.segments["total_bytes"].sum())
        if not len(self.reserved):
            return final
        first = self.events.row(0, named=True)
        sign = 1 if first["action"] in _TAKEN else -1 if first["action"] in _RETURNED else 0
        return int(self.reserved[0]) - sign * int(first["size_bytes"])

    def at_ns(self, event: int) -> int | None:
        """When an event happened, if that is known; BEFORE is as late as the first one."""
        return int(self.time_ns[max(event, 0)]) if self.timed else None

    def _held(self, until: Array) -> Array:
        count = self.events.height
        change = np.zeros(count + 1, np.int64)
        lives = self.lives
        # An event begins one block and ends one at most, so no place is added to twice.
        new = lives.start != BEFORE
        change[lives.start[new]] += lives.size[new]
        gone = (until < count) & (until != BEFORE)
        change[until[gone]] -= lives.size[gone]
        old = (lives.start == BEFORE) & (until != BEFORE)
        held: Array = int(lives.size[old].sum()) + np.cumsum(change[:count])
        return held


def devices(snapshot: Snapshot) -> list[DeviceMemory]:
    """The memory of each device that is in the snapshot, the largest peak first."""
    tables = (snapshot.segments, snapshot.events)
    numbers = sorted({int(number) for table in tables for number in table["device"].unique()})
    every = [device_memory(snapshot, number) for number in numbers]
    return sorted(every, key=lambda memory: (memory.device < 0, -memory.peak_bytes, memory.device))


def device_memory(snapshot: Snapshot, device: int) -> DeviceMemory:
    """The memory of one device."""
    events = snapshot.events.filter(pl.col("device") == device)
    segments = snapshot.segments.filter(pl.col("device") == device)
    blocks = snapshot.blocks.filter(pl.col("device") == device)
    pools = snapshot.segments["pool"].gather(blocks["segment"])
    streams = snapshot.segments["stream"].gather(blocks["segment"])
    blocks = blocks.with_columns(pool=pools, stream=streams)
    lives, again = matched(events, ("alloc",), ("free_requested",), ("free_completed",))
    listed = blocks.filter(pl.col("state") != "inactive")
    lives = _sized(lives, events, segments, listed, snapshot.settings)
    notes = [_again(again)] if again else []
    if segments.height:
        lives, astray = _with_final(lives, listed, events.height)
        notes += _said(astray)
    memory = DeviceMemory(device, events, lives, segments, blocks, tuple(notes))
    if memory.reserved_is_known:
        return memory
    outside = "the history holds more than the segments of the snapshot: what torch held from the device is not known"
    return replace(memory, notes=(*notes, outside))


def matched(
    events: pl.DataFrame, begun: Sequence[str], asked: Sequence[str], done: Sequence[str]
) -> tuple[Lives, int]:
    """Lifetimes by address: an event belongs to the last one that began at its address.

    Also how many began where one had not ended: their free was not recorded, and they end there.
    """
    action = events["action"].cast(pl.String)
    begins, asks, ends = (action.is_in(list(names)).to_numpy() for names in (begun, asked, done))
    rows = np.flatnonzero(begins | asks | ends)
    address = events["address"].fill_null(0).to_numpy()[rows]
    rows = rows[np.argsort(address, kind="stable")]
    address = events["address"].fill_null(0).to_numpy()[rows]
    first = np.ones(len(rows), bool)
    first[1:] = address[1:] != address[:-1]
    opens = begins[rows] | first
    life = np.cumsum(opens) - 1
    count, never = int(opens.sum()), events.height
    heads = rows[opens]
    again = np.full(count, never)
    same = ~first[opens][1:]
    again[:-1][same] = heads[1:][same]
    ended = _first_of(life, rows, ends[rows], count, never)
    let_go = np.minimum(_first_of(life, rows, asks[rows], count, never), ended)
    lost = (again < never) & (ended == never)
    ended, let_go = np.minimum(ended, again), np.minimum(let_go, again)
    start = np.where(begins[heads], heads, BEFORE)
    order = np.lexsort((heads, start))
    heads = heads[order]
    column = {name: events[name].to_numpy()[heads] for name in ("size_bytes", "stack", "stream")}
    known = start[order] != BEFORE
    lives = Lives(
        address=events["address"].fill_null(0).to_numpy()[heads],
        size=column["size_bytes"],
        requested=column["size_bytes"],
        start=start[order],
        asked=let_go[order],
        end=ended[order],
        # The stack of a free says nothing of who allocated.
        stack=np.where(known, column["stack"], -1),
        stream=column["stream"],
        pool=events["pool"].gather(heads).fill_null(COMMON_POOL),
    )
    return lives, int(lost.sum())


def _first_of(life: Array, rows: Array, wanted: Array, count: int, never: int) -> Array:
    """The first wanted row of each life, which lie in order; `never` where there is none."""
    found = np.full(count, never)
    found[life[wanted][::-1]] = rows[wanted][::-1]
    return found


def _with_final(lives: Lives, listed: pl.DataFrame, never: int) -> tuple[Lives, int]:
    """The lives with the blocks that the snapshot lists and the history does not; and how many it should list."""
    open_ = lives.end == never
    address = listed["address"].to_numpy()
    unknown = listed.filter(pl.Series(~np.isin(address, lives.address[open_]), dtype=pl.Boolean))
    astray = int((~np.isin(lives.address[open_], address)).sum())
    if unknown.is_empty():
        return lives, astray
    pending = (unknown["state"] == "pending").to_numpy()
    old = Lives(
        address=unknown["address"].to_numpy(),
        size=unknown["size_bytes"].to_numpy(),
        requested=unknown.select(pl.coalesce("requested_bytes", "size_bytes")).to_series().to_numpy(),
        start=np.full(len(pending), BEFORE),
        asked=np.where(pending, BEFORE, never),
        end=np.full(len(pending), never),
        stack=unknown["stack"].to_numpy(),
        stream=unknown["stream"].to_numpy(),
        pool=unknown["pool"],
    )
    names = ("address", "size", "requested", "start", "asked", "end", "stack", "stream")
    joined = {name: np.concatenate((getattr(old, name), getattr(lives, name))) for name in names}
    return Lives(**joined, pool=pl.concat((old.pool, lives.pool))), astray


def segment_lives(events: pl.DataFrame, segments: pl.DataFrame) -> pl.DataFrame:
    """What was taken from the driver in one piece, with the numbers of the events by which it came and went.

    What grows in place (expandable) has no such events: it is listed as it was at the end.
    """
    lives, _ = matched(events, ("segment_alloc",), (), ("segment_free",))
    from_history = pl.DataFrame(
        {
            "address": lives.address, "total_bytes": lives.size, "start": lives.start, "end": lives.end,
            "expandable": np.zeros(len(lives), bool), "pool": lives.pool,
        }
    )  # fmt: skip
    still = pl.Series(lives.address[lives.end == events.height], dtype=pl.UInt64)
    from_end = segments.filter(~pl.col("address").is_in(still.implode())).select(
        "address", "total_bytes", pl.lit(BEFORE, pl.Int64).alias("start"),
        pl.lit(events.height, pl.Int64).alias("end"), "expandable", "pool",
    )  # fmt: skip
    return pl.concat((from_history, from_end), how="vertical_relaxed")


def _sized(
    lives: Lives,
    events: pl.DataFrame,
    segments: pl.DataFrame,
    listed: pl.DataFrame,
    settings: Mapping[str, Any],
) -> Lives:
    """The lives with the sizes of whole blocks: the history tells what was asked for."""
    size = block_sizes.rounded(lives.requested, settings)
    held = segment_lives(events, segments)
    size = block_sizes.whole(size, lives.address, lives.start, lives.end, held, settings)
    final = dict(listed.select("address", "size_bytes").iter_rows())
    for row in np.flatnonzero(lives.end == events.height):
        size[row] = final.get(int(lives.address[row]), size[row])
    return replace(lives, size=size)


def _again(count: int) -> str:
    blocks = counted(count, "block")
    return f"{blocks} allocated where an earlier one had not been freed: that free is not in the history"


def _said(astray: int) -> list[str]:
    if not astray:
        return []
    return [
        f"{counted(astray, 'block')} of the history are not freed there and not in the snapshot either: "
        "the history does not reach to its end"
    ]
