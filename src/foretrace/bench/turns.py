"""Functions that take turns: each is timed for a while, then the next, and again, so that what drifts touches all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from math import ceil

from foretrace.bench.benchmark import OK
from foretrace.bench.clocks import Function
from foretrace.bench.measurement import Measurement
from foretrace.bench.memory import MIB, allocated_bytes, peak_of
from foretrace.bench.sweep import Case, Row, Trial, outcome
from foretrace.bench.timing import Timing
from foretrace.sourced import JUDGEMENT, Count

TURNS = Count(10, "turns of each function: fewer than six could never tell two apart", JUDGEMENT)

Opened = Callable[[Case], AbstractContextManager[Function]]


def rows_in_turns(cases: Sequence[Case], opened: Opened, timing: Timing) -> list[Row]:
    """The row of each case; `turns_ms` are the medians of its turns. What fails has its row, and no more turns."""
    turn = replace(
        timing,
        least_s=timing.least_s / TURNS,
        most_s=timing.most_s / TURNS,
        warmup_s=timing.warmup_s / TURNS,
        least_samples=ceil(timing.least_samples / TURNS),
    )
    with ExitStack() as stack:
        runs = [_Run(case, opened(case), timing, stack) for case in cases]
        for number in range(TURNS):
            for run in runs:
                # Before the first, as long a warm-up as where a function is timed alone.
                run.take(replace(turn, warmup_s=timing.warmup_s) if number == 0 else turn)
        return [run.row() for run in runs]


class _Run:
    """One function, ready to be called, and what its turns gave."""

    def __init__(
        self, case: Case, opened: AbstractContextManager[Function], timing: Timing, stack: ExitStack
    ) -> None:
        self._case = case
        self._trial = Trial(timing)
        self._left_s = timing.timeout_s
        self._taken: list[Measurement] = []
        self._function: Function = _nothing
        self._status, self._reason = outcome(lambda: self._open(opened, stack))

    def _open(self, opened: AbstractContextManager[Function], stack: ExitStack) -> None:
        device = self._trial.device
        before = allocated_bytes(device)
        self._function = stack.enter_context(opened)
        peak = peak_of(self._function, device)["peak_alloc_MiB"]
        # What other functions hold meanwhile is not this one's.
        self._trial.row["peak_alloc_MiB"] = None if peak is None or before is None else peak - before / MIB

    def take(self, timing: Timing) -> None:
        """One turn, unless an earlier one failed."""
        if self._status != OK:
            return
        began_s = time.monotonic()
        self._trial.allow(self._left_s)

        def measured() -> None:
            self._taken.append(self._trial.time(self._function, timing=timing))

        self._status, self._reason = outcome(measured)
        if self._left_s is not None:
            self._left_s -= time.monotonic() - began_s

    def row(self) -> Row:
        """All turns together."""
        row: Row = {**self._case, "status": self._status, "reason": self._reason}
        if self._status == OK:
            samples = tuple(sample for taken in self._taken for sample in taken.samples_ms)
            last = self._taken[-1]
            whole = Measurement(samples, last.calls, last.stopped, last.clock)
            row |= {**whole.columns(), "turns_ms": [taken.median_ms.point for taken in self._taken]}
        self._trial.end()
        return {**row, **self._trial.row}


def _nothing() -> None:
    return
