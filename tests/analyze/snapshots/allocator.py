"""A small allocator by torch's rules, which counts for itself: the other source for what a history is said to show.

From c10/cuda/CUDACachingAllocator.cpp: sizes in multiples of 512, blocks up to 1 MiB in segments of 2 MiB, up to 10 MiB in such of
20 MiB, larger ones in segments of whole 2 MiB; the smallest block that fits, split where more than 1 MiB is left of a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.analyze.snapshots.histories import MIB, Frame, History


class OutOfMemoryError(Exception):
    """Raised after the event was recorded."""


@dataclass
class Piece:
    address: int
    size: int
    used: bool = False


@dataclass
class Pool:
    pieces: list[Piece] = field(default_factory=list)  # in order
    small: bool = False


class Allocator(History):
    """Takes requests; `allocated` and `peak` are what torch would count."""

    def __init__(self, capacity: int = 1 << 50) -> None:
        super().__init__()
        self.capacity, self.reserved, self.allocated = capacity, 0, 0
        self.peak = self.reserved_peak = 0
        self.levels: list[tuple[int, int, int]] = []  # number of the event, allocated, reserved
        self._pools: dict[int, Pool] = {}

    def malloc(self, size: int, frames: Sequence[Frame] = ()) -> int:
        rounded = max(-(-size // 512) * 512, 512)
        small = rounded <= MIB
        start, piece = self._fitting(rounded, small) or self._new_segment(rounded, small, size, frames)
        pool = self._pools[start]
        left = piece.size - rounded
        if left >= 512 if small else left > MIB:
            pool.pieces.insert(pool.pieces.index(piece) + 1, Piece(piece.address + rounded, left))
            piece.size = rounded
        piece.used = True
        self.alloc(size, frames, address=piece.address, whole=piece.size)
        self.allocated += piece.size
        self.peak = max(self.peak, self.allocated)
        self._note()
        return piece.address

    def release(self, address: int, frames: Sequence[Frame] = ()) -> None:
        pool = next(pool for pool in self._pools.values() if any(p.address == address for p in pool.pieces))
        place = next(n for n, piece in enumerate(pool.pieces) if piece.address == address)
        pool.pieces[place].used = False
        self.allocated -= pool.pieces[place].size
        self.free(address, frames)
        for low in (place, place - 1):  # with the one above, then with the one below
            pair = pool.pieces[low : low + 2]
            if low >= 0 and len(pair) == 2 and not any(piece.used for piece in pair):
                pair[0].size += pair[1].size
                del pool.pieces[low + 1]
        self._note()

    def flush(self, frames: Sequence[Frame] = ()) -> None:
        for start in [s for s, pool in self._pools.items() if not any(piece.used for piece in pool.pieces)]:
            del self._pools[start]
            self.reserved -= self.segments[start][0]
            self.segment_free(start, frames=frames)
            self._note()

    @property
    def largest_hole(self) -> int:
        return max((p.size for pool in self._pools.values() for p in pool.pieces if not p.used), default=0)

    @property
    def beside_blocks(self) -> int:
        shared = (pool for pool in self._pools.values() if any(piece.used for piece in pool.pieces))
        return sum(piece.size for pool in shared for piece in pool.pieces if not piece.used)

    def _note(self) -> None:
        self.levels.append((len(self.rows) - 1, self.allocated, self.reserved))

    def _fitting(self, size: int, small: bool) -> tuple[int, Piece] | None:
        fitting = [
            (piece.size, piece.address, start, piece)
            for start, pool in self._pools.items() if pool.small == small
            for piece in pool.pieces if not piece.used and piece.size >= size
        ]  # fmt: skip
        return min(fitting, key=lambda found: found[:2])[2:] if fitting else None

    def _new_segment(self, size: int, small: bool, asked: int, frames: Sequence[Frame]) -> tuple[int, Piece]:
        whole = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved + whole > self.capacity:
            self.flush(frames)
        if self.reserved + whole > self.capacity:
            self.oom(asked, self.capacity - self.reserved, frames)
            raise OutOfMemoryError
        self.reserved += whole
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        start = self.segment(whole, frames=frames)
        piece = Piece(start, whole)
        self._pools[start] = Pool([piece], small)
        self._note()
        return start, piece
