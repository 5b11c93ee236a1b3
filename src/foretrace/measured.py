"""Measured samples: how well their median is known, and whether two sets of them differ.

Two sets differ if three things hold at once: a rank test says that chance rarely makes them so (Mann-Whitney, which asks
nothing of how they scatter), the interval of the ratio of their medians leaves out 1, and the ratio is far enough from 1 to
matter. They are the same if that interval lies close around 1. Anything else is inconclusive, and more samples may tell.

Samples of one set must not hang together: of steps that follow one another take the medians of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, erfc, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import UsageError
from foretrace.sourced import JUDGEMENT, Count, Share

Verdict = Literal["faster", "slower", "same", "inconclusive"]
Values = NDArray[np.float64]

CONFIDENCE = Share(0.99, "the repeated draws, within the interval of a median", JUDGEMENT)
CHANCE = Share(0.005, "pairs of equal sets that the rank test may take for different", JUDGEMENT)
MATTERS = Share(0.01, "the time, from which a difference is one", JUDGEMENT)
SAME = Share(
    0.02, "the time, within which the whole interval must lie for two sets to be the same", JUDGEMENT
)
DRAWS = Count(1_000, "times that samples are drawn again, for an interval", JUDGEMENT)
_EXACT = Count(40, "samples in both sets together, up to which the rank test counts every order", JUDGEMENT)
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
    values = _checked(samples)
    low, high = _ends(_medians(values, np.random.default_rng(_SEED)))
    return Interval(float(np.median(values)), low, high)


def compare(before: Sequence[float], after: Sequence[float]) -> Difference:
    """Whether what was timed became faster: two sets of times of the same work."""
    first, second = _checked(before), _checked(after)
    if min(first.min(), second.min()) <= 0:
        raise UsageError("times must be longer than nothing")
    random = np.random.default_rng(_SEED)
    low, high = _ends(_medians(first, random) / _medians(second, random))
    speedup = Interval(float(np.median(first) / np.median(second)), low, high)
    wins = _wins(first, second)
    chance = mann_whitney(first, second)
    effect = 2 * wins / (len(first) * len(second)) - 1
    return Difference(verdict(speedup, chance), speedup, chance, effect)


def mann_whitney(first: Sequence[float] | Values, second: Sequence[float] | Values) -> float:
    """How often two sets of the same kind would be as far apart, on either side."""
    one, other = _checked(first), _checked(second)
    n, m = len(one), len(other)
    pooled = np.concatenate((one, other))
    _, ties = np.unique(pooled, return_counts=True)
    wins = _wins(one, other)
    less = min(wins, n * m - wins)
    if n + m <= _EXACT and ties.max() == 1:
        ways = _ways(n, m)
        return min(2 * sum(ways[: int(less) + 1]) / comb(n + m, n), 1.0)
    total = n + m
    tied = float((ties**3 - ties).sum()) / (total * (total - 1))
    deviation = sqrt(n * m / 12 * (total + 1 - tied))
    if not deviation:
        return 1.0  # all are equal
    distance = max(n * m / 2 - less - 0.5, 0.0) / deviation
    return min(erfc(distance / sqrt(2)), 1.0)


def verdict(speedup: Interval, chance: float) -> Verdict:
    """What a speed-up with its interval and the chance of it amount to: the one rule."""
    if chance < CHANCE and speedup.low > 1 and speedup.point >= 1 + MATTERS:
        return "faster"
    if chance < CHANCE and speedup.high < 1 and speedup.point <= 1 / (1 + MATTERS):
        return "slower"
    return "same" if speedup.low >= 1 / (1 + SAME) and speedup.high <= 1 + SAME else "inconclusive"


def _wins(first: Values, second: Values) -> float:
    """In how many pairs the first is the larger; ties count half."""
    ordered = np.sort(second)
    below, upto = (np.searchsorted(ordered, first, side) for side in ("left", "right"))
    return float((below + upto).sum()) / 2


@lru_cache(maxsize=64)
def _ways(n: int, m: int) -> list[int]:
    """In how many orders of n and m samples so many pairs are won, for 0, 1, 2 ... of them."""
    ways = [1] + [0] * (n * m)
    for size in range(1, n + 1):  # the coefficients of a Gaussian binomial
        for won in range(n * m, m + size - 1, -1):
            ways[won] -= ways[won - m - size]
        for won in range(size, n * m + 1):
            ways[won] += ways[won - size]
    return ways


def _medians(values: Values, random: np.random.Generator) -> Values:
    drawn = values[random.integers(0, len(values), (int(DRAWS), len(values)))]
    return np.asarray(np.median(drawn, axis=1, overwrite_input=True))


def _ends(drawn: Values) -> tuple[float, float]:
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, (outside, 1 - outside))
    return float(low), float(high)


def _checked(samples: Sequence[float] | Values) -> Values:
    values = np.asarray(samples, np.float64)
    if values.ndim != 1 or not len(values):
        raise UsageError("no samples")
    if not np.isfinite(values).all():
        raise UsageError("samples must be finite numbers")
    return values
