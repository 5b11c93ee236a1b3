"""Fused attention takes what it was measured to take."""

from __future__ import annotations

import pytest

from foretrace.hardware import match
from foretrace.predict.costs.attention import Mask, Size, time_ns

NONE, CAUSAL, READ = Mask


@pytest.mark.parametrize(
    ("scores", "width", "backward", "mask", "measured_us"),
    [
        ((2048, 49, 49), 64, False, NONE, 39.5), ((2048, 42, 42), 32, False, NONE, 39.0), ((512, 256, 256), 64, False, NONE, 30.4),
        ((512, 577, 577), 64, False, NONE, 165.4), ((512, 1024, 1024), 64, False, NONE, 350.3), ((64, 1024, 1024), 64, False, NONE, 43.1),
        ((128, 2048, 2048), 128, False, NONE, 495.6), ((256, 1024, 1024), 64, False, CAUSAL, 115.3), ((768, 512, 512), 64, False, READ, 211.7),
        ((128, 1, 2050), 128, False, NONE, 39.4), ((512, 256, 256), 64, True, NONE, 119.0), ((512, 1024, 1024), 64, True, NONE, 995.7),
        ((256, 1024, 1024), 64, True, CAUSAL, 370.8), ((128, 1024, 1024), 128, True, CAUSAL, 313.6), ((2048, 42, 42), 32, True, NONE, 76.3),
    ],
)  # fmt: skip
def test_fused_kernels_take_what_they_took_on_an_h200(
    scores: tuple[int, int, int], width: int, backward: bool, mask: Mask, measured_us: float
) -> None:
    h200 = match("NVIDIA H200")
    assert h200
    size = Size(*scores, width, half=True)
    assert time_ns(h200, size, backward=backward, mask=mask) / 1e3 == pytest.approx(measured_us, rel=0.21)


@pytest.mark.parametrize(
    ("scores", "width", "half", "mask", "forward_us", "both_us"),
    [
        ((320, 512, 512), 24, False, NONE, 572.4, 1986.4), ((192, 512, 512), 32, False, NONE, 345.3, 1219.0),
        ((32, 2048, 2048), 64, False, NONE, 1032.1, 3530.0), ((320, 512, 512), 24, False, READ, 697.1, 2174.3),
        ((16, 8192, 8192), 64, False, READ, 10103.9, 31664.7), ((128, 512, 512), 64, True, READ, 59.1, 181.5),
        ((32, 2048, 2048), 64, True, READ, 167.8, 515.4), ((16, 8192, 8192), 64, True, READ, 1213.3, 3801.0),
    ],
)  # fmt: skip
def test_heads_are_filled_up_and_masks_take_other_kernels(
    scores: tuple[int, int, int], width: int, half: bool, mask: Mask, forward_us: float, both_us: float
) -> None:
    """As `benchmarks/products.py --layers` measured them on an H200."""
    h200 = match("NVIDIA H200")
    assert h200
    size = Size(*scores, width, half)
    forward, backward = (time_ns(h200, size, backward=part, mask=mask) / 1e3 for part in (False, True))
    assert forward == pytest.approx(forward_us, rel=0.2)
    assert forward + backward == pytest.approx(both_us, rel=0.2)
