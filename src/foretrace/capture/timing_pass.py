"""The TimingPass: the program's steps timed again, without a profiler, after the passes that had one."""

from __future__ import annotations

import time
from pathlib import Path

from foretrace.capture.loader_waits import LoaderWaits
from foretrace.capture.options import CaptureOptions
from foretrace.capture.passes import Pass, synchronize
from foretrace.capture.plan import AGAIN_S, PlannedPass
from foretrace.capture.settled import CLEARLY, doubtful, only_waits
from foretrace.capture.timing import BlockTimer, StepTimes, summarise

_COUNTED_BLOCKS = 5


class TimingPass(Pass):
    """What a step takes now; no file stays.

    By time, and longer than planned only where steps have become shorter and do not yet agree. Waits for data that come
    in bursts are no reason: what they take was timed first. Ranks, which must all take as many steps as the others, time
    those that were planned.
    """

    def __init__(
        self,
        planned: PlannedPass,
        path: Path,
        options: CaptureOptions,
        *,
        first: StepTimes,
        light_ns: float | None,
        counted: bool,
    ) -> None:
        super().__init__(planned, path)
        self.times: StepTimes | None = None
        self._first, self._limit_s, self._counted = first, options.time_s, counted
        brief_s = self._limit_s if doubtful(first, light_ns) else min(AGAIN_S, self._limit_s)
        self._waits = LoaderWaits()
        self._prolonged = False
        self._timer = BlockTimer(
            expected_ns=first.median_ns,
            limit_s=brief_s,
            synchronize=synchronize,
            unsure=lambda: self._prolonged and self._waits.uneven,
            waited_ns=lambda: self._waits.last_ns,
        )
        self._blocks: list[tuple[int, int]] = []
        self._hosts: list[int | None] = []  # for each block, the host's own time for its first step
        self._host_ns: int | None = None
        self._in_block, self._block_began_ns = 0, 0

    def _open(self, count: int) -> None:
        self._waits.begin()
        self._block_began_ns = time.perf_counter_ns()
        self._timer.step(time.perf_counter_ns)

    def step(self, count: int) -> bool:
        self.steps_recorded += 1
        self._waits.step()
        if self._counted:
            return self._count_step()
        if not self._timer.step(time.perf_counter_ns):
            return False
        return not self._still_falling()

    def _count_step(self) -> bool:
        self._in_block += 1
        over = self.steps_recorded >= self.planned.active
        if over or self._in_block >= max(1, self.planned.active // _COUNTED_BLOCKS):
            synchronize()
            now = time.perf_counter_ns()
            self._blocks.append(((now - self._block_began_ns) // self._in_block, self._in_block))
            self._hosts.append(self._host_ns)
            self._in_block, self._block_began_ns, self._host_ns = 0, now, None
        elif self._in_block == 1:
            self._host_ns = time.perf_counter_ns() - self._block_began_ns - self._waits.last_ns
        return over

    def _still_falling(self) -> bool:
        """Whether the last block is clearly shorter than what was timed first, and what it takes is not sure yet."""
        so_far = self._waits.told(self._timer.result())
        if so_far is None or not (so_far.wander or self._waits.uneven):
            return False
        falling = so_far.blocks_ns[-1] < (1 - CLEARLY) * self._first.median_ns
        if falling and not only_waits(self._first, so_far):
            self._prolonged = self._timer.extend(self._limit_s)
            return self._prolonged
        return False

    def result(self, because: str) -> StepTimes | None:
        """The times so far."""
        if self._counted:
            times = summarise(self._blocks, because, self._hosts)
        else:
            times = self._timer.result(because)
        return self._core_use.told(self._waits.told(times))

    def _close(self) -> bool:
        self.times = self.result("the steps that were planned")
        self._waits.end()
        return False

    def _abandon(self) -> None:
        self._waits.end()
