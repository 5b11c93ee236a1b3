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
