"""unfused-attention: scores in memory, and what else goes with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnose.kernels import ADD, Op, device_bound

from foretrace.diagnose.rules.fusion.unfused_attention import unfused_attention
from tests.diagnose.loops import findings

HEADS, LENGTH, WIDTH = 64, 2048, 64
BF16, FP32 = "c10::BFloat16", "float"
Q, KT, S = [HEADS, LENGTH, WIDTH], [HEADS, WIDTH, LENGTH], [HEADS, LENGTH, LENGTH]
S4, MASK = [4, 16, LENGTH, LENGTH], [LENGTH, LENGTH]
SCORES = HEADS * LENGTH * LENGTH


def softmax(shape: list[int], dur: float, dtype: str = BF16, dim: int = -1) -> Op:
    return Op("aten::_softmax", "softmax_warp_forward", dur, [shape, [], []], [dtype, "Scalar", "Scalar"],
              inputs=["", str(dim), "False"])  # fmt: skip


def multiply(left: list[int], right: list[int], dur: float, dtype: str = BF16, **told: object) -> Op:
    return Op("aten::bmm", "gemm", dur, [left, right], [dtype, dtype], told=dict(told))


def attention(dur: float, dtype: str = BF16, *between: Op) -> list[Op]:
    """Scores, softmax and context, of this many microseconds each."""
    made, summed = multiply(Q, KT, dur, dtype), multiply(S, Q, dur, dtype)
    return [made, *between, softmax(S, dur, dtype), summed]


def fused_us(scores: float = SCORES, width: int = WIDTH) -> float:
    """4·B·H·T·T·d operations at 84 % of the H200's 989 TFLOP/s, and an exponential each at a sixteenth of 66.9.

    1,024 blocks of 128 rows in eight waves of 132, with 1.25 µs each before and behind.
    """
    full = 8 * 132 / 1024
    return scores * full * (4 * width / (0.84 * 989e12) + 16 / 66.9e12) * 1e6 + 8 * 1.25 + 2.5


def rest(dur: float) -> Op:
    return Op("aten::add", ADD, dur, [[1 << 20]], [BF16])


def linear(left: list[int], right: list[int], dur: float) -> Op:
    return Op("aten::mm", "gemm", dur, [left, right], [BF16, BF16], ("aten::linear", "aten::matmul"))


def after_us(folder: Path, ops: list[Op]) -> float:
    (found,) = findings(unfused_attention, device_bound(folder, ops), step_us=sum(op.dur for op in ops))
    assert found.predicted
    return found.predicted.after_ns.point / 1e3


def test_three_kernels_become_one_at_its_rate(tmp_path: Path) -> None:
    assert after_us(tmp_path, [*attention(1_000), rest(1_000)]) == pytest.approx(1_000 + fused_us(), rel=0.03)


def test_copies_of_the_heads_and_of_the_result_and_the_mask_go_too(tmp_path: Path) -> None:
    """A mask cut in the step is causal: half of the work, and 256 columns along the diagonal."""
    copy = Op("aten::copy_", ADD, 300, [[4, 16, LENGTH, WIDTH], [4, 16, LENGTH, WIDTH], []], [BF16, BF16])
    grouped = [4, 4, 4, LENGTH, WIDTH]
    repeated = Op("aten::copy_", ADD, 300, [grouped, grouped, []], [BF16, BF16])
    mask = Op("aten::triu", ADD, 200, [MASK, []], ["bool", "Scalar"])
    output = Op("aten::copy_", ADD, 400, [[4, LENGTH, 16, WIDTH], [4, LENGTH, 16, WIDTH], []], [BF16, BF16])
    after = after_us(tmp_path, [copy, repeated, mask, *attention(1_000), output, rest(1_000)])
    causal = 0.5 * (1 + 256 / LENGTH)
    assert after == pytest.approx(1_000 + fused_us(causal * SCORES), rel=0.03)


@pytest.mark.parametrize(
    ("mask", "work"),
    [
        (MASK, 0.5625),
        ([4, 1, LENGTH, LENGTH], 0.5625),
        ([1, 16, LENGTH, LENGTH], 1.5),
        ([4, 1, 1, LENGTH], 1.5),
    ],
    ids=["causal", "causal for each of the batch", "a bias for each head", "padding"],
)
def test_what_lies_beside_the_scores_tells_the_mask(tmp_path: Path, mask: list[int], work: float) -> None:
    added = Op("aten::add", ADD, 1_000, [S4, mask, []], [BF16, BF16, "Scalar"])
    ops = [multiply(Q, KT, 1_000), added, softmax(S4, 1_000), multiply(S, Q, 1_000), rest(1_000)]
    assert after_us(tmp_path, ops) == pytest.approx(1_000 + fused_us(work * SCORES), rel=0.04)


def test_a_softmax_written_out_and_its_gradient(tmp_path: Path) -> None:
    """exp, sum and div instead of a softmax; backward the product that makes scores again stands for the kernel."""
    written = [
        Op("aten::exp", ADD, 1_000, [S], [BF16]),
        Op(
            "aten::sum",
            ADD,
            500,
            [S, [], [], []],
            [BF16, "ScalarList", "Scalar", ""],
            inputs=["", "[-1]", "True", ""],
        ),
        Op("aten::div", ADD, 1_000, [S, [HEADS, LENGTH, 1]], [BF16, BF16]),
    ]
    back = {"Sequence number": 3, "Fwd thread id": 1}
    ops = [multiply(Q, KT, 1_000), *written, multiply(S, Q, 1_000), rest(1_000)]
    ops += [multiply(Q, KT, 1_000, **back), Op("aten::mul", ADD, 1_000, [S, S], [BF16, BF16], told=back)]
    back_us = SCORES * (10 * WIDTH / (0.6 * 989e12) + 32 / 66.9e12) * 1e6 + 10
    back_us += 2 * 2 * HEADS * WIDTH * 4 * LENGTH / (0.8 * 4.8e12) * 1e6
    assert after_us(tmp_path, ops) == pytest.approx(1_000 + fused_us() + back_us, rel=0.04)


def test_single_precision_has_no_tensor_cores(tmp_path: Path) -> None:
    ops = [*attention(10_000, FP32), rest(1_000)]
    fused = 4 * SCORES * WIDTH / (0.55 * 66.9e12) * 1e6
    assert after_us(tmp_path, ops) == pytest.approx(1_000 + fused, rel=0.03)


def test_heads_raised_to_single_precision_for_the_products_come_in_half(tmp_path: Path) -> None:
    raised = Op("aten::copy_", ADD, 300, [[4, 16, LENGTH, WIDTH], [4, 16, LENGTH, WIDTH], []], [FP32, BF16])
    ops = [raised, *attention(10_000, FP32), rest(1_000)]
    assert after_us(tmp_path, ops) == pytest.approx(1_000 + fused_us(), rel=0.03)


def test_one_token_a_step_still_reads_all_keys_and_values(tmp_path: Path) -> None:
    """Tq is 1: 1 GB of keys and values at 80 % of 4.8 TB/s."""
    heads, length = 1024, 4096
    q, kt, s = [heads, 1, WIDTH], [heads, WIDTH, length], [heads, 1, length]
    ops = [multiply(q, kt, 500), softmax(s, 200), multiply(s, [heads, length, WIDTH], 500), rest(1_000)]
    moved_us = 2 * 2 * heads * (length + 1) * WIDTH / (0.8 * 4.8e12) * 1e6
    assert after_us(tmp_path, ops) == pytest.approx(1_000 + moved_us + 4, rel=0.03)


def test_one_head_of_one_sample(tmp_path: Path) -> None:
    """Two dimensions: told from a classifier by the product that sums the probabilities up."""
    length = 16384
    q, kt, s = [length, WIDTH], [WIDTH, length], [length, length]
    products = [
        Op("aten::mm", "gemm", 1_000, sides, [BF16, BF16], ("aten::matmul",)) for sides in ([q, kt], [s, q])
    ]
    ops = [products[0], softmax(s, 1_000), products[1], rest(1_000)]
    assert after_us(tmp_path, ops) == pytest.approx(1_000 + fused_us(length * length), rel=0.03)


def test_scores_that_are_sums_of_products_are_not_promised(tmp_path: Path) -> None:
    """A second product for the positions, as in Transformer-XL: it would stay, as a bias."""
    added = Op("aten::add", ADD, 1_000, [S, S, []], [BF16, BF16, "Scalar"])
    ops = [multiply(Q, KT, 1_000), *attention(1_000, BF16, added)]
    (found,) = findings(unfused_attention, device_bound(tmp_path, ops), step_us=5_000)
    assert found.predicted
    assert found.predicted.verdict == "uncertain"


@pytest.mark.parametrize(
    "ops",
    [
        [attention(1_000)[0], rest(1_000)],
        [multiply(Q, KT, 1_000), softmax(S, 1_000), rest(1_000)],  # nothing sums the probabilities up
        # Linear attention: queries are normalised before they meet anything, and the next layer looks the same.
        [linear([8192, 1024], [1024, 3072], 500), softmax(Q, 1_000), multiply(KT, Q, 1_000),
         multiply(Q, [HEADS, WIDTH, WIDTH], 1_000), linear([8192, 1024], [1024, 3072], 500), softmax(Q, 1_000),
         multiply(KT, Q, 1_000), multiply(Q, [HEADS, WIDTH, WIDTH], 1_000)],
        # Heads mixed between: no fused kernel does that.
        [multiply(Q, KT, 1_000), Op("aten::mm", "gemm", 1_000, [[SCORES // 16, 16], [16, 16]], [BF16, BF16]),
         softmax(S, 1_000), multiply(S, Q, 1_000)],
        # Over channels: [d, T] times [T, d], wider than any head.
        [multiply(KT, Q, 1_000), softmax([HEADS, WIDTH, WIDTH], 1_000), multiply([HEADS, WIDTH, WIDTH], KT, 1_000)],
        # Slots: normalised along one side, summed along the other.
        [multiply(Q, [HEADS, WIDTH, 16], 1_000), softmax([HEADS, LENGTH, 16], 1_000),
         multiply([HEADS, 16, LENGTH], Q, 1_000)],
        # A classifier and what multiplies by a weight behind it.
        [linear([8192, 1024], [1024, 8192], 1_000), softmax([8192, 8192], 1_000),
         Op("aten::mm", "gemm", 1_000, [[8192, 8192], [8192, 1024]], [BF16, BF16])],
    ],
    ids=["no softmax", "not summed", "linear", "mixed heads", "channels", "slots", "classifier"],
)  # fmt: skip
def test_what_no_fused_kernel_does(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(unfused_attention, device_bound(tmp_path, ops), step_us=sum(op.dur for op in ops)) == []


@pytest.mark.parametrize("shape", [[4, 16, LENGTH, WIDTH], Q], ids=["heads apart", "heads and batch as one"])
def test_queries_scaled_beforehand_need_not_be(tmp_path: Path, shape: list[int]) -> None:
    """The fused kernel scales the scores. A product of two tensors of that shape is something else."""
    scaled = Op("aten::mul", ADD, 300, [shape, []], [BF16, "double"])
    gated = Op("aten::mul", ADD, 300, [shape, shape], [BF16, BF16])
    after = after_us(tmp_path, [scaled, gated, *attention(1_000), rest(1_000)])
    assert after == pytest.approx(1_300 + fused_us(), rel=0.03)
