"""What differs by chance is told from what does not, with few ranks and steps too."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foretrace.ranks import chance, excess
from foretrace.ranks.roles import Roles


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 318.31), (2, 22.327), (5, 5.893), (10, 4.144), (30, 3.385)]
)
def test_errors_are_those_of_students_table(freedom: int, quantile: float) -> None:
    """One-sided, of 0.1 %: as printed in tables of Student's t."""
    assert chance.errors(1, 2 * freedom) == pytest.approx(quantile, rel=1e-4)
    assert chance.errors(1) == pytest.approx(3.090, abs=0.001)


@pytest.mark.parametrize("steps", [2, 3, 5, 12])
def test_the_scatter_of_few_steps_is_not_told_too_small(steps: int) -> None:
    table = np.random.default_rng(steps).normal(50.0, 7.0, (4_000, steps))
    assert chance.scatter(table) == pytest.approx(7.0, rel=0.04)
    table[::10] *= 3  # a tenth of the ranks are no measure for the rest
    assert chance.scatter(table) == pytest.approx(7.0, rel=0.25)


@pytest.mark.slow
def test_input_that_scatters_is_not_late() -> None:
    """Loading takes each rank 3 ms +- 10 % of a 12 ms step, or only the first step waits for it: no rank is late."""
    flagged = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        ranks, steps = int(random.choice((2, 4, 8, 32))), int(random.choice((1, 2, 3, 6)))
        table = 3e6 * (1 + 0.1 * random.standard_normal((ranks, steps)))
        if seed % 2:
            table[:, 1:] = 0.0  # the host runs ahead
        flagged += bool(excess.late_input(table, _one_role(ranks), 12e6))
    assert flagged == 0


def test_late_input_is_told_in_one_step_and_a_little_in_all() -> None:
    random = np.random.default_rng(0)
    table = 3e6 * (1 + 0.1 * random.standard_normal((8, 6)))
    table[3, 2] += 9e6
    table[5] += 2e6
    late = {each.member: each for each in excess.late_input(table, _one_role(8), 12e6)}
    assert set(late) == {3, 5}
    assert late[3].excess_ns == pytest.approx(9e6 / 6, rel=0.1)
    assert np.flatnonzero(late[3].left < 1).tolist() == [2]
    assert late[5].excess_ns == pytest.approx(2e6, rel=0.2)
    alone = np.array([[0.2e6, 0.2e6, 9e6], [0.2e6, 0.2e6, 0.2e6]])  # two ranks: as long again, and more
    assert [each.member for each in excess.late_input(alone, _one_role(2), 12e6)] == [0]


