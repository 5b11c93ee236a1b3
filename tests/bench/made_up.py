"""A made-up clock: calls take what a generator says, and no real time passes."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.bench.clocks import Function


class MadeUpClock:
    """Each call takes as many milliseconds as `next_ms` says; the clock reads the sum."""

    says = "made up"
    most_together = 16

    def __init__(self, next_ms: Callable[[], float], *, least_sample_ms: float = 0.0) -> None:
        self.next_ms = next_ms
        self.least_sample_ms = least_sample_ms
        self.spent_ms = 0.0
        self.calls = 0

    def samples(self, function: Function, *, calls: int, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            times = []
            for _ in range(calls):
                function()
                times.append(self.next_ms())
            self.calls += calls
            self.spent_ms += sum(times)
            taken.append(sum(times) / calls)
        return taken

    def now_s(self) -> float:
        return self.spent_ms / 1e3

    def settle(self) -> None:
        return
