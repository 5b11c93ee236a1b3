"""Batch norm in bf16 over planar tensors: as long as one block takes for a channel, or as all of it takes to move."""

from __future__ import annotations

import json

import pytest

from foretrace.hardware import match
from foretrace.predict.costs.batch_norm import Size, size, time_ns


def test_sizes_are_of_the_first_tensor() -> None:
    assert size(json.dumps([[8, 64, 120, 120], [64], []])) == Size(64, 8 * 120 * 120, 120 * 120)
    assert size(json.dumps([[8, 64, 4, 6, 6]])) == Size(64, 8 * 144, 144)
    assert size(json.dumps([[64]])) is None
    assert size("") is None
    assert size(None) is None


@pytest.mark.parametrize(
    ("plane", "padded"),
    [(32 * 32, 1.0), (28 * 28, 1024 / 784), (14 * 14, 256 / 196), (7 * 7, 64 / 49), (9, 32 / 9)],
)
def test_threads_go_along_a_plane_in_powers_of_two(plane: int, padded: float) -> None:
    assert Size(64, 8 * plane, plane).padded == pytest.approx(padded)


# Medians of recordings on an H200: torchvision's DeepLabV3 and set i's shelf_photos, in bf16.
@pytest.mark.parametrize(
    ("shape", "backward", "measured_us"),
    [
        ((8, 64, 240, 240), True, 809), ((64, 64, 112, 112), True, 1406), ((8, 2048, 60, 60), True, 274),
        ((64, 512, 28, 28), True, 154), ((8, 256, 120, 120), True, 229), ((8, 64, 240, 240), False, 379 + 58),
        ((64, 256, 56, 56), False, 191 + 122), ((64, 512, 28, 28), False, 66 + 68),
    ],
)  # fmt: skip
def test_as_measured(shape: tuple[int, ...], backward: bool, measured_us: float) -> None:
    h200, normed = match("NVIDIA H200"), size(json.dumps([shape]))
    assert h200
    assert normed
    assert time_ns(h200, normed, backward=backward) / 1e3 == pytest.approx(measured_us, rel=0.2)


def test_few_channels_take_as_long_as_many_and_statistics_are_for_training() -> None:
    h200 = match("NVIDIA H200")
    assert h200
    few, many = Size(32, 2**20, 2**14), Size(128, 2**20, 2**14)
    assert time_ns(h200, few, backward=True) == time_ns(h200, many, backward=True)
    assert time_ns(h200, few, backward=False, trains=False) < 0.3 * time_ns(h200, few, backward=False)
