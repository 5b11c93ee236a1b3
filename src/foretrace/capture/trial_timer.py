"""The TrialTimer: lets steps by until they are alike, then times a fixed number of them in blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from statistics import fmean
from typing import Any

from foretrace.capture.trial_options import TrialOptions

_ALIKE = 1.5  # steps that take this much longer than those after them belong to the program's start
_RECENT = 4  # steps whose mean is compared with that of as many before: workers bring batches in bursts
_LIMIT = 15  # times settle_s: some programs never settle
_START_STEPS = 5  # that count as the start, whose time is compared between variants
_MOST_AHEAD = 400  # batches that are used up before timing: more would take too long


class TrialTimer:
    """`step` at each boundary says whether all was timed."""

    def __init__(
        self,
        options: TrialOptions,
        *,
        ahead: Callable[[], int],
        synchronize: Callable[[], None],
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._options, self._ahead, self._synchronize, self._now = options, ahead, synchronize, now
        self.forget()

    def forget(self) -> None:
        """Steps are of another kind from here on."""
        self.timing = False
        self.blocks_ns: list[float] = []  # nanoseconds a step
        self.block_steps = self._options.block_steps or 0
        self._ends: list[int] = []
        self._least, self._least_block = self._options.settle_steps, 1
        self._block_began_ns = self._in_block = 0
        self._stopped_because = ""

    def step(self) -> bool:
        """At a boundary."""
        if self.timing:
            return self._in_blocks()
        now = self._now()
        self._ends.append(now)
        if len(self._ends) == _RECENT + 1:
            ahead = self._ahead()
            self._least = max(self._least, min(ahead, _MOST_AHEAD))
            self._least_block = max(
                1, ahead // 2
            )  # workers bring batches in turn: a block has one of each at least
        if not self._settled(now):
            return False
        if not self.block_steps:
            step_ns = fmean(self._steps_ns()[-2 * _RECENT :])
            self.block_steps = max(1, ceil(self._options.block_s * 1e9 / max(step_ns, 1_000)))
        self.block_steps = max(self.block_steps, self._least_block)
        self._synchronize()
        self.timing, self._block_began_ns = True, self._now()
        return False

    def _in_blocks(self) -> bool:
        self._in_block += 1
        if self._in_block < self.block_steps:
            return False
        self._synchronize()
        now = self._now()
        self.blocks_ns.append((now - self._block_began_ns) / self._in_block)
        self._block_began_ns, self._in_block = now, 0
        return len(self.blocks_ns) >= self._options.blocks

    def _settled(self, now: int) -> bool:
        steps_ns = self._steps_ns()
        if len(steps_ns) < 2:
            return False
        elapsed_s = (now - self._ends[0]) / 1e9
        if elapsed_s > _LIMIT * self._options.settle_s:
            return True
        let_by = self._options.let_by
        if len(steps_ns) < max(self._least, let_by or 0):
            return False
        if let_by is None and elapsed_s < self._options.settle_s:
            return False
        count = min(_RECENT, len(steps_ns) // 2)
        before, recent = sum(steps_ns[-2 * count : -count]), sum(steps_ns[-count:])
        return max(before, recent) <= _ALIKE * min(before, recent)

    def _steps_ns(self) -> list[int]:
        return [after - before for before, after in zip(self._ends, self._ends[1:], strict=False)]

    def short(self) -> bool:
        """The program ended: whether what was seen tells what a step takes."""
        if self.blocks_ns:
            self._stopped_because = f"the program ended after {len(self.blocks_ns)} blocks"
            return True
        later = self._steps_ns()
        later = later[len(later) // 2 :]
        if len(later) < 2:
            return False
        self.blocks_ns, self.block_steps = [float(step_ns) for step_ns in later], 1
        self._stopped_because = "the program ended before it settled: its last steps are taken one by one"
        return True

    def start_s(self, since_ns: int) -> float | None:
        """From the first call of the program's module to the end of its first steps."""
        if not self._ends:
            return None
        return (self._ends[min(_START_STEPS, len(self._ends)) - 1] - since_ns) / 1e9

    def to_dict(self) -> dict[str, Any]:
        """As the result file holds it."""
        return {
            "blocks_ns": self.blocks_ns,
            "block_steps": self.block_steps,
            "let_by": len(self._steps_ns()),
            "stopped_because": self._stopped_because or "all blocks were timed",
        }
