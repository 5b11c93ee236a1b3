"""How fast the GPU itself ran, by the kernels that two recordings share."""

from __future__ import annotations

import pytest

from foretrace.compare.device_speed import slowed

GEMM, ADD, FUSED = ("gemm", "[8, 1, 1]", "[128, 1, 1]"), ("add", "[4, 1, 1]", "[64, 1, 1]"), ("fused", "", "")


def test_the_same_kernels_at_another_speed() -> None:
    """Ten products of 90 and ten sums of 10 become 99 and 11: a tenth slower, however often each ran."""
    before = {GEMM: (10, 900.0), ADD: (10, 100.0)}
    assert slowed(before, {GEMM: (5, 495.0), ADD: (20, 220.0)}) == pytest.approx(1.1)
    assert slowed(before, before) == 1


def test_other_kernels_say_nothing_of_the_gpu() -> None:
    """Most of the time is in kernels of one side alone: a change of the program."""
    assert slowed({GEMM: (1, 900.0), ADD: (1, 100.0)}, {FUSED: (1, 500.0), ADD: (1, 200.0)}) == 1
    assert slowed({}, {}) == 1


def test_a_grid_of_another_size_is_another_kernel() -> None:
    assert slowed({GEMM: (1, 900.0)}, {(GEMM[0], "[16, 1, 1]", GEMM[2]): (1, 1800.0)}) == 1