def _one_role(ranks: int) -> Roles:
    same = np.zeros(ranks, np.int64)
    return Roles(same, 1, same, np.arange(ranks) // 8)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "steps"), [(4, 3), (16, 8)])
def test_pauses_of_hosts_that_are_seldom_long_make_no_rank_slow(ranks: int, steps: int) -> None:
    """Pauses of 4 % of the step on average, most shorter and a few much longer; a rank that always pauses for half a step is told."""
    flagged = told = 0
    for seed in range(100):
        table = np.random.default_rng((seed, ranks, steps)).exponential(0.04, (ranks, steps))
        roles = _one_role(ranks)
        usual = np.median(table, axis=0)
        late = np.maximum(table - usual, 0.0)
        flagged += any(not each.once for each in excess.slow_otherwise(table, late, roles, 1.0))
        table[1] += 0.5
        found = excess.slow_otherwise(table, np.maximum(table - usual, 0.0), roles, 1.0)
        told += any(each.member == 1 for each in found)
    assert flagged <= 1
    assert told >= 98


@pytest.mark.slow
def test_input_that_takes_some_ranks_many_times_as_long_is_not_late() -> None:
    """Loading takes half as long as often as twice as long: of 100 waits one or two are four times as long as the median."""
    flagged = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        ranks, steps = int(random.choice((16, 64))), int(random.choice((6, 8)))
        table = 0.05 * np.exp(0.6 * random.standard_normal((ranks, steps)))
        flagged += bool(excess.late_input(table, _one_role(ranks), 1.0))
    assert flagged <= 8


def test_a_rank_that_pauses_in_every_step_pauses_in_the_first_too() -> None:
    """Of three steps the first may be longer for everybody; what one rank takes longer in all of them counts in all."""
    table = np.full((8, 3), 50e3)
    table[3] = [4.6e6, 2.5e6, 2.5e6]
    (slow,) = excess.slow_otherwise(table, np.maximum(table - 50e3, 0.0), _one_role(8), 20e6)
    assert slow.member == 3
    assert slow.excess_ns == pytest.approx((4.55e6 + 2 * 2.45e6) / 3)
    assert not slow.once


def test_steps_that_are_nearly_late_count_where_others_of_the_rank_are() -> None:
    """Of a step of 20 ms, loading takes 400 us, and one rank 1.4 and 1.1 ms longer in two steps: the limit is at 1.2 ms."""
    random = np.random.default_rng(3)
    table = 400e3 * np.exp(0.3 * random.standard_normal((16, 6)))
    table[8, 1], table[8, 3] = 400e3 + 1.4e6, 400e3 + 1.1e6
    table[2, 4] = 400e3 + 1.0e6  # nobody is late by that alone
    (late,) = excess.late_input(table, _one_role(16), 20e6)
    assert late.member == 8
    assert np.flatnonzero(late.left < 1).tolist() == [1, 3]
    assert late.excess_ns == pytest.approx(2.5e6 / 6, rel=0.05)


@pytest.mark.parametrize("steps", [1, 2, 5, 21])
def test_the_chance_of_one_step_is_that_of_half_of_them(steps: int) -> None:
    """Beside the binomial distribution, term by term."""
    one = chance._chance_of_one(steps, 1e-5)
    half = (steps + 1) // 2
    of_half = sum(math.comb(steps, k) * one**k * (1 - one) ** (steps - k) for k in range(half, steps + 1))
    assert of_half == pytest.approx(1e-5, rel=1e-6)


def test_thousands_of_steps_are_judged_too() -> None:
    """With many steps, half of them are such only where nearly every second one is."""
    assert 0.45 < chance._chance_of_one(5_000, 1e-5) < 0.5


def _idle_longer(table: np.ndarray, step_ns: float = 12e6) -> set[int]:
    late = np.maximum(table - np.median(table, axis=0), 0.0)
    return {each.member for each in excess.slow_otherwise(table, late, _one_role(len(table)), step_ns)}


@pytest.mark.slow
def test_rare_pauses_are_nobodys_fault() -> None:
    """In 2 to 20 % of steps a host pauses, for 2 to 5 % of the step on average, and seldom for much longer."""
    flagged = 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        ranks, steps = int(random.choice((8, 16, 64))), int(random.choice((4, 6, 10, 20)))
        pauses = random.exponential(random.uniform(0.02, 0.05) * 12e6, (ranks, steps))
        table = random.normal(3e5, 1e4, (ranks, steps))
        table += np.where(random.uniform(size=table.shape) < random.choice((0.02, 0.05, 0.2)), pauses, 0.0)
        flagged += bool(_idle_longer(table))
    assert flagged <= 3


def test_a_rank_that_pauses_for_long_again_and_again_is_named() -> None:
    random = np.random.default_rng(1)
    table = random.normal(3e5, 1e4, (16, 10))
    table[4, [2, 5, 8]] += 4e6
    assert _idle_longer(table) == {4}
    table[9, 3] += 3e5  # a short pause of another rank tells how long they are
    table[11, 6] += 4e5
    assert _idle_longer(table) == {4}
    once = random.normal(3e5, 1e4, (16, 10))
    once[4, 2] += 8e5  # once, and not for long: 0.7 % of all steps
    assert _idle_longer(once) == set()
