"""Functions that take turns, on a machine that grows slower all the time; its clock is made up."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from foretrace import bench
from foretrace.bench.against import against
from foretrace.bench.engine import measure
from tests.bench.made_up import MadeUpClock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]
TIMING = bench.Timing(device="cpu", warmup_s=0, least_s=0.3, most_s=3)


class Drifting:
    """Calls of `plain` take 1 ms and those of `longer` 1.03, with 1 % of noise, and all grow by `drift` over a second."""

    def __init__(self, seed: int, drift: float = 0.1) -> None:
        self.drift = drift
        self.random = np.random.default_rng(seed)
        self.takes_ms = 1.0
        self.clock = MadeUpClock(self.next_ms)

    def plain(self) -> None:
        self.takes_ms = 1.0

    def longer(self) -> None:
        self.takes_ms = 1.03

    def next_ms(self) -> float:
        return self.takes_ms * (1 + self.drift * self.clock.now_s()) * float(self.random.normal(1, 0.01))


@pytest.fixture
def drifting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Drifting]:
    def made(seed: int, drift: float = 0.1) -> Drifting:
        machine = Drifting(seed, drift)
        monkeypatch.setattr("foretrace.bench.sweep.clock_for", lambda device, how: machine.clock)
        return machine

    return made


@pytest.mark.parametrize("seed", range(5))
def test_drift_makes_no_difference(drifting: Callable[..., Drifting], seed: int) -> None:
    machine = drifting(seed)
    found = bench.functions(machine.plain, machine.plain, timing=TIMING)
    first, second = found.rows
    assert (first["function"], second["function"]) == ("Drifting.plain", "Drifting.plain #2")
    assert len(first["turns_ms"]) == 10
    assert second["verdict"] in ("same", "inconclusive")


@pytest.mark.parametrize("seed", range(5))
def test_three_per_cent_show(drifting: Callable[..., Drifting], seed: int) -> None:
    machine = drifting(seed, drift=0)
    _, second = bench.functions(machine.plain, machine.longer, timing=TIMING).rows
    assert second["verdict"] == "slower"
    assert second["speedup_low"] < 1 / 1.03 < second["speedup_high"]


@pytest.mark.parametrize("seed", range(5))
def test_three_per_cent_are_never_taken_for_the_opposite(
    drifting: Callable[..., Drifting], seed: int
) -> None:
    machine = drifting(seed)
    _, second = bench.functions(machine.plain, machine.longer, timing=TIMING).rows
    assert 1 / 1.05 < second["speedup"] < 1 / 1.01
    assert second["verdict"] in ("slower", "inconclusive")


def test_one_after_the_other_the_drift_would_be_taken_for_a_difference() -> None:
    """Why functions take turns."""
    machine = Drifting(0)
    rows: list[dict[str, Any]] = [
        {"samples_ms": measure(machine.plain, machine.clock, TIMING).samples_ms} for _ in range(2)
    ]
    assert against(*rows)["verdict"] == "slower"


def test_a_function_that_fails_in_a_later_turn_is_a_row(drifting: Callable[..., Drifting]) -> None:
    machine = drifting(0)
    calls = 0

    def fails_late() -> None:
        nonlocal calls
        calls += 1
        if calls > 100:
            raise ValueError("the hundredth call")

    first, second = bench.functions(machine.plain, fails_late, timing=TIMING).rows
    assert (first["status"], second["status"]) == ("OK", "ERROR")
    assert second["reason"] == "ValueError: the hundredth call"
    assert calls == 101
