"""How fast the GPU itself ran, by the kernels that two recordings share."""

from __future__ import annotations

import pytest

from foretrace.compare.device_speed import slowed

Kernels = dict[tuple[str, str, str], tuple[int, float]]


def kernels(name: str, *, count: int, calls: int, each: float, grid: str = "[8, 1, 1]") -> Kernels:
    return {(f"{name}{number}", grid, "[128, 1, 1]"): (calls, calls * each) for number in range(count)}


def test_the_same_kernels_at_another_speed() -> None:
    """Products of 90 and sums of 10 become 99 and 11: a tenth slower, however often each ran."""
    before = kernels("gemm", count=5, calls=10, each=90) | kernels("add", count=5, calls=10, each=10)
    after = kernels("gemm", count=5, calls=5, each=99) | kernels("add", count=5, calls=20, each=11)
    assert slowed(before, after) == pytest.approx(1.1)
    assert slowed(before, before) == 1


def test_other_kernels_say_nothing_of_the_gpu() -> None:
    """Most of the time is in kernels of one side alone: a change of the program. So are few kernels, or none."""
    shared = kernels("add", count=10, calls=1, each=10)
    before, after = kernels("gemm", count=1, calls=1, each=900), kernels("fused", count=1, calls=1, each=500)
    assert slowed(before | shared, after | kernels("add", count=10, calls=1, each=20)) == 1
    assert slowed(kernels("gemm", count=9, calls=1, each=9), kernels("gemm", count=9, calls=1, each=5)) == 1
    assert slowed({}, {}) == 1


def test_a_grid_of_another_size_is_another_kernel() -> None:
    larger = kernels("gemm", count=10, calls=1, each=180, grid="[16, 1, 1]")
    assert slowed(kernels("gemm", count=10, calls=1, each=90), larger) == 1
