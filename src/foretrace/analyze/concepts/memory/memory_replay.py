"""The allocation curve replayed with changes: what its peak would be if blocks were smaller, or not there for a while.

A change frees only what it takes from the curve's new peak: the curve is changed as a whole, with all changes together, and
its maximum is taken then. Savings are never added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.memory import memory_curve
from foretrace.analyze.concepts.memory.memory_curve import Curve
from foretrace.errors import MissingDataError
from foretrace.trace import Trace, once_per_trace

Times = NDArray[np.int64]
_FIRST, _LAST = np.iinfo(np.int64).min // 4, np.iinfo(np.int64).max // 4


@dataclass(frozen=True)
class Pieces:
    """Stretches of blocks' time: the block's row, from when, until when."""

    rows: Times
    start_ns: Times
    end_ns: Times


def pieces(rows: Iterable[int] = (), start_ns: Iterable[int] = (), end_ns: Iterable[int] = ()) -> Pieces:
    """Stretches of the blocks of these rows."""
    listed = [np.fromiter(values, np.int64) for values in (rows, start_ns, end_ns)]
    return Pieces(*listed)


@dataclass(frozen=True)
class Factors:
    """Sizes of blocks: the rows, none of them twice, and the factor of each."""

    rows: Times = field(default_factory=lambda: np.zeros(0, np.int64))
    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.rows)

    def but(self, others: Factors) -> Factors:
        """These, with the others in place of those of the same rows."""
        kept = ~np.isin(self.rows, others.rows)
        return Factors(
            np.concatenate((self.rows[kept], others.rows)), np.concatenate((self.values[kept], others.values))
        )


def factors(rows: Times, value: float) -> Factors:
    """One factor for all of these blocks, which may be listed twice."""
    rows = np.unique(rows)
    return Factors(rows, np.full(len(rows), value, np.float64))


@dataclass(frozen=True)
class Stretch:
    """Bytes that no listed block holds, and that would be fewer, or more, for a while."""

    start_ns: int
    end_ns: int
    size_bytes: int  # less than 0 where they go


@dataclass(frozen=True)
class MemoryChange:
    """What a change does to the curve."""

    says: str
    absent: Pieces = field(default_factory=pieces)  # the blocks are not there in this time
    again: Pieces = field(default_factory=pieces)  # they are there once more
    # A block that two changes make smaller is as small as the smaller one makes it.
    factors: Factors = field(default_factory=Factors)
    # Added at all times to what is not listed block by block, by what it is; less than 0 where it goes. Of two changes to one
    # thing the one that leaves less counts.
    always_bytes: Mapping[str, int] = field(default_factory=dict)
    stretches: tuple[Stretch, ...] = ()
    held_bytes: int = 0  # that the allocator holds and nothing uses, so that no curve of blocks has them; less than 0: fewer


@dataclass(frozen=True)
class Memory:
    """One device's blocks and its curve, ready to be replayed."""

    curve: Curve
    blocks: pl.DataFrame  # rows of `allocations`, in order of start, with `row`
    start_ns: Times  # of blocks; long ago where they are older than the recording
    end_ns: Times  # far ahead where they are not freed
    size_bytes: Times
    at_ns: Times  # of the curve's points
    total_bytes: Times  # the curve; on the CPU since the recording began

    @property
    def peak_bytes(self) -> int:
        """The highest point of the recorded curve."""
        return int(self.total_bytes.max(initial=0))

    @property
    def peak_at_ns(self) -> int:
        """When that was."""
        return int(self.at_ns[int(np.argmax(self.total_bytes))])

    def live_at(self, at_ns: int) -> Times:
        """The rows of the blocks that are live then."""
        return np.flatnonzero((self.start_ns <= at_ns) & (self.end_ns > at_ns))

    def within(self, stretches: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
        """For each block, whether it is allocated in one of these stretches of time."""
        bounds = np.searchsorted(self.start_ns, np.array(stretches, np.int64).reshape(-1, 2))
        change = np.zeros(len(self.start_ns) + 1, np.int64)
        # A stretch that ends before it begins holds nothing.
        np.add.at(change, bounds[:, 0], 1)
        np.add.at(change, np.maximum(bounds[:, 1], bounds[:, 0]), -1)
        inside: NDArray[np.bool_] = np.cumsum(change)[:-1] > 0
        return inside

    def peak_with(self, changes: Sequence[MemoryChange]) -> int:
        """The highest point of the curve with all of the changes made together."""
        at, bytes_ = self._events(changes)
        order = np.argsort(at, kind="stable")
        at, running = at[order], np.cumsum(bytes_[order])
        # Behind the last event of the same moment: what goes then is gone.
        last = np.append(at[1:] != at[:-1], True)[: len(at)]
        at, running = at[last], running[last]
        first = np.searchsorted(
            self.at_ns, at
        )  # of the points that the event counts for, up to the next event's
        highest = float(self.total_bytes[: first[0] if len(first) else None].max(initial=0))
        until = np.append(first[1:], len(self.at_ns))[: len(first)]
        some = first < until
        if some.any():
            points = np.maximum.reduceat(self.total_bytes, first[some])
            highest = max(highest, float((points + running[some]).max()))
        if len(at):
            under = self.total_bytes[np.maximum(np.searchsorted(self.at_ns, at, side="right") - 1, 0)]
            highest = max(highest, float((under + running).max()))
        return max(round(highest + _always(changes)), 0)

    def freed_by(self, changes: Sequence[MemoryChange]) -> int:
        """How much less of the device's memory would be needed with all of the changes made together."""
        return self.peak_bytes - self.peak_with(changes) - sum(change.held_bytes for change in changes)

    def _events(self, changes: Sequence[MemoryChange]) -> tuple[Times, NDArray[np.float64]]:
        """When the curve would leave the recorded one, and by how many bytes."""
        less, more = np.ones(len(self.size_bytes)), np.ones(len(self.size_bytes))
        for change in changes:
            rows, given = change.factors.rows, change.factors.values
            less[rows] = np.minimum(less[rows], given)
            more[rows] *= np.maximum(given, 1.0)
        factor = less * more
        sized = np.flatnonzero(factor != 1.0)
        size = self.size_bytes * factor
        absent = self._merged([change.absent for change in changes])
        again = [change.again for change in changes]
        stretches = [stretch for change in changes for stretch in change.stretches]
        starts = [self.start_ns[sized], absent.start_ns, *(there.start_ns for there in again)]
        ends = [self.end_ns[sized], absent.end_ns, *(there.end_ns for there in again)]
        taken = [(size - self.size_bytes)[sized], -size[absent.rows], *(size[there.rows] for there in again)]
        starts.append(np.array([stretch.start_ns for stretch in stretches], np.int64))
        ends.append(np.array([stretch.end_ns for stretch in stretches], np.int64))
        taken.append(np.array([stretch.size_bytes for stretch in stretches], np.float64))
        begin, end, bytes_ = np.concatenate(starts), np.concatenate(ends), np.concatenate(taken)
        return np.concatenate((begin, end)), np.concatenate((bytes_, -bytes_))

    def _merged(self, absent: Sequence[Pieces]) -> Pieces:
        """The stretches within the blocks' lives; what two changes take of one block goes once."""
        rows = np.concatenate([gone.rows for gone in absent]) if absent else np.zeros(0, np.int64)
        if not len(rows):
            return pieces()
        start = np.maximum(np.concatenate([gone.start_ns for gone in absent]), self.start_ns[rows])
        end = np.minimum(np.concatenate([gone.end_ns for gone in absent]), self.end_ns[rows])
        there = end > start
        order = np.lexsort((start[there], rows[there]))
        rows, start, end = (values[there][order] for values in (rows, start, end))
        if not ((rows[1:] == rows[:-1]) & (start[1:] <= end[:-1])).any():
            return Pieces(rows, start, end)
        kept: list[list[int]] = []
        for row, begin, until in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
            if kept and kept[-1][0] == row and begin <= kept[-1][2]:
                kept[-1][2] = max(kept[-1][2], until)
            else:
                kept.append([row, begin, until])
        return pieces(*zip(*kept, strict=True)) if kept else pieces()


def _always(changes: Sequence[MemoryChange]) -> int:
    """The bytes added at all times by all of the changes."""
    added: dict[str, int] = {}
    for change in changes:
        for what, size in change.always_bytes.items():
            added[what] = min(added.get(what, size), size)
    return sum(added.values())


@once_per_trace
def find(trace: Trace) -> Memory:
    """The memory of the device with the largest peak; MissingDataError where blocks cannot be followed."""
    if trace.allocations.is_empty():
        raise MissingDataError(
            f"{trace.path.name}: no memory events recorded; record with profile_memory=True"
        )
    curve = memory_curve.curves(trace)[0]
    if not curve.addressed:
        raise MissingDataError(
            f"{trace.path.name}: addresses of memory were not recorded, so no block can be followed"
        )
    blocks = memory_curve.blocks_of(trace, curve.device)
    if not blocks["start_ns"].is_sorted():
        blocks = blocks.sort("start_ns", nulls_last=False, maintain_order=True)
    blocks = blocks.with_row_index("row")
    points = curve.points
    if not points["at_ns"].is_sorted():
        points = points.sort("at_ns", maintain_order=True)
    total = points["allocated_bytes"].to_numpy().astype(np.int64)
    if curve.device == "cpu" and curve.absolute:
        # Its allocator goes on counting from one profiler to the next in the same process.
        first = memory_curve.changes(blocks)["bytes"]
        total = total - (int(total[0]) - (int(first[0]) if len(first) else 0))
    return Memory(
        curve=curve,
        blocks=blocks,
        start_ns=blocks["start_ns"].fill_null(_FIRST).to_numpy(),
        end_ns=blocks["end_ns"].fill_null(_LAST).to_numpy(),
        size_bytes=blocks["size_bytes"].to_numpy(),
        at_ns=points["at_ns"].to_numpy(),
        total_bytes=total,
    )
