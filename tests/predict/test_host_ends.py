"""How far the host may be from the calibrated one, by what the measured step tells of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.predict.calibrate import Calibration
from foretrace.predict.prediction import host_ends
from foretrace.predict.program import Program
from tests.predict.programs import Draft


def calibrated(program: Program) -> Calibration:
    return Calibration(program, 100_000, "", known=True, representative=True, host_bound=True)


def waited_for(host_ns: int, device_ns: int) -> Program:
    """The host launches one kernel and waits for it, so that a step takes both."""
    return Draft().launch(host_ns, 0, device_ns).sync(0, 0).program()


@pytest.mark.parametrize(
    ("host_us", "fastest"),
    [
        (100, 0.85),  # the step tells the host: what it scatters by anyway
        (40, 0.85),  # 0.85 of it is a step 6 % shorter
        (20, 0.75),  # a step 5 % shorter has three quarters of the host
        (
            5,
            0.65,
        ),  # without any host the step is 5 % shorter: no faster than one that is not known
    ],
)
def test_a_step_that_is_mostly_the_devices_hardly_tells_the_host(host_us: int, fastest: float) -> None:
    found = host_ends(calibrated(waited_for(host_us * 1_000, (100 - host_us) * 1_000)))
    assert found == pytest.approx((fastest, 1.15), abs=0.001)


def test_a_host_that_the_device_hides_is_not_known_unless_its_own_time_was_measured() -> None:
    hidden = replace(calibrated(waited_for(20_000, 80_000)), host_bound=False)
    assert host_ends(hidden) == pytest.approx((0.65, 1.35))
    assert host_ends(replace(hidden, host_told=True)) == pytest.approx((0.85, 1.15))
