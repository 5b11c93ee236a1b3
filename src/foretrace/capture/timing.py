"""The time of a step without a profiler, measured in blocks of steps with one synchronisation at each end.

A synchronisation per step would keep the host from running ahead of the device and so change what is measured.

The first step of a block finds the device idle and the launch queue empty. The host then runs freely, and the time until the
step's end is its own: what it takes for a step that the device otherwise hides. In a step that waits for the device, or fills
the queue, it is longer than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

BLOCK_S = 0.2  # long enough that filling and draining the device's queue hardly counts
AGREEING = 5  # so many blocks ...
_AGREEING_LONG = 3  # ... or so many where a single step is longer than this:
_LONG_STEP_S = 1.0
SPREAD = 0.02  # ... that differ by no more than this end the timing
_MOST_BLOCKS = 50
_LEAST_BLOCKS = 2  # before the time limit counts
_LONGER = 3  # times that limit, and blocks, where the loader comes in bursts: their mean takes longer to tell
_PACE_S = 0.15  # steps of so long are compared with what was measured
_AS_MEASURED = 0.015
_SLOWED_DOWN = (
    0.15  # a step that is this much off is of a host that the profiler slows down: waiting would not help
)


@dataclass(frozen=True)
class StepTimes:
    """What was measured: the median over blocks, and the lowest and highest of them."""

    median_ns: int
    low_ns: int
    high_ns: int
    steps: int
    blocks_ns: tuple[int, ...]
    stopped_because: str
    loader: Mapping[str, Any] | None = None  # how long the same steps waited for their data
    cores: Mapping[str, Any] | None = None  # who used the processor's cores meanwhile
    host_ns: int | None = (
        None  # the first step of a block, until the host is through with it, without waits for data
    )
    host_low_ns: int | None = None
    host_high_ns: int | None = None
    host_blocks: int = 0  # that tell it

    @property
    def wander(self) -> bool:
        """Whether blocks differ by more than steady ones do."""
        return self.high_ns - self.low_ns > SPREAD * self.median_ns

    def to_dict(self) -> dict[str, Any]:
        """As rank.json holds it."""
        own = {name: value for name, value in self.__dict__.items() if name != "loader"}
        return {**own, "blocks_ns": list(self.blocks_ns)}


class BlockTimer:
    """Times steps until the blocks agree; `step` says whether that is so."""

    def __init__(
        self,
        *,
        expected_ns: float,
        limit_s: float,
        synchronize: Callable[[], None],
        unsure: Callable[[], bool] = bool,
        waited_ns: Callable[[], int] = int,
    ) -> None:
        """`waited_ns` says, at a boundary, how long the step before it waited for data."""
        self._synchronize, self._unsure, self._waited_ns = synchronize, unsure, waited_ns
        self._limit_ns = limit_s * 1e9
        self._length = _block_length(expected_ns)
        self._began_ns = self._block_began_ns = 0
        self._in_block = -1
        self._blocks: list[tuple[int, int]] = []  # nanoseconds a step, steps
        self._hosts: list[int | None] = []  # for each block, the host's own time for its first step
        self._host_ns: int | None = None
        self.stopped_because = ""

    def step(self, now: Callable[[], int]) -> bool:
        """At a boundary: begins, goes on with, or ends a block."""
        self._in_block += 1
        if self._in_block == 0:
            self._synchronize()
            self._began_ns = self._block_began_ns = now()
            return False
        if self._in_block < self._length:
            if self._in_block == 1:
                self._host_ns = now() - self._block_began_ns - self._waited_ns()
            return False
        self._synchronize()
        self._end_block(now())
        return bool(self.stopped_because)

    def extend(self, limit_s: float) -> bool:
        """Goes on up to another limit; whether that is longer."""
        if limit_s * 1e9 <= self._limit_ns:
            return False
        self._limit_ns, self.stopped_because = limit_s * 1e9, ""
        return True

    def _end_block(self, at_ns: int) -> None:
        elapsed = at_ns - self._block_began_ns
        each = elapsed // self._in_block
        if elapsed >= BLOCK_S * 0.4e9 or self._length > 1 or not self._blocks:
            self._blocks.append((each, self._in_block))
            self._hosts.append(self._host_ns)
        if len(self._blocks) == 1 and elapsed < BLOCK_S * 0.4e9:
            self._blocks.clear()  # the estimate was far off: this block only corrected it
            self._hosts.clear()
        self._length = _block_length(each)
        self._block_began_ns, self._in_block, self._host_ns = at_ns, 0, None
        self.stopped_because = self._verdict(at_ns)

    def _verdict(self, at_ns: int) -> str:
        times = [block for block, _ in self._blocks]
        if not times:
            return ""
        wanted = _AGREEING_LONG if times[-1] > _LONG_STEP_S * 1e9 else AGREEING
        last = times[-wanted:]
        agree = len(last) == wanted and max(last) - min(last) <= SPREAD * median(last)
        if agree and not self._unsure():
            return f"the last {wanted} blocks agree within {SPREAD:.0%}"
        longer = _LONGER if self._unsure() else 1
        if len(times) >= _MOST_BLOCKS * longer:
            return f"{_MOST_BLOCKS * longer} blocks"
        if at_ns - self._began_ns > self._limit_ns * longer and len(times) >= _LEAST_BLOCKS:
            return f"the time limit of {self._limit_ns * longer / 1e9:g} s"
        return ""

    def result(self, because: str = "") -> StepTimes | None:
        """The times so far; `None` before the first block."""
        return summarise(self._blocks, self.stopped_because or because, self._hosts)


class Pace:
    """Whether steps take what was measured.

    A device's clock moves up and down within a second, and a window is shorter than that: it should open while steps
    take what they take at the median.
    """

    def __init__(self, *, step_ns: float, limit_s: float) -> None:
        self._step_ns, self._limit_ns = step_ns, limit_s * 1e9
        self._count = math.ceil(_PACE_S * 1e9 / step_ns)
        self._ends: list[int] = []

    def step(self, at_ns: int) -> bool:
        """At a boundary: whether the last steps were as measured, or waiting for that is in vain."""
        self._ends.append(at_ns)
        if len(self._ends) <= self._count:
            return False
        off = abs((at_ns - self._ends[-1 - self._count]) / self._count / self._step_ns - 1)
        return off <= _AS_MEASURED or off >= _SLOWED_DOWN or at_ns - self._ends[0] > self._limit_ns


def unlike(step_ns: float, measured_ns: float) -> bool:
    """Whether a step is off what was measured as far as a device's clock moves, and not as a slowed host is."""
    return SPREAD < abs(step_ns / measured_ns - 1) < _SLOWED_DOWN


def summarise(
    blocks: Sequence[tuple[int, int]], because: str, hosts: Sequence[int | None] = ()
) -> StepTimes | None:
    """The median of the blocks; where the last ones agree, of those: the earlier ones were not settled.

    `hosts` are, for each block, the host's own time for its first step; `None` where it was not seen apart.
    """
    if not blocks:
        return None
    times = [block for block, _ in blocks]
    wanted = _AGREEING_LONG if times[-1] > _LONG_STEP_S * 1e9 else AGREEING
    last = times[-wanted:]
    agree = len(last) == wanted and max(last) - min(last) <= SPREAD * median(last)
    used = last if agree else times
    own = [host for host in hosts[-len(used) :] if host is not None and host > 0]
    return StepTimes(
        median_ns=int(median(used)),
        low_ns=min(used),
        high_ns=max(used),
        steps=sum(count for _, count in blocks),
        blocks_ns=tuple(times),
        stopped_because=because,
        host_ns=int(median(own)) if own else None,
        host_low_ns=min(own, default=None),
        host_high_ns=max(own, default=None),
        host_blocks=len(own),
    )


def _block_length(step_ns: float) -> int:
    return max(1, math.ceil(BLOCK_S * 1e9 / max(step_ns, 1_000)))
