"""The Watch: looks, once everything is recorded, whether the program's steps become clearly shorter.

A program may warm up for longer than a capture takes. Watching costs a look at the clock at each step's end.
"""

from __future__ import annotations

from foretrace.capture.settled import CLEARLY

_BLOCK_NS = 500_000_000  # a host that runs ahead of its device fills the queue in less
_BLOCKS = 3  # in a row


class Watch:
    """`step` says whether the last steps were all clearly shorter than the shortest that were timed."""

    def __init__(self, *, low_ns: float, began_ns: int, until_ns: float) -> None:
        self._short_ns = (1 - CLEARLY) * low_ns
        self._block_began_ns, self._until_ns = began_ns, until_ns
        self._in_block = self._shorter = 0

    def over(self, at_ns: int) -> bool:
        """Whether it has watched for long enough."""
        return at_ns > self._until_ns

    def step(self, at_ns: int) -> bool:
        """At a boundary."""
        self._in_block += 1
        elapsed = at_ns - self._block_began_ns
        if elapsed < _BLOCK_NS:
            return False
        self._shorter = self._shorter + 1 if elapsed / self._in_block < self._short_ns else 0
        self._in_block, self._block_began_ns = 0, at_ns
        return self._shorter >= _BLOCKS
