"""spelled-out-operators: formulas that torch has as one operator, on a slow host."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.fusion.spelled_out_operators import spelled_out_operators
from foretrace.diagnose.rules.fusion.unfused_elementwise import unfused_elementwise
from tests.diagnose.kernels import ADD, Op, device_bound
from tests.diagnose.loops import findings

GEMM = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
NAMES = ("mul", "pow", "mul", "add", "mul", "tanh", "add", "mul")


def matmul(dur: float) -> Op:
    return Op("aten::mm", GEMM, dur, [[4096, 4096], [4096, 4096]], ["c10::BFloat16", "c10::BFloat16"])


def gelu(dur: float, count: int) -> list[Op]:
    return [Op(f"aten::{name}", ADD, dur, [[count], []], ["float", "Scalar"]) for name in NAMES]


def test_on_the_host_what_torch_has_as_one_operator_costs_one(tmp_path: Path) -> None:
    """GELU in eight operators of 20 µs and a product: two operators are left. The compiler's graph costs 80 µs to enter."""
    trace = device_bound(tmp_path, [*gelu(5, 1 << 16), matmul(5)])
    (found,) = findings(spelled_out_operators, trace, step_us=9 * 20)
    assert "F.gelu" in found.fix.code
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(2 * 20, rel=0.1)
    assert found.predicted.after_ns.high / 1e3 > 2 * 20 + 80


def test_beside_it_the_compiler_is_a_finding_of_its_own(tmp_path: Path) -> None:
    """Of nine operators of 16 µs and a call of 4, two are left: each at 0.8, 80 µs to enter, and the product's guards."""
    trace = device_bound(tmp_path, [*gelu(5, 1 << 16), matmul(5)])
    (found,) = findings(unfused_elementwise, trace, step_us=9 * 20)
    assert "torch.compile" in found.fix.code
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(2 * (0.8 * 16 + 4) + 80 + 0.3 * 16, rel=0.05)


def test_where_the_gpu_is_the_limit_only_the_compiler_is_advised(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [*gelu(140, 1 << 26), matmul(500)])
    assert findings(spelled_out_operators, trace, step_us=8 * 140 + 500) == []
    (found,) = findings(unfused_elementwise, trace, step_us=8 * 140 + 500)
    assert found.predicted
    assert found.predicted.verdict == "gain"
