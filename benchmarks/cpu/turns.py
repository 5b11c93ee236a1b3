"""Variants of a program timed in turns: A B C A B C …, so that what else the machine does falls on all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Step = Callable[[], object]


def in_turns(
    steps: Mapping[str, Step], *, rounds: int, each: int, clock: Callable[[], float], warm: int = 3
) -> dict[str, float]:
    """For each variant, what a step takes: the tenth part of the way from the shortest to the longest.

    `clock` is time.process_time for a variant of one thread, which leaves out what other processes take; time.perf_counter
    where a step waits, as for worker processes.
    """
    for step in steps.values():
        for _ in range(warm):
            step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            for _ in range(each):
                began = clock()
                step()
                taken[name].append(clock() - began)
    return {name: sorted(times)[len(times) // 10] for name, times in taken.items()}


CPU_TIME, WALL = time.process_time, time.perf_counter
