"""Step times of variants against the program as it is, on samples whose truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretrace.trial import judgement

QUIET = [100.0, 100.1, 99.9, 100.2, 99.8, 100.3, 99.7, 100.05, 99.95, 100.15]  # milliseconds, in turn


def run(scale: float = 1.0) -> dict[str, Any]:
    """One process; the order of its blocks depends on the scale, so that two processes are not correlated."""
    turn = int(scale * 1e9) % len(QUIET)
    return {"blocks_ns": [block * 1e6 * scale for block in QUIET[turn:] + QUIET[:turn]]}


def scaled(share: float, one: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"blocks_ns": [block * share for block in (one or run())["blocks_ns"]]}


def test_the_noise_floor_is_how_far_the_runs_lie_apart() -> None:
    base = judgement.base_of([scaled(1.0), scaled(1.04), scaled(1.02)])
    assert base.floor == pytest.approx(0.04 / 1.02, rel=1e-3)
    assert not base.noisy
    assert judgement.base_of([run(1.0), run(1.2)]).noisy


def test_a_difference_beyond_the_scatter_of_processes_is_one() -> None:
    base = [run(1.0), run(1.01), run(1.005)]
    told = judgement.measure(base, [run(0.8)])
    assert told.verdict == "faster"
    assert told.speedup.point == pytest.approx(1.005 / 0.8, rel=1e-3)
    assert judgement.measure(base, [run(1.3)]).verdict == "slower"


def test_a_difference_within_the_scatter_is_none_however_alike_the_blocks_are() -> None:
    """Runs of the program as it is differ by 8 %: a variant that is 5 % faster than their middle is not faster."""
    noisy = [run(1.0), run(1.08)]
    told = judgement.measure(noisy, [run(1.04 / 1.05)])
    assert told.verdict == "inconclusive"
    assert told.speedup.low < 1 < told.speedup.high
    assert judgement.measure([run(), run()], [run(1.001)]).verdict == "same"


@pytest.mark.slow
@pytest.mark.parametrize(("bases", "own"), [(2, 1), (3, 1), (5, 1), (4, 2), (5, 3)])
def test_the_range_holds_the_truth_in_19_of_20_cases(bases: int, own: int) -> None:
    """Processes scatter by 3 %, and the change is worth a factor of 1.2."""
    random = np.random.default_rng(bases + 10 * own)
    inside, trials = 0, 150
    for _ in range(trials):
        runs = [run(scale) for scale in np.exp(random.normal(0, 0.03, bases + own))]
        speedup = judgement.measure(runs[:bases], [scaled(1 / 1.2, one) for one in runs[bases:]]).speedup
        inside += speedup.low <= 1.2 <= speedup.high
    assert inside / trials >= 0.91  # 0.95, less twice what 150 trials scatter by


def test_another_process_narrows_the_range() -> None:
    base = [run(1.0), run(1.02), run(0.98)]
    once = judgement.measure(base, [run(0.95)])
    assert once.verdict == "inconclusive"
    again = judgement.measure([*base, run(1.01), run(0.99)], [run(0.95), run(0.945), run(0.955)])
    assert again.verdict == "faster"
    assert again.speedup.high - again.speedup.low < once.speedup.high - once.speedup.low


def test_of_steps_that_wait_for_workers_the_mean_counts() -> None:
    """Nine blocks of 10 ms and one of 110 ms: a step takes 20 ms, whatever the usual block says."""
    burst = {"blocks_ns": [10e6] * 9 + [110e6], "batches_ahead": 8}
    assert judgement.step_of(burst, mean=judgement.uneven([burst])) == pytest.approx(20e6)
    assert judgement.step_of(burst, mean=False) == pytest.approx(10e6)


def test_of_steps_with_work_of_their_own_the_same_ones_are_compared() -> None:
    """Layers are dropped at random, with one seed: blocks take 60 to 140 ms, and 5 % less of that with the change."""
    work = [60.0, 140.0, 90.0, 120.0, 70.0, 130.0, 100.0, 80.0, 110.0, 100.0]
    random = np.random.default_rng(0)

    def process(share: float) -> dict[str, Any]:
        return {"blocks_ns": [block * 1e6 * share * random.normal(1, 0.002) for block in work]}

    base = [process(1.0) for _ in range(3)]
    assert judgement.same_work(base)
    assert judgement.base_of(base).step_ns == pytest.approx(100e6, rel=0.005)
    told = judgement.measure(base, [process(0.95)])
    assert told.verdict == "faster"
    assert told.speedup.point == pytest.approx(1 / 0.95, rel=0.005)
    apart = [{"blocks_ns": (100e6 * random.normal(1, 0.01, 10)).tolist()} for _ in range(3)]
    assert not judgement.same_work(apart)


def test_a_longer_start_pays_back() -> None:
    """17 s more at the start, 50 ms less in each step."""
    assert judgement.pays_back_steps(17, 150e6, 100e6) == 340
    assert judgement.pays_back_steps(17, 100e6, 150e6) is None
