"""Whether the program had settled when its steps were timed.

It is timed before the passes and again after them. A profiler can leave the host slower, so a later time that is longer
proves nothing; one that is clearly shorter shows that the first was of a program that was still warming up. Waits for data
show nothing of the kind: they come in bursts, and workers fill their buffers while a pass is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrace.capture.timing import SPREAD, StepTimes

STEADY, FASTER, SLOWER, BEATEN, ONCE = "steady", "faster", "slower", "beaten", "once"
CALMER = "calmer"  # steps were shorter under the profiler than at first, and shorter again after it
WAITED = "waited"  # the waits for data differ, and nothing else
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
    times = f"steps took {_ms(first.median_ns)} without the profiler at first"
    if again is not None:
        times += f", {_ms(again.median_ns)} after the passes"
    if verdict in (BEATEN, CALMER, WAITED) and light_ns is not None:
        times += f", {_ms(light_ns)} under it"
    return Settling(verdict, f"{times}: {why}", light_ns)


def _verdict(first: StepTimes, again: StepTimes | None, light_ns: float | None) -> tuple[str, str]:
    if again is not None and fell(first, again):
        if only_waits(first, again):
            return WAITED, _waited(first)
        return FASTER, "the program was still warming up, and the later time is used"
    if light_ns is not None and beats(light_ns, first):
        if not doubtful(first, light_ns):
            return WAITED, _waited(first)
        if again is not None and again.median_ns < (1 - CLEARLY) * first.median_ns:
            return CALMER, "the machine was busier at first, and the later time is used"
        return BEATEN, "the machine was busy, steps differ, or it had not settled; the first time is used"
    if again is None:
        return ONCE, ""
    if again.low_ns > first.high_ns and again.median_ns > (1 + CLEARLY) * first.median_ns:
        if _buffered(first, again) and _work_ns(again) <= (1 + CLEARLY) * _work_ns(first):
            return WAITED, _waited(first)
        return SLOWER, "the profiler left the host slower, or the program slowed down; the first time is used"
    return STEADY, ""


def beats(light_ns: float, times: StepTimes) -> bool:
    """Whether a step was shorter under the profiler than without, which no steady step is."""
    return light_ns < (1 - SPREAD) * times.low_ns and light_ns < (1 - CLEARLY) * times.median_ns


def doubtful(times: StepTimes, light_ns: float | None) -> bool:
    """Whether steps were so much shorter under the profiler that their waits for data do not explain it."""
    if light_ns is None or not beats(light_ns, times):
        return False
    return not _buffered(times) or light_ns < (1 - CLEARLY) * _work_ns(times)


def fell(first: StepTimes, again: StepTimes) -> bool:
    """Whether steps became shorter by more than both timings' spreads."""
    if again.median_ns >= (1 - CLEARLY) * first.median_ns:
        return False
    widest = max(times.high_ns - times.low_ns for times in (first, again))
    if again.high_ns < first.low_ns and first.median_ns - again.median_ns > widest:
        return True
    # The first timing may hold both: then all of its blocks up to some point are longer than all that came after it.
    blocks = first.blocks_ns
    return any(min(blocks[:at]) > max(*blocks[at:], again.high_ns) for at in range(_LEAST_SLOW, len(blocks)))


def only_waits(first: StepTimes, again: StepTimes) -> bool:
    """Whether steps that became shorter only waited less for their data: what they do besides takes as long as before."""
    return _buffered(first, again) and _work_ns(again) >= (1 - CLEARLY) * _work_ns(first)


def _buffered(*timings: StepTimes) -> bool:
    """Whether waits may change while the program stays as it is: batches are made ahead by workers, or come in bursts."""
    loaders = [times.loader for times in timings if times.loader is not None]
    return any(loader["workers"] > 0 or 0 < loader["waiting_steps"] < loader["steps"] for loader in loaders)


def _work_ns(times: StepTimes) -> float:
    """The mean step without its waits for data."""
    if times.loader is None:
        return times.median_ns
    return float(times.loader["step_ns"] - times.loader["mean_ns"])


def _waited(first: StepTimes) -> str:
    wait_ns = first.loader["mean_ns"] if first.loader is not None else 0
    return f"waits for data differ ({_ms(wait_ns)} a step at first), and the first time is used"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms"
