"""Statistics that several parts need: Student's t, rank tests, robust deviations and intervals of a median.

Decisions (what counts as a difference, how sure is sure) belong to whoever asks: `foretrace.measured` for two sets of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, comb, erfc, exp, floor, inf, lgamma, log, log1p, pi, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import UsageError

Values = NDArray[np.float64]

NORMAL = NormalDist()
QUARTILE = NORMAL.inv_cdf(0.75)  # 0.6745: the middle of normal values to a quartile, in standard deviations
_EXACT_RANKS = 40  # samples in both sets together, up to which the rank test counts every order
_CONVERGED = 1e-14  # relative
_MOST_TERMS = 10_000


def checked(samples: Sequence[float] | Values) -> Values:
    """The samples as an array; UsageError unless they are one row of finite numbers."""
    values = np.asarray(samples, np.float64)
    if values.ndim != 1 or not len(values):
        raise UsageError("no samples")
    if not np.isfinite(values).all():
        raise UsageError("samples must be finite numbers")
    return values


def robust_deviation(values: Sequence[float] | Values) -> float:
    """The standard deviation of normal values, from their median absolute deviation."""
    array = np.asarray(values, np.float64)
    return deviation_of(float(np.median(np.abs(array - np.median(array)))))


def deviation_of(median_distance: float) -> float:
    """The standard deviation of normal values whose median distance from their middle is given: 1.4826 times that."""
    return median_distance / QUARTILE


def median_interval(samples: Sequence[float] | Values, *, confidence: float) -> tuple[float, float]:
    """The samples between which the median lies with the given confidence, by rank; costs one sort."""
    ordered = np.sort(np.asarray(samples, np.float64))
    count = len(ordered)
    reach = NORMAL.inv_cdf((1 + confidence) / 2) * sqrt(count) / 2
    low, high = floor(count / 2 - reach), ceil(count / 2 + reach)
    if low < 0 or high >= count:
        low, high = 0, count - 1
    return float(ordered[low]), float(ordered[high])


def mann_whitney(first: Sequence[float] | Values, second: Sequence[float] | Values) -> float:
    """The two-sided p of the rank test: how often two sets of the same kind would be as far apart."""
    one, other = checked(first), checked(second)
    n, m = len(one), len(other)
    _, ties = np.unique(np.concatenate((one, other)), return_counts=True)
    won = wins(one, other)
    less = min(won, n * m - won)
    if n + m <= _EXACT_RANKS and ties.max() == 1:
        return min(2 * sum(_orders(n, m)[: int(less) + 1]) / comb(n + m, n), 1.0)
    total = n + m
    tied = float((ties**3 - ties).sum()) / (total * (total - 1))
    deviation = sqrt(n * m / 12 * (total + 1 - tied))
    if not deviation:
        return 1.0  # all are equal
    distance = max(n * m / 2 - less - 0.5, 0.0) / deviation
    return min(erfc(distance / sqrt(2)), 1.0)


def wins(first: Values, second: Values) -> float:
    """In how many pairs the first is the larger; ties count half."""
    ordered = np.sort(second)
    below, upto = (np.searchsorted(ordered, first, side) for side in ("left", "right"))
    return float((below + upto).sum()) / 2


@lru_cache(maxsize=64)
def _orders(n: int, m: int) -> list[int]:
    """The number of orders of n and m samples in which 0, 1, 2 ... pairs are won."""
    ways = [1] + [0] * (n * m)
    for size in range(1, n + 1):  # the coefficients of a Gaussian binomial
        for won in range(n * m, m + size - 1, -1):
            ways[won] -= ways[won - m - size]
        for won in range(size, n * m + 1):
            ways[won] += ways[won - size]
    return ways


def welch(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p of Welch's t-test: how often two sets of the same kind would have means as far apart."""
    if min(len(first), len(second)) < 2:
        return 1.0
    distance = abs(float(np.mean(first)) - float(np.mean(second)))
    one, other = (float(np.var(samples, ddof=1)) / len(samples) for samples in (first, second))
    if not one + other:
        return 1.0 if not distance else 0.0
    freedom = (one + other) ** 2 / (one**2 / (len(first) - 1) + other**2 / (len(second) - 1))
    return 2 * student_tail(distance / sqrt(one + other), freedom)


def student_tail(distance: float, freedom: float) -> float:
    """The chance that Student's t with so many degrees of freedom exceeds a distance >= 0."""
    # The incomplete beta function at freedom / (freedom + distance^2), by whichever side converges quickly.
    a, b, square = freedom / 2, 0.5, distance * distance
    if not square:
        return 0.5
    inside = a * log1p(square / freedom) if square < inf else inf
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) - inside + b * log(square / (freedom + square)))
    x = freedom / (freedom + square)
    if x < (a + 1) / (a + b + 2):
        return front / a * _beta_fraction(a, b, x) / 2
    return (1 - front / b * _beta_fraction(b, a, square / (freedom + square))) / 2


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    upper, lower = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = lower
    for term in range(1, _MOST_TERMS):
        even = term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term))
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1))
        for part in (even, odd):
            lower = 1 / (1 + part * lower)
            upper = 1 + part / upper
            value *= lower * upper
        if abs(lower * upper - 1) < _CONVERGED:
            break
    return value


@lru_cache(maxsize=4096)
def student_quantile(beyond: float, freedom: float = inf) -> float:
    """The distance that Student's t exceeds with a chance below one half; the normal distribution's without `freedom`."""
    distance = -NORMAL.inv_cdf(beyond)
    if freedom == inf:
        return distance
    # Newton's method on logarithms: there the tail is concave, and far out a straight line.
    constant = lgamma((freedom + 1) / 2) - lgamma(freedom / 2) - log(freedom * pi) / 2
    for _ in range(100):
        tail = student_tail(distance, freedom)
        density = exp(constant - (freedom + 1) / 2 * log1p(distance * distance / freedom))
        step = log(tail / beyond) * tail / (distance * density)
        distance *= exp(step)
        if abs(step) < 1e-12:
            break
    return distance
