"""unfused-attention: scores in memory, and what else goes with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnose.kernels import ADD, Op, device_bound

from foretrace.diagnose.unfused_attention import unfused_attention
from tests.diagnose.loops import findings

HEADS, LENGTH, WIDTH = 64, 2048, 64
BF16 = "c10::BFloat16"
Q, KT, S = [HEADS, LENGTH, WIDTH], [HEADS, WIDTH, LENGTH], [HEADS, LENGTH, LENGTH]


def attention(dur: float) -> list[Op]:
    """Scores, softmax and context, of this many microseconds each."""
    return [
        Op("aten::bmm", "gemm", dur, [Q, KT], [BF16, BF16]),
        Op("aten::_softmax", "softmax_warp_forward", dur, [S, [], []], [BF16, "Scalar", "Scalar"]),
        Op("aten::bmm", "gemm", dur, [S, Q], [BF16, BF16]),
    ]


def fused_us() -> float:
    """4·B·H·T·T·d operations at 55 % of the H200's 989 TFLOP/s."""
    return 4 * HEADS * LENGTH * LENGTH * WIDTH / (0.55 * 989e12) * 1e6


def rest(dur: float) -> Op:
    return Op("aten::add", ADD, dur, [[1 << 20]], [BF16])


def test_three_kernels_become_one_at_its_rate(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [*attention(1_000), rest(1_000)])
    (found,) = findings(unfused_attention, trace, step_us=4_000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_000 + fused_us(), rel=0.03)


def test_copies_of_the_heads_and_the_mask_go_too(tmp_path: Path) -> None:
    copy = Op("aten::copy_", ADD, 300, [[4, 16, LENGTH, WIDTH], [4, 16, LENGTH, WIDTH], []], [BF16, BF16])
    mask = Op("aten::triu", ADD, 200, [[LENGTH, LENGTH], []], ["bool", "Scalar"])
    output = Op("aten::copy_", ADD, 400, [[4, LENGTH, 16, WIDTH], [4, LENGTH, 16, WIDTH], []], [BF16, BF16])
    trace = device_bound(tmp_path, [copy, mask, *attention(1_000), output, rest(1_000)])
    (found,) = findings(unfused_attention, trace, step_us=4_900)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_400 + fused_us(), rel=0.03)


def test_a_matrix_product_without_softmax_is_no_attention(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [attention(1_000)[0], rest(1_000)])
    assert findings(unfused_attention, trace, step_us=2_000) == []
