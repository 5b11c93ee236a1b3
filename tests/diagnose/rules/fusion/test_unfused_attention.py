"""unfused-attention: scores in memory, and what else goes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace.diagnose.finding import Finding
from foretrace.diagnose.rules.fusion.unfused_attention import unfused_attention
from tests.builders import Recording
from tests.diagnose.kernels import ADD, H200, Op, device_bound
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


def masked_us(scores: float = SCORES, width: int = WIDTH) -> float:
    """The same operations at 23.5 % of the peak, 10 µs to make a bias of the mask, and 2.5 µs to launch."""
    return scores * 4 * width / (0.235 * 989e12) * 1e6 + 10 + 2.5


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
    ("mask", "fused"),
    [
        (MASK, fused_us(0.5625 * SCORES)),
        ([4, 1, LENGTH, LENGTH], fused_us(0.5625 * SCORES)),
        ([1, 16, LENGTH, LENGTH], masked_us()),
        ([4, 1, 1, LENGTH], masked_us()),
    ],
    ids=["causal", "causal for each of the batch", "a bias for each head", "padding"],
)
def test_what_lies_beside_the_scores_tells_the_mask(tmp_path: Path, mask: list[int], fused: float) -> None:
    added = Op("aten::add", ADD, 1_000, [S4, mask, []], [BF16, BF16, "Scalar"])
    ops = [multiply(Q, KT, 1_000), added, softmax(S4, 1_000), multiply(S, Q, 1_000), rest(1_000)]
    assert after_us(tmp_path, ops) == pytest.approx(1_000 + fused, rel=0.04)


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
    back: dict[str, Any] = {"Sequence number": 3, "Fwd thread id": 1}
    ops = [multiply(Q, KT, 1_000), *written, multiply(S, Q, 1_000), rest(1_000)]
    ops += [multiply(Q, KT, 1_000, **back), Op("aten::mul", ADD, 1_000, [S, S], [BF16, BF16], told=back)]
    back_us = SCORES * (10 * WIDTH / (0.6 * 989e12) + 32 / 66.9e12) * 1e6 + 10
    back_us += 2 * 2 * HEADS * WIDTH * 4 * LENGTH / (0.8 * 4.8e12) * 1e6
    assert after_us(tmp_path, ops) == pytest.approx(1_000 + fused_us() + back_us, rel=0.04)


def test_single_precision_has_no_tensor_cores(tmp_path: Path) -> None:
    ops = [*attention(10_000, FP32), rest(1_000)]
    fused = 4 * SCORES * WIDTH / (0.51 * 66.9e12) * 1e6
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


@pytest.mark.slow
@pytest.mark.parametrize("shape", [[4, 16, LENGTH, WIDTH], Q], ids=["heads apart", "heads and batch as one"])
def test_queries_scaled_beforehand_need_not_be(tmp_path: Path, shape: list[int]) -> None:
    """The fused kernel scales the scores. A product of two tensors of that shape is something else."""
    scaled = Op("aten::mul", ADD, 300, [shape, []], [BF16, "double"])
    gated = Op("aten::mul", ADD, 300, [shape, shape], [BF16, BF16])
    after = after_us(tmp_path, [scaled, gated, *attention(1_000), rest(1_000)])
    assert after == pytest.approx(1_300 + fused_us(), rel=0.03)


def advice(folder: Path, ops: list[Op]) -> Finding:
    (found,) = findings(unfused_attention, device_bound(folder, ops), step_us=sum(op.dur for op in ops))
    return found


def pieces(
    *, before: list[Op] | None = None, behind: list[Op] | None = None, after: list[Op] | None = None
) -> list[Op]:
    """Attention with these operators before the softmax, behind it, and after the product with the values."""
    made, summed = multiply(Q, KT, 1_000), multiply(S, Q, 1_000)
    return [made, *(before or []), softmax(S4, 1_000), *(behind or []), summed, *(after or []), rest(1_000)]


def beside(name: str, mask: list[int], dtype: str = "bool", value: str = "-inf") -> Op:
    return Op(name, ADD, 1_000, [S4, mask, []], [BF16, dtype, "Scalar"], inputs=["", "", value])


SCALE = Op("aten::mul", ADD, 1_000, [S4, []], [BF16, "double"], inputs=["", ""])


def test_without_mask_none_is_advised(tmp_path: Path) -> None:
    found = advice(tmp_path, pieces(before=[SCALE]))
    assert "is_causal" not in found.fix.code
    assert "attn_mask" not in found.fix.code
    assert "scale=scale" in found.fix.code
    assert "math.sqrt(64)" in found.fix.code
    assert found.evidence["mask"] == "none"


def test_scores_that_nothing_scales_are_not_scaled_by_the_fused_kernel_either(tmp_path: Path) -> None:
    assert "scale=1.0" in advice(tmp_path, pieces()).fix.code


def test_a_mask_from_elsewhere_is_passed_on_and_may_be_causal(tmp_path: Path) -> None:
    """masked_fill replaces where its mask is True; attn_mask counts where it is True."""
    found = advice(tmp_path, pieces(before=[SCALE, beside("aten::masked_fill_", MASK)]))
    first, *notes = found.fix.code.split("\n")
    assert first == "y = F.scaled_dot_product_attention(q, k, v, attn_mask=~mask, scale=scale)"
    assert any("is_causal=True instead" in note for note in notes)
    assert found.predicted
    assert found.predicted.verdict == "gain"


@pytest.mark.slow
def test_only_a_triangle_that_the_step_cuts_is_causal_for_certain(tmp_path: Path) -> None:
    def cut(diagonal: str) -> Op:
        return Op("aten::triu", ADD, 200, [MASK, []], ["bool", "Scalar"], inputs=["", diagonal])

    masked = pieces(before=[beside("aten::masked_fill_", MASK)])
    assert "v, is_causal=True" in advice(tmp_path, [cut("1"), *masked]).fix.code
    assert "v, attn_mask=~mask" in advice(tmp_path, [cut("64"), *masked]).fix.code  # a window
    joined = Op("aten::bitwise_and", ADD, 200, [MASK, MASK], ["bool", "bool"])
    assert "v, attn_mask=~mask" in advice(tmp_path, [cut("1"), joined, *masked]).fix.code
    batch = pieces(before=[beside("aten::masked_fill_", [4, 1, LENGTH, LENGTH])])
    assert "v, attn_mask=~mask" in advice(tmp_path, [cut("1"), *batch]).fix.code


def test_padding_is_never_causal(tmp_path: Path) -> None:
    found = advice(tmp_path, pieces(before=[beside("aten::add", [4, 1, 1, LENGTH], FP32, "1")]))
    assert "attn_mask=mask.to(q.dtype)" in found.fix.code
    assert "is_causal" not in found.fix.code
    assert "masked as a whole" in found.unless


@pytest.mark.parametrize(("shapes", "argument"), [([MASK, S4, []], "=mask,"), ([MASK, [], S4], "=~mask,")])
def test_where_keeps_or_replaces_by_the_order_of_its_arguments(
    tmp_path: Path, shapes: list[list[int]], argument: str
) -> None:
    where = Op("aten::where", ADD, 1_000, shapes, ["bool", BF16, BF16])
    assert f"attn_mask{argument}" in advice(tmp_path, pieces(before=[where])).fix.code


def test_dropout_is_passed_on(tmp_path: Path) -> None:
    drop = Op("aten::native_dropout", ADD, 1_000, [S4, [], []], [BF16, "Scalar", "Scalar"],
              inputs=["", "0.10000000000000001", "True"])  # fmt: skip
    assert "dropout_p=0.1 if self.training else 0.0" in advice(tmp_path, pieces(behind=[drop])).fix.code


@pytest.mark.parametrize(
    ("ops", "says"),
    [
        ({"before": [Op("aten::tanh", ADD, 1_000, [S4], [BF16])]}, "aten::tanh"),
        ({"after": [Op("aten::mean", ADD, 1_000, [S4, [], [], []], [BF16])]}, "aten::mean reads the weights"),
        ({"behind": [Op("aten::mul", ADD, 1_000, [S4, [1, 16, 1, 1]], [BF16, BF16])]}, "multiplied"),
        ({"before": [beside("aten::masked_fill_", MASK, value="-5")]}, "become -5"),
    ],
    ids=["soft cap", "weights returned", "mask of heads", "not masked out"],
)
def test_what_a_fused_kernel_does_not_compute_is_not_promised(
    tmp_path: Path, ops: dict[str, list[Op]], says: str
) -> None:
    found = advice(tmp_path, pieces(**ops))
    assert found.predicted
    assert found.predicted.verdict == "uncertain"
    assert says in found.predicted.basis


@pytest.mark.slow
def test_a_soft_cap_is_advised_flex_attention(tmp_path: Path) -> None:
    capped = pieces(before=[Op("aten::tanh", ADD, 1_000, [S4], [BF16])])
    assert "flex_attention" in advice(tmp_path, capped).fix.code


def test_single_precision_is_told_which_kernel_runs(tmp_path: Path) -> None:
    assert (
        "flash attention needs bf16 or fp16"
        in advice(tmp_path, [*attention(10_000, FP32), rest(1_000)]).fix.code
    )


def test_a_written_out_softmax_is_no_change_of_its_weights(tmp_path: Path) -> None:
    written = [
        Op("aten::exp", ADD, 1_000, [S], [BF16]),
        Op("aten::sum", ADD, 500, [S, [], [], []], [BF16], inputs=["", "[-1]", "True", ""]),
        Op("aten::div", ADD, 1_000, [S, [HEADS, LENGTH, 1]], [BF16, BF16]),
    ]
    found = advice(tmp_path, [multiply(Q, KT, 1_000), *written, multiply(S, Q, 1_000), rest(1_000)])
    assert found.predicted
    assert found.predicted.verdict == "gain"


def called_from(folder: Path, frame: str) -> Finding:
    """What is found of attention in pieces that this frame calls."""
    recording = Recording(deviceProperties=[H200])
    for number in range(3):
        at = number * 5_000.0
        recording.step(number, at, at + 5_000)
        recording.python("train.py(3): main", at, at + 5_000)
        recording.python(frame, at + 1, at + 4_000)
        for place, op in enumerate((*attention(1_000), rest(1_000))):
            start = at + 10 + place * 20
            told = {"Input Dims": op.shapes, "Input type": op.dtypes}
            recording.op(
                op.name, start, start + 20, **told, **({"Concrete Inputs": op.inputs} if op.inputs else {})
            )
            begin = at + 100 + place * 1_000
            recording.launch(start + 2, op.kernel, begin, begin + 1_000, call=4)
    (found,) = findings(unfused_attention, recording.open(folder), step_us=5_000)
    return found


def test_multihead_attention_is_asked_for_no_weights(tmp_path: Path) -> None:
    """The softmax is called from torch's own function: with need_weights=False it calls fused attention itself."""
    found = called_from(tmp_path, "torch/nn/functional.py(6000): multi_head_attention_forward")
    assert "need_weights=False" in found.fix.code
    assert "scaled_dot_product_attention(" not in found.fix.code
    other = called_from(tmp_path, "torch/nn/modules/activation.py(1500): forward")
    assert "need_weights=False" not in other.fix.code  # nn.Softmax is in that file too


def test_a_model_of_transformers_is_told_its_own_switch(tmp_path: Path) -> None:
    """The softmax is called from transformers' file: the code there is not the user's to change."""
    found = called_from(tmp_path, "transformers/models/gpt2/modeling_gpt2.py(40): forward")
    assert 'attn_implementation="sdpa"' in found.fix.code
    assert "scaled_dot_product_attention(" not in found.fix.code
