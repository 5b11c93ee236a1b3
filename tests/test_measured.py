"""Measured samples: verdicts on samples whose truth is known."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from foretrace import measured
from foretrace.errors import UsageError
from foretrace.statistics import Values, mann_whitney

TRIALS = 3_000
COUNT = 20  # samples of each set


def test_ties_are_worth_half() -> None:
    assert mann_whitney([1.0] * 10, [1.0] * 10) == 1.0
    same = measured.compare([1.0, 2.0] * 10, [1.0, 2.0] * 10)
    assert same.effect == 0
    assert same.chance == 1.0


def drawn(times: Values) -> list[float]:
    return [float(time) for time in times]


@pytest.mark.slow
@pytest.mark.parametrize("scatter", ["normal", "log-normal", "with hiccups"])
def test_equal_programs_are_hardly_ever_taken_for_different(scatter: str) -> None:
    """At most 1 % false alarms, at 1 % noise, whatever its shape; a hiccup makes one sample in ten 20 % longer."""
    random = np.random.default_rng(2)

    def samples() -> list[float]:
        times = random.normal(1, 0.01, COUNT)
        if scatter == "log-normal":
            times = np.exp(times - 1)
        if scatter == "with hiccups":
            times *= np.where(random.random(COUNT) < 0.1, 1.2, 1.0)
        return drawn(times)

    verdicts = [measured.compare(samples(), samples()).verdict for _ in range(TRIALS // 3)]
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) <= 0.01 * len(verdicts)


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "verdict"), [(1.03, "slower"), (1 / 1.03, "faster")])
def test_a_change_of_three_percent_is_found(factor: float, verdict: measured.Verdict) -> None:
    """At least in 95 % of the trials, at 1 % noise."""
    random = np.random.default_rng(3)
    pairs = (
        (drawn(random.normal(1, 0.01, COUNT)), drawn(random.normal(factor, 0.01, COUNT)))
        for _ in range(TRIALS // 2)
    )
    found = [measured.compare(*pair).verdict for pair in pairs]
    assert found.count(verdict) >= 0.95 * len(found)


@pytest.mark.slow
def test_intervals_hold_the_true_median() -> None:
    """At least as often as they say, less what drawing again from twenty samples misses."""
    random = np.random.default_rng(4)
    found = [measured.median(drawn(random.exponential(1, COUNT))) for _ in range(400)]
    held = sum(interval.low <= np.log(2) <= interval.high for interval in found)
    assert held >= 0.97 * len(found)
    assert all(interval.low <= interval.point <= interval.high for interval in found)


def test_few_samples_tell_nothing() -> None:
    """Three against three: even if all are shorter, one order in ten is so by chance."""
    found = measured.compare([2.0, 2.1, 2.2], [1.0, 1.1, 1.2])
    assert found.verdict == "inconclusive"
    assert found.chance == pytest.approx(2 / comb(6, 3))
    assert found.effect == 1


def test_a_difference_that_does_not_matter_is_the_same() -> None:
    before = [1 + 0.0001 * place for place in range(COUNT)]
    found = measured.compare(before, [time * 1.005 for time in before])
    assert found.chance < 0.005
    assert found.verdict == "same"


def test_wide_scatter_is_inconclusive() -> None:
    random = np.random.default_rng(5)
    found = measured.compare(drawn(random.normal(1, 0.2, COUNT)), drawn(random.normal(1.02, 0.2, COUNT)))
    assert found.verdict == "inconclusive"


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")], [0.0, 1.0]])
def test_what_is_no_time_is_an_error(samples: list[float]) -> None:
    with pytest.raises(UsageError):
        measured.compare(samples, [1.0])
