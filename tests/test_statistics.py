"""Statistics against printed tables, closed forms and every order there is."""

from __future__ import annotations

from itertools import combinations
from math import atan, comb, inf, pi, sqrt, tan

import numpy as np
import pytest

from foretrace import statistics

# One-sided quantiles of Student's t as printed in tables: degrees of freedom -> beyond 5 %, 2.5 %, 0.5 %, 0.1 %.
TABLE = {
    1: (6.314, 12.706, 63.657, 318.31),
    2: (2.920, 4.303, 9.925, 22.327),
    3: (2.353, 3.182, 5.841, 10.215),
    4: (2.132, 2.776, 4.604, 7.173),
    5: (2.015, 2.571, 4.032, 5.893),
    10: (1.812, 2.228, 3.169, 4.144),
    15: (1.753, 2.131, 2.947, 3.733),
    30: (1.697, 2.042, 2.750, 3.385),
    60: (1.671, 2.000, 2.660, 3.232),
    120: (1.658, 1.980, 2.617, 3.160),
    inf: (1.645, 1.960, 2.576, 3.090),
}
BEYOND = (0.05, 0.025, 0.005, 0.001)


@pytest.mark.parametrize("freedom", TABLE)
def test_students_quantiles_are_those_of_the_table(freedom: float) -> None:
    quantiles = [statistics.student_quantile(beyond, freedom) for beyond in BEYOND]
    assert quantiles == pytest.approx(TABLE[freedom], abs=0.0006, rel=2e-5)


@pytest.mark.parametrize("beyond", [0.4, 0.05, 0.001, 1e-7])
def test_students_quantiles_with_one_and_two_degrees_of_freedom_are_closed_forms(beyond: float) -> None:
    """One degree is Cauchy's distribution: t = cot(pi p). Two degrees: t = (1 - 2 p) / sqrt(2 p (1 - p))."""
    assert statistics.student_quantile(beyond, 1) == pytest.approx(1 / tan(pi * beyond), rel=1e-9)
    two = (1 - 2 * beyond) / sqrt(2 * beyond * (1 - beyond))
    assert statistics.student_quantile(beyond, 2) == pytest.approx(two, rel=1e-9)


@pytest.mark.parametrize("distance", [0.0, 0.3, 1.0, 2.5, 30.0, 1e5])
def test_students_tails_with_one_and_two_degrees_of_freedom_are_closed_forms(distance: float) -> None:
    assert statistics.student_tail(distance, 1) == pytest.approx(
        atan(1 / distance) / pi if distance else 0.5, rel=1e-9
    )
    # 1/2 - t / (2 sqrt(2 + t^2)), without the difference of two numbers that are nearly equal
    root = sqrt(2 + distance**2)
    assert statistics.student_tail(distance, 2) == pytest.approx(1 / (root * (root + distance)), rel=1e-9)


@pytest.mark.parametrize("freedom", [0.5, 2.7, 40.0, 1e3, 2e6])
def test_students_tail_and_quantile_undo_each_other(freedom: float) -> None:
    for beyond in (0.3, 0.01, 1e-5):
        distance = statistics.student_quantile(beyond, freedom)
        assert statistics.student_tail(distance, freedom) == pytest.approx(beyond, rel=1e-7)


def test_with_many_degrees_of_freedom_students_t_is_normal() -> None:
    assert statistics.student_quantile(1e-6, 1e7) == pytest.approx(4.753424, abs=1e-4)


def test_welch_s_test_by_the_book() -> None:
    """By hand: means 2 and 3 with variance 1 over 3 each, so t = 1 / sqrt(2 / 3) with 4 degrees of freedom.

    With 4 degrees the two-sided tail is 1 - s (3 - s^2) / 2, where s = t / sqrt(4 + t^2).
    """

    def both_sides(distance: float) -> float:
        share = distance / sqrt(4 + distance**2)
        return 1 - share * (3 - share**2) / 2

    welch = statistics.welch
    assert welch([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]) == pytest.approx(both_sides(sqrt(1.5)), rel=1e-9)
    far = welch([5.0, 5.1, 4.9], [9.0, 9.1, 8.9])
    assert far == pytest.approx(both_sides(4 / sqrt(2 * 0.01 / 3)), rel=1e-6)
    assert welch([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == 1.0
    assert welch([1.0, 1.0], [2.0, 2.0]) == 0.0
    assert welch([1.0], [2.0]) == 1.0


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (4, 4), (3, 6)])
def test_the_rank_test_counts_every_order(n: int, m: int) -> None:
    """For every way to deal ranks to two sets: as many ways are as far apart, on either side, as it says."""
    ranks = range(n + m)
    wins = {}
    for first in combinations(ranks, n):
        second = [rank for rank in ranks if rank not in first]
        wins[first] = sum(one > other for one in first for other in second)
    for first, won in wins.items():
        second = [rank for rank in ranks if rank not in first]
        less = min(won, n * m - won)
        ways = sum(other <= less or n * m - other <= less for other in wins.values())
        expected = min(ways / comb(n + m, n), 1.0)
        assert statistics.mann_whitney(first, second) == pytest.approx(expected)


def test_the_rank_test_of_many_samples_is_near_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    sets = [(random.normal(1, 0.01, 20), random.normal(1 + shift, 0.01, 20)) for shift in (0, 0.005, 0.01)]
    exact = [statistics.mann_whitney(*pair) for pair in sets]
    monkeypatch.setattr(statistics, "_EXACT_RANKS", 0)
    assert [statistics.mann_whitney(*pair) for pair in sets] == pytest.approx(exact, rel=0.1, abs=0.001)


def test_the_robust_deviation_is_that_of_normal_values() -> None:
    """|value - 3| is 2, 1, 0, 1, 97: the median is 1, and a normal distribution's deviation 1.4826 times that."""
    assert statistics.robust_deviation([1.0, 2.0, 3.0, 4.0, 100.0]) == pytest.approx(1.4826, abs=1e-4)


def test_the_interval_of_a_median_is_by_rank() -> None:
    """Of 100 samples: 50 -+ 2.576 * 10 / 2, outwards, are the ranks 37 and 63. Of three samples it is all of them."""
    assert statistics.median_interval(range(100), confidence=0.99) == (37.0, 63.0)
    assert statistics.median_interval([3.0, 1.0, 2.0], confidence=0.99) == (1.0, 3.0)
