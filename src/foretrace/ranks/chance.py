"""How far something may be off by chance: how many standard errors, by how many were judged and how well the error is known."""

from __future__ import annotations

import math

import numpy as np

from foretrace.ranks.gathered import Array
from foretrace.sourced import JUDGEMENT, Share
from foretrace.statistics import QUARTILE, student_quantile

FLAGGED = Share(0.001, "healthy jobs, that one comparison of all their ranks would flag by chance", JUDGEMENT)
OF_MEDIAN = math.sqrt(math.pi / 2)  # standard error of the median over that of the mean
_OF_DISTANCE = math.sqrt(2) * QUARTILE  # median distance of two values over their standard deviation
_MOST_EXPONENT = 50.0  # beyond that nothing is by chance, and powers overflow
_FEW = 8  # values whose upper quarter tells nothing
_LAGS = 3  # steps that are compared with each other: all pairs of four, and as many for each of more


def errors(judged: int, values: int | None = None) -> float:
    """Standard errors beyond which one of so many is not by chance; where the error is known from so many values only, more.

    One-sided, by Student's t. A median of distances tells as much as half as many values would.
    """
    freedom = math.inf if values is None else max(values / 2, 1.0)
    return student_quantile(FLAGGED / max(judged, 1), freedom)


def tail(values: Array) -> float:
    """How far above the middle the largest of the values may be by chance; 0 where they are too few to tell.

    Pauses of hosts and loaders are seldom normal: most are short, and a few long. The upper quarter tells how the chance of
    one falls with its length, as if it fell by the same part each time.
    """
    known = values[~np.isnan(values)]
    if len(known) < _FEW:
        return 0.0
    middle, high = np.percentile(known, (50, 75))
    return float(high - middle) / math.log(2) * math.log(len(known) / FLAGGED)


def median_tail(values: Array, steps: int, judged: int) -> float:
    """How large the median of so many steps of one of so many ranks may be by chance, where steps are as these values.

    At least half of its steps must be as large; how seldom one is, the upper quarter tells as in `tail`.
    """
    known = values[~np.isnan(values)]
    if len(known) < _FEW:
        return 0.0
    middle, high = np.percentile(known, (50, 75))
    one = _chance_of_one(steps, FLAGGED / max(judged, 1))
    return float(high + (high - middle) / math.log(2) * max(math.log(0.25 / one), 0.0))


def _chance_of_one(steps: int, wanted: float) -> float:
    """The chance of one step with which half or more of all steps are such with the wanted chance; by bisection."""
    count = np.arange((steps + 1) // 2, steps + 1)
    factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, steps + 1)))))
    ways = factorial[steps] - factorial[count] - factorial[steps - count]  # as logarithms: they are many
    low, high = 0.0, 1.0
    for _ in range(50):
        one = (low + high) / 2
        of_half = float(np.exp(ways + count * math.log(one) + (steps - count) * math.log1p(-one)).sum())
        low, high = (one, high) if of_half < wanted else (low, one)
    return high


def surprise(own: Array, others: Array, tries: int) -> float:
    """How unlikely it is that a rank pauses so in as many of its tries, where others pause so; as a logarithm, per job of such ranks.

    Both are by how much longer than a limit pauses are. Their lengths are taken to fall off as exponential ones do: of a mean
    that is known from k of them, one is x or more with a chance of (1 + x / sum) ** -k. A pause that nobody else has tells of no
    length, and happens as often as one in all tries of all.
    """
    pauses = others[others > 0]
    count, ranks = len(pauses), len(others) // max(tries, 1) + 1
    often = (count + 1) / max(len(others) + tries, 1)
    lengths = float(count * np.log1p(own / pauses.sum()).sum()) if count else 0.0
    # Together they are so long more often than each alone is: the sum of their logarithms has Erlang's distribution.
    places = range(1, len(own)) if lengths > 0 else ()
    terms = [each * math.log(lengths) - math.lgamma(each + 1) for each in places]
    together = float(np.logaddexp.reduce([0.0, *terms]))
    ways = math.lgamma(tries + 1) - math.lgamma(len(own) + 1) - math.lgamma(tries - len(own) + 1)
    return lengths - together - len(own) * math.log(often) - ways - math.log(ranks)


def times_tail(values: Array) -> float:
    """By how many times the middle the largest of the values may be above it by chance; by any where they are too few to tell.

    What takes twice as long is as likely as what takes half as long: the lower quarter tells, which nothing late is in.
    """
    known = values[values > 0]
    if len(known) < _FEW:
        return math.expm1(_MOST_EXPONENT)
    low, middle = np.percentile(known, (25, 50), method="lower")
    return math.expm1(min(errors(len(known)) * math.log(middle / low) / QUARTILE, _MOST_EXPONENT))


def scatter(table: Array) -> float:
    """The robust standard deviation of single steps of a rank: from distances of steps, which no median of few makes too small."""
    distances = _distances(table)
    return float(np.nanmedian(distances)) / _OF_DISTANCE if not np.isnan(distances).all() else 0.0


def own_scatters(table: Array) -> Array:
    """The same of each rank; 0 where it has one step."""
    distances = _distances(table)
    known = ~np.isnan(distances).all(axis=1)
    result = np.zeros(len(table))
    result[known] = np.nanmedian(distances[known], axis=1) / _OF_DISTANCE
    return result


def _distances(table: Array) -> Array:
    ranks, steps = table.shape
    pairs = [np.abs(table[:, lag:] - table[:, :-lag]) for lag in range(1, min(_LAGS, steps - 1) + 1)]
    return np.concatenate(pairs, axis=1) if pairs else np.full((ranks, 1), np.nan)
