"""Step times of variants against the noise floor of the program as it is, on samples whose truth is known."""

from __future__ import annotations

from typing import Any

import pytest

from foretrace.trial import judgement

QUIET = [100.0, 100.1, 99.9, 100.2, 99.8, 100.3, 99.7, 100.05, 99.95, 100.15]  # milliseconds, in turn


def run(scale: float = 1.0, **facts: Any) -> dict[str, Any]:
    return {"blocks_ns": [block * 1e6 * scale for block in QUIET], **facts}


def test_the_noise_floor_is_how_far_the_runs_lie_apart() -> None:
    base = judgement.base_of([run(1.0), run(1.04), run(1.02)], bursts=False)
    assert base.step_ns == pytest.approx(102.025e6, rel=1e-3)
    assert base.floor == pytest.approx(0.04 / 1.02, rel=1e-6)
    assert not base.noisy
    assert judgement.base_of([run(1.0), run(1.2)], bursts=False).noisy


def test_a_difference_beyond_the_floor_is_one() -> None:
    told = judgement.measure([run(1.0), run(1.01)], run(0.8))
    assert told.verdict == "faster"
    assert told.speedup.point == pytest.approx(1.005 / 0.8, rel=1e-3)
    assert told.speedup.low <= 1.005 / 0.8 / 1.009
    assert judgement.measure([run(1.0), run(1.01)], run(1.3)).verdict == "slower"


def test_a_difference_within_the_floor_is_none_however_alike_the_blocks_are() -> None:
    """Runs of the program as it is differ by 8 %: a variant that is 5 % faster than their middle is not faster."""
    noisy = [run(1.0), run(1.08)]
    told = judgement.measure(noisy, run(1.04 / 1.05))
    assert told.verdict == "inconclusive"
    assert told.speedup.low < 1 < told.speedup.high
    assert judgement.measure([run(), run()], run(1.001)).verdict == "same"


def test_of_steps_that_wait_for_workers_the_mean_counts() -> None:
    """Nine blocks of 10 ms and one of 110 ms: a step takes 20 ms, whatever the usual block says."""
    burst = {"blocks_ns": [10e6] * 9 + [110e6], "batches_ahead": 8}
    assert judgement.step_of(burst, bursts=judgement.waits_for_workers([burst])) == pytest.approx(20e6)
    assert judgement.step_of(burst, bursts=False) == pytest.approx(10e6)


def test_a_longer_start_pays_back() -> None:
    """17 s more at the start, 50 ms less in each step."""
    assert judgement.pays_back_steps(17, 150e6, 100e6) == 340
    assert judgement.pays_back_steps(17, 100e6, 150e6) is None
