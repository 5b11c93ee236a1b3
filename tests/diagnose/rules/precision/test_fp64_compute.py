"""Products in fp64: worth what products of their size take in fp32, or perhaps in TF32."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.precision.fp64_compute import fp64_compute
from tests.diagnose.kernels import Op, device_bound
from tests.diagnose.loops import findings

SHAPES = [[4096, 4096], [4096, 4096]]
TF32_US = (
    2 * 4096**3 / (494.7e12 * 0.84 * 1024 / (8 * 132)) * 1e6 + 4 * 4096**2 / 4.8e12 * 1e6 + 2
)  # 1,024 tiles in eight waves, and the result written


def test_fp64_is_worth_half_of_every_kernel_and_perhaps_tf32(tmp_path: Path) -> None:
    """2,700 µs of a product are as long in fp32 on the CUDA cores; 1,000 µs of an addition become 500."""
    dgemm = "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_128x64_16x3_nn_align1>"
    add = "void at::native::vectorized_elementwise_kernel<2, at::native::CUDAFunctor_add<double>>"
    ops = [Op("aten::mm", dgemm, 2700, SHAPES, ["double", "double"]), Op("aten::add", add, 1000)]
    (found,) = findings(fp64_compute, device_bound(tmp_path, ops), step_us=3700)
    assert "fp64" in found.says
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(3200, rel=0.02)
    assert found.predicted.speedup.high > 0.99 * 3700 / (TF32_US + 500)
