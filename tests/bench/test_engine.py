"""The engine under a made-up clock: warm-up, calls in a sample, and when it stops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from foretrace.bench.clocks import Function, HostClock
from foretrace.bench.engine import measure, warm_up
from foretrace.bench.measurement import Measurement
from foretrace.bench.stopping import half_width, noise
from foretrace.bench.timing import Timing
from foretrace.errors import UsageError
from tests.bench.made_up import MadeUpClock


def nothing() -> None:
    return


def test_a_steady_function_stops_once_it_is_known() -> None:
    clock = MadeUpClock(lambda: 10.0)
    taken = measure(nothing, clock, Timing(warmup_s=0.1, least_s=0.5, most_s=15))
    assert taken.stopped == "precise"
    assert taken.median_ms.point == taken.median_ms.low == taken.median_ms.high == 10
    assert 0.5 <= sum(taken.samples_ms) / 1e3 < 0.6
    assert taken.std_ms == 0


def test_the_warm_up_is_not_in_the_samples() -> None:
    """The first call compiles for 2 s, those of the next 0.1 s are slow too."""
    times = itertools.chain([2000.0], [20.0] * 5, itertools.repeat(10.0))
    taken = measure(nothing, MadeUpClock(lambda: next(times)), Timing(warmup_s=0.1, least_s=0.2))
    assert set(taken.samples_ms) == {10.0}


def test_the_warm_up_calls_in_a_row_as_the_samples_do() -> None:
    """Calls of 1 ms and samples of 10: a call at a time is no load for a device that waits in between."""
    rows: list[int] = []

    class Watched(MadeUpClock):
        def samples(self, function: Function, *, calls: int, count: int) -> list[float]:
            rows.append(calls)
            return super().samples(function, calls=calls, count=count)

    warm_up(nothing, Watched(lambda: 1.0, least_sample_ms=10.0), 0.1, nothing)
    assert rows == [
        1,
        1,
        *[10] * 10,
    ]  # the first call, one to learn what a call takes, and the rest of 100 ms


def test_cold_keeps_the_first_ten_calls() -> None:
    """The first call compiles for 2 s: its mean and deviation show what a warm-up hides."""
    times = itertools.chain([2000.0], itertools.repeat(10.0))
    taken = measure(nothing, MadeUpClock(lambda: next(times)), Timing(cold=True))
    assert taken.samples_ms == (2000.0, *[10.0] * 9)
    assert (taken.calls, taken.stopped, taken.mean_ms) == (1, "cold", 209.0)


@pytest.mark.parametrize("seed", range(5))
def test_normal_noise_ends_when_the_median_is_known(seed: int) -> None:
    """With 1 % noise about 45 samples are known to 0.5 %: no need for all 15 s, and the truth is in the interval."""
    random = np.random.default_rng(seed)
    clock = MadeUpClock(lambda: float(random.normal(10, 0.1)))
    taken = measure(nothing, clock, Timing(warmup_s=0, least_s=0.1))
    assert taken.stopped == "precise"
    assert 10 <= len(taken.samples_ms) < 200
    assert taken.median_ms.low < 10.05
    assert taken.median_ms.high > 9.95


def test_heavy_noise_that_stays_the_same_ends_too() -> None:
    """With 30 % noise the median would take 25,000 samples to be known to 0.5 %."""
    random = np.random.default_rng(1)
    clock = MadeUpClock(lambda: float(10 + random.gamma(1.0, 6.0)))
    taken = measure(nothing, clock, Timing(warmup_s=0, least_s=0.1))
    assert taken.stopped == "stable"
    assert 64 < len(taken.samples_ms) < 1400
    assert taken.median_ms.low < 10 + 6 * np.log(2) < taken.median_ms.high


def test_noise_that_grows_runs_into_the_time_limit() -> None:
    count = itertools.count()
    random = np.random.default_rng(2)
    clock = MadeUpClock(lambda: 10 + random.random() * 0.05 * next(count))
    taken = measure(nothing, clock, Timing(warmup_s=0, least_s=0.1, most_s=3))
    assert taken.stopped == "time"
    assert 3 <= sum(taken.samples_ms) / 1e3 < 3.6


def test_a_function_longer_than_the_limit_has_one_sample() -> None:
    taken = measure(nothing, MadeUpClock(lambda: 5_000.0), Timing(most_s=1))
    assert taken.stopped == "time"
    assert taken.samples_ms == (5000.0,)
    assert taken.std_ms is None


def test_short_functions_are_called_in_a_row() -> None:
    """A call of 1 µs under a clock that wants 0.1 ms: 100 calls a sample."""
    clock = MadeUpClock(lambda: 0.001, least_sample_ms=0.1)
    taken = measure(nothing, clock, Timing(warmup_s=0, least_s=0.01))
    assert taken.calls == 100
    assert taken.median_ms.point == pytest.approx(0.001)


def test_one_slow_sample_in_many_moves_neither_the_median_nor_the_rule() -> None:
    samples = [10.0] * 99 + [1000.0]
    assert half_width(samples) == 0
    assert noise(samples) == 0
    taken = Measurement(tuple(samples), 1, "precise", "")
    assert taken.median_ms.point == 10
    assert taken.mean_ms == pytest.approx(19.9)
    assert taken.std_ms == pytest.approx(99)
    assert taken.percentile_ms(99) == pytest.approx(19.9)  # a hundredth of the way from 10 to 1000


@pytest.mark.exhaustive
def test_the_rule_holds_the_truth_as_often_as_it_says() -> None:
    """Stopping at a narrow interval favours lucky samples: still at least 97 of 100 intervals hold the median."""
    held = 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        clock = MadeUpClock(lambda random=random: float(random.lognormal(0, 0.02)))  # type: ignore[misc]
        taken = measure(nothing, clock, Timing(warmup_s=0, least_s=0.02))
        held += taken.median_ms.low <= 1 <= taken.median_ms.high
    assert held >= 0.97 * 300


def test_between_rounds_a_case_can_be_ended() -> None:
    looks = itertools.count()

    def look() -> None:
        if next(looks) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        measure(nothing, MadeUpClock(lambda: 1.0), Timing(), between=look)


def test_the_host_clock_times_what_passes() -> None:
    clock = HostClock()
    assert clock.least_sample_ms == 1
    assert all(0 <= sample < 50 for sample in clock.samples(nothing, calls=1000, count=3))


@pytest.mark.parametrize(
    "wrong", [{"how": "cold"}, {"device": "tpu"}, {"most_s": 0}, {"least_s": -1}, {"least_samples": 0}]
)
def test_a_wrong_timing_is_told(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Timing(**wrong)  # type: ignore[arg-type]
