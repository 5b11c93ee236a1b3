"""Whether the program had settled when its steps were timed.

It is timed before the passes and again after them. A profiler can leave the host slower, so a later time that is longer
proves nothing; one that is clearly shorter shows that the first was of a program that was still warming up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrace.capture.timing import SPREAD, StepTimes

STEADY, FASTER, SLOWER, BEATEN, ONCE = "steady", "faster", "slower", "beaten", "once"
CLEARLY = 0.10  # a change of the step that is acted upon; hosts differ by a few percent from second to second
_LEAST_SLOW = 2  # blocks of a timing that began before the program settled


@dataclass(frozen=True)
class Settling:
    """What two timings say of each other: a word, and a sentence where there is something to say."""

    verdict: str
    says: str = ""
    light_ns: float | None = None  # what a step took in the light pass then
    light_settled: bool = True  # whether the light pass is of the program as it is now

    def to_dict(self) -> dict[str, Any]:
        """As rank.json holds it."""
        return {**self.__dict__}


def compare(first: StepTimes, again: StepTimes | None, *, light_ns: float | None) -> Settling:
    """What the second timing says of the first, and the light pass of both."""
    verdict, why = _verdict(first, again, light_ns)
    if not why:
        return Settling(verdict, light_ns=light_ns)
    times = f"a step took {_ms(first.median_ns)} when it was timed first"
    if verdict == BEATEN and light_ns is not None:
        times += f", {_ms(light_ns)} under the profiler"
    if again is not None:
        times += f", {_ms(again.median_ns)} after the passes"
    return Settling(verdict, f"{times}: {why}", light_ns)


def _verdict(first: StepTimes, again: StepTimes | None, light_ns: float | None) -> tuple[str, str]:
    if again is not None and fell(first, again):
        return FASTER, "the program was still warming up, and the last time is used"
    if light_ns is not None and beats(light_ns, first):
        return BEATEN, "its steps differ, or it was timed before it had settled"
    if again is None:
        return ONCE, ""
    if again.low_ns > first.high_ns and again.median_ns > (1 + CLEARLY) * first.median_ns:
        return SLOWER, "the profiler left the host slower, or the program slowed down; the first time is used"
    return STEADY, ""


def beats(light_ns: float, times: StepTimes) -> bool:
    """Whether a step was shorter under the profiler than without, which no steady step is."""
    return light_ns < (1 - SPREAD) * times.low_ns and light_ns < (1 - CLEARLY) * times.median_ns


def fell(first: StepTimes, again: StepTimes) -> bool:
    """Whether steps became shorter by more than both timings' spreads."""
    if again.median_ns >= (1 - CLEARLY) * first.median_ns:
        return False
    if again.high_ns < first.low_ns:
        return True
    # The first timing may hold both: then all of its blocks up to some point are longer than all that came after it.
    blocks = first.blocks_ns
    return any(min(blocks[:at]) > max(*blocks[at:], again.high_ns) for at in range(_LEAST_SLOW, len(blocks)))


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms"
