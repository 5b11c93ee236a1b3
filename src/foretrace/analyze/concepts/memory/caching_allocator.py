"""torch's caching allocator for CUDA, as it hands out blocks: what it holds, and when it runs out.

Its rules, from CUDACachingAllocator.cpp with default settings: sizes are rounded up to 512 bytes. Up to 1 MiB come from segments of
2 MiB, less than 10 MiB from segments of 20 MiB, larger ones from segments of their own, in steps of 2 MiB. The smallest free block
that is large enough is taken, and split where the rest is worth keeping. Neighbours that are free become one. Where the device has no
more to give, segments that are wholly free go back to it, and it is asked once more.
"""

from __future__ import annotations

from bisect import bisect_left, insort

_MIB = 2**20
_ROUND, _SMALL, _LARGE_FROM, _STEP = 512, _MIB, 10 * _MIB, 2 * _MIB
_SMALL_SEGMENT, _LARGE_SEGMENT = 2 * _MIB, 20 * _MIB


class NoRoomError(Exception):
    """The device has no room for a request, whatever the allocator gives back."""


class _Block:
    """A part of a segment, with its neighbours there."""

    __slots__ = ("after", "before", "free", "number", "size", "small")

    def __init__(self, size: int, number: int, *, small: bool) -> None:
        self.size, self.number, self.small = size, number, small
        self.before: _Block | None = None
        self.after: _Block | None = None
        self.free = False


class CachingAllocator:
    """What the allocator of one device does with requests, in order."""

    def __init__(self, most_bytes: float) -> None:
        self.most_bytes = most_bytes
        self.reserved_bytes = self.peak_bytes = 0
        self._free: dict[bool, list[tuple[int, int]]] = {False: [], True: []}  # size and number, by `small`
        self._blocks: dict[int, _Block] = {}
        self._made = 0

    def allocate(self, size: int) -> int:
        """The number of a block of at least this size; NoRoomError where there is none."""
        size = max(-(-size // _ROUND) * _ROUND, _ROUND)
        small = size <= _SMALL
        listed = self._free[small]
        place = bisect_left(listed, (size, -1))
        block = self._blocks[listed[place][1]] if place < len(listed) else self._segment(size, small=small)
        self._unlist(block)
        rest = block.size - size
        if rest >= _ROUND if small else rest > _SMALL:
            self._split(block, size)
        return block.number

    def give_back(self, number: int) -> None:
        """The block is free from now on."""
        block = self._blocks[number]
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                self._unlist(neighbour)
                self._join(block, neighbour)
        self._list(block)

    def _segment(self, size: int, *, small: bool) -> _Block:
        """New memory of the device."""
        if small:
            segment = _SMALL_SEGMENT
        else:
            segment = _LARGE_SEGMENT if size < _LARGE_FROM else -(-size // _STEP) * _STEP
        if self.reserved_bytes + segment > self.most_bytes:
            self._release()
        if self.reserved_bytes + segment > self.most_bytes:
            raise NoRoomError
        self.reserved_bytes += segment
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)
        block = self._new(segment, small=small)
        self._list(block)
        return block

    def _release(self) -> None:
        """Segments that are wholly free go back to the device."""
        for listed in self._free.values():
            for _, number in list(listed):
                block = self._blocks[number]
                if block.before is None and block.after is None:
                    self._unlist(block)
                    self.reserved_bytes -= block.size
                    del self._blocks[number]

    def _split(self, block: _Block, size: int) -> None:
        rest = self._new(block.size - size, small=block.small)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._list(rest)

    def _join(self, block: _Block, neighbour: _Block) -> None:
        """The neighbour becomes a part of the block."""
        block.size += neighbour.size
        if neighbour is block.before:
            block.before = neighbour.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = neighbour.after
            if block.after is not None:
                block.after.before = block
        del self._blocks[neighbour.number]

    def _new(self, size: int, *, small: bool) -> _Block:
        block = _Block(size, self._made, small=small)
        self._blocks[self._made] = block
        self._made += 1
        return block

    def _list(self, block: _Block) -> None:
        block.free = True
        insort(self._free[block.small], (block.size, block.number))

    def _unlist(self, block: _Block) -> None:
        block.free = False
        listed = self._free[block.small]
        del listed[bisect_left(listed, (block.size, block.number))]
