"""The verdict on two sets of step times: right where the truth is known, and silent where there is too little."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.compare.verdicts import judge

TRIALS = 400


def drawn(
    seed: int, count: int, *, faster: float = 1.0, noise: float = 0.01
) -> tuple[list[float], list[float]]:
    random = np.random.default_rng(seed)
    before, after = random.normal(1.0, noise, count), random.normal(1.0 / faster, noise / faster, count)
    return before.tolist(), after.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 5, 10])
def test_equal_sets_are_hardly_ever_different(count: int) -> None:
    """At most 1 % false alarms, also of so few times that the rank test can never tell."""
    verdicts = [judge(*drawn(seed, count), repeats=0.0).verdict for seed in range(TRIALS)]
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) <= 0.01 * TRIALS


def test_large_differences_of_a_few_steps_are_found() -> None:
    verdicts = [judge(*drawn(seed, 3, faster=2.0), repeats=0.02).verdict for seed in range(200)]
    assert sum(verdict == "faster" for verdict in verdicts) >= 190


def test_what_two_runs_of_one_program_may_differ_by_is_no_difference() -> None:
    before, after = drawn(1, 20, faster=1.1, noise=0.001)
    assert judge(before, after, repeats=0.02).verdict == "faster"
    found = judge(before, after, repeats=0.2)
    assert found.verdict == "inconclusive"
    assert "may differ by 20 %" in found.why
    assert found.speedup.low < 1 < found.speedup.high


def test_slower_and_same() -> None:
    before, after = drawn(2, 12, faster=0.8, noise=0.002)
    assert judge(before, after, repeats=0.02).verdict == "slower"
    before, after = drawn(3, 12, noise=0.002)
    assert judge(before, after, repeats=0.02).verdict == "same"


@pytest.mark.parametrize("times", [([1.0], [2.0]), ([1.0, 1.0], [2.0, 2.01])])
def test_one_or_two_times_conclude_nothing(times: tuple[list[float], list[float]]) -> None:
    found = judge(*times, repeats=0.0)
    assert found.verdict == "inconclusive"
    assert "too few" in found.why
