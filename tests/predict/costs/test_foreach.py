"""Multi-tensor launches: as many as their arguments take, each with its share of the tensors."""

from __future__ import annotations

import pytest

from foretrace.hardware import match
from foretrace.predict.costs.foreach import launches, moving_ns


@pytest.mark.parametrize(("tensors", "count"), [(1, 1), (40, 1), (41, 2), (160, 4)])
def test_a_launch_takes_forty_tensors(tensors: int, count: int) -> None:
    of_all = launches(tensors, 8_000)
    assert of_all.count == count
    assert of_all.device_ns == 8_000 // count
    # 1 µs for each tensor and 10 µs for each launch.
    assert of_all.count * of_all.host_ns == pytest.approx(tensors * 1_000 + count * 10_000, abs=count)


def test_moments_move_at_three_quarters_of_the_bandwidth() -> None:
    h200 = match("NVIDIA H200")
    assert h200
    assert moving_ns(h200, 3.6e9) == pytest.approx(1e6, rel=1e-6)  # 4.8 TB/s
