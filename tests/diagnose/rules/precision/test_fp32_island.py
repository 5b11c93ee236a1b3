"""Layers in fp32 within a program of half precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.precision.fp32_island import fp32_island
from tests.diagnose.casts import BF16, FP32, cast
from tests.diagnose.kernels import ADD, Op, device_bound
from tests.diagnose.loops import findings


def test_layers_in_fp32_within_a_bf16_model_are_found_and_not_promised(tmp_path: Path) -> None:
    """Two casts of 100 µs, a product in fp32 and what scales its result: the casts go, the rest is half as much."""
    left, right = [8192, 4096], [4096, 4096]
    product = Op("aten::mm", "sgemm", 8_000, [left, right], [FP32, FP32], ("aten::linear",))
    scaled = Op("aten::mul", ADD, 200, [left, []], [FP32, "double"])
    other = Op("aten::mm", "gemm", 1_000, [left, right], [BF16, BF16])
    trace = device_bound(tmp_path, [other, cast(BF16, FP32), product, scaled, cast(FP32, BF16)])
    (found,) = findings(fp32_island, trace, step_us=9_400)
    tiles, waves = 64 * 32, 16  # of 132 blocks each
    in_bf16 = (
        2 * 8192 * 4096 * 4096 / (989e12 * 0.84 * tiles / (waves * 132)) * 1e6
        + 2 * 8192 * 4096 / 4.8e12 * 1e6
        + 2
    )
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_000 + in_bf16 + 110, rel=0.02)
    assert found.predicted.verdict == "uncertain"


def test_work_in_half_precision_between_casts_is_no_layer_in_fp32(tmp_path: Path) -> None:
    product = Op("aten::mm", "gemm", 2_000, [[4096, 4096], [4096, 4096]], [BF16, BF16])
    assert findings(fp32_island, device_bound(tmp_path, [cast(BF16, FP32), product, cast(FP32, BF16)])) == []
