"""Convolutions as products: their sizes from recorded shapes, and their time on the tensor cores."""

from __future__ import annotations

import json

import pytest

from foretrace.hardware import match
from foretrace.predict.costs.convolution import Size, groups, size, time_ns

FORWARD = json.dumps([[8, 64, 32, 32], [128, 64, 3, 3], [], [], [], [], [], [], []])
BACKWARD = json.dumps([[8, 128, 16, 16], [8, 64, 32, 32], [128, 64, 3, 3], [], []])
POSITIONS, GIVEN_POSITIONS = 8 * 16 * 16, 8 * 32 * 32
FLOPS = 2 * POSITIONS * 128 * 64 * 9


def test_a_convolution_is_known_by_its_channels_its_filter_and_its_positions() -> None:
    assert size("aten::cudnn_convolution", FORWARD, FLOPS) == Size(
        64, 128, 9, POSITIONS, GIVEN_POSITIONS, False
    )
    both = size("aten::convolution_backward", BACKWARD, 2 * FLOPS)
    assert both == Size(64, 128, 9, POSITIONS, GIVEN_POSITIONS, True)


def test_convolutions_in_groups_and_unknown_shapes_have_no_size() -> None:
    depthwise = json.dumps([[8, 64, 32, 32], [64, 1, 7, 7], [], []])
    assert size("aten::cudnn_convolution", depthwise, FLOPS) is None
    turned = json.dumps([[8, 64, 32, 32], [64, 32, 2, 2], [], []])
    assert size("aten::cudnn_convolution", turned, FLOPS) is None
    assert size("aten::cudnn_convolution_transpose", turned, FLOPS) is not None
    assert size("aten::cudnn_convolution", None, FLOPS) is None


def test_gradients_are_two_products_and_planar_tensors_are_converted() -> None:
    h200 = match("NVIDIA H200")
    assert h200
    large = Size(512, 512, 9, 2**17, 2**17, False)
    flops = 2 * 2**17 * 512 * 512 * 9
    # 1,024 x 4 tiles of 128 x 128 in 32 waves, or half as many of twice the size.
    assert time_ns(h200, "bf16", large, planar=False) == pytest.approx(
        flops / (989e12 * 0.7 * 4096 / (32 * 132)) * 1e9 + 6_500, rel=0.01
    )
    moved = 2 * (2 * 512 * 2**17 + 512 * 512 * 9) / (4.8e12 * 0.8) * 1e9
    converted = time_ns(h200, "bf16", large, planar=True) - time_ns(h200, "bf16", large, planar=False)
    assert converted == pytest.approx(2.5 * moved + 10_000, rel=0.01)
    both = time_ns(h200, "bf16", Size(512, 512, 9, 2**17, 2**17, True), planar=False)
    assert both > 2 * time_ns(h200, "bf16", large, planar=False)


def test_few_channels_leave_most_of_a_tile_idle() -> None:
    h200 = match("NVIDIA H200")
    assert h200
    few = time_ns(h200, "tf32", Size(64, 4, 9, 2**20, 2**20, False), planar=False)
    computing = 2 * 2**20 * 4 * 64 * 9 / (494e12 * 0.7 * 4 / 128) * 1e9
    assert few == pytest.approx(computing + 6_500, rel=0.01)


def grouped(channels: int, filter_length: int, count: int) -> str:
    made = channels * count
    return json.dumps([[8, made, 1, 499], [made, channels, 1, filter_length], [], []])


@pytest.mark.parametrize(
    ("channels", "filter_length", "now_us", "half_us"),
    [(48, 128, 763.7, 12_841.6), (64, 128, 813.9, 435.7), (48, 19, 91.9, 66.5), (64, 9, 34.8, 34.6)],
)
def test_groups_gain_in_half_precision_unless_cudnn_has_no_kernel(
    channels: int, filter_length: int, now_us: float, half_us: float
) -> None:
    """TF32 and bf16 as `benchmarks/products.py --layers` measured them: gains within half, and what takes longer within a quarter."""
    found = groups(grouped(channels, filter_length, 16))
    assert found
    flops = 2 * 8 * 749 * 16 * channels**2 * filter_length
    predicted_us = found.half_ns(now_us * 1e3, flops) / 1e3
    slower = half_us > now_us
    assert (predicted_us > now_us) == slower
    assert predicted_us == pytest.approx(half_us, rel=0.25 if slower else 0.5)


def test_the_gradients_of_groups_gain() -> None:
    backward = json.dumps([[8, 768, 499], [8, 768, 499], [768, 48, 128], [], []])
    found = groups(backward)
    assert found
    assert found.half_ns(1_000, 1e12) == pytest.approx(500)


def test_single_channels_whole_convolutions_and_unknown_shapes_are_no_groups() -> None:
    for shapes in (
        [[8, 64, 32, 32], [64, 1, 7, 7], []],
        [[8, 64, 32, 32], [128, 64, 3, 3], []],
        [[8, 64]],
        [],
    ):
        assert groups(json.dumps(shapes)) is None
    assert groups(None) is None
