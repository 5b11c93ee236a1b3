"""Measured samples: how well their median is known, and whether two sets of them differ.

Two sets differ if three things hold at once: a rank test says that chance rarely makes them so (Mann-Whitney, which asks
nothing of how they scatter), the interval of the ratio of their medians leaves out 1, and the ratio is far enough from 1 to
matter. They are the same if that interval lies close around 1. Anything else is inconclusive, and more samples may tell.

Samples of one set must not hang together: of steps that follow one another take the medians of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from foretrace.errors import UsageError
from foretrace.sourced import JUDGEMENT, Count, Share
from foretrace.statistics import Values, checked, mann_whitney, wins

Verdict = Literal["faster", "slower", "same", "inconclusive"]

CONFIDENCE = Share(0.99, "the repeated draws, within the interval of a median", JUDGEMENT)
CHANCE = Share(0.005, "pairs of equal sets that the rank test may take for different", JUDGEMENT)
MATTERS = Share(0.01, "the time, from which a difference is one", JUDGEMENT)
SAME = Share(
    0.02, "the time, within which the whole interval must lie for two sets to be the same", JUDGEMENT
)
DRAWS = Count(1_000, "times that samples are drawn again, for an interval", JUDGEMENT)
_SEED = 16  # so that the same samples always get the same interval


@dataclass(frozen=True)
class Interval:
    """A value and the range that it is known to."""

    point: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """What two sets of times say of each other."""

    verdict: Verdict
    speedup: Interval  # the median before, divided by that after
    chance: float  # how often equal sets would differ as much: the rank test's p, for both sides
    effect: (
        float  # Cliff's delta: 1 if every time before is longer than every one after, -1 the other way round
    )


def median(samples: Sequence[float]) -> Interval:
    """The median, with its bootstrap interval."""
    values = checked(samples)
    low, high = _ends(_medians(values, np.random.default_rng(_SEED)))
    return Interval(float(np.median(values)), low, high)


def compare(before: Sequence[float], after: Sequence[float]) -> Difference:
    """Whether what was timed became faster: two sets of times of the same work."""
    first, second = checked(before), checked(after)
    if min(first.min(), second.min()) <= 0:
        raise UsageError("times must be longer than nothing")
    random = np.random.default_rng(_SEED)
    low, high = _ends(_medians(first, random) / _medians(second, random))
    speedup = Interval(float(np.median(first) / np.median(second)), low, high)
    chance = mann_whitney(first, second)
    effect = 2 * wins(first, second) / (len(first) * len(second)) - 1
    return Difference(verdict(speedup, chance), speedup, chance, effect)


def verdict(speedup: Interval, chance: float) -> Verdict:
    """What a speed-up with its interval and the chance of it amount to: the one rule."""
    if chance < CHANCE and speedup.low > 1 and speedup.point >= 1 + MATTERS:
        return "faster"
    if chance < CHANCE and speedup.high < 1 and speedup.point <= 1 / (1 + MATTERS):
        return "slower"
    return "same" if speedup.low >= 1 / (1 + SAME) and speedup.high <= 1 + SAME else "inconclusive"


def _medians(values: Values, random: np.random.Generator) -> Values:
    drawn = values[random.integers(0, len(values), (int(DRAWS), len(values)))]
    return np.asarray(np.median(drawn, axis=1, overwrite_input=True))


def _ends(drawn: Values) -> tuple[float, float]:
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, (outside, 1 - outside))
    return float(low), float(high)
