"""Recorded steps compiled: what is fused, what stays, the loss, and the layout of convolutions."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.hardware import match
from foretrace.predict.compiler.steps import CompiledStep, compiled_steps
from tests.diagnose.kernels import ADD, CAST, STEPS, Op, device_bound

GEMM = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
CONVERSION = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>"
ROWS, WIDTH = 4096, 4096
BACKWARD = ("autograd::engine::evaluate_function: AddBackward0",)


def compiled(folder: Path, ops: list[Op], *, masks: bool = False) -> list[CompiledStep]:
    trace = device_bound(folder, ops)
    device = match("NVIDIA H200")
    assert device
    return compiled_steps(trace, Case(trace).tasks_with("phase"), device, masks=masks)


def attention(*, causal: bool = False, bias: bool = False) -> Op:
    """16 heads of 64 values, 8,192 tokens, in half precision."""
    heads = [1, 16, 8192, 64]
    shapes = [heads, heads, heads, [1, 1, 8192, 8192] if bias else [], *([[]] * 9)]
    dtypes = ["c10::BFloat16"] * 3 + ["c10::BFloat16" if bias else ""] + [""] * 9
    inputs = ["", "", "", "", "", "", "8192", "8192", "True", "0.", str(causal), "False", "0.125"]
    return Op(
        "aten::_cudnn_attention_forward",
        "cudnn_generated_fort_native_sdpa",
        340,
        shapes,
        dtypes,
        inputs=inputs,
    )


@pytest.mark.parametrize(("causal", "measured"), [(True, 1213.3 / 343.6), (False, 1213.3 / 569.1)])
def test_attention_that_gets_a_mask_takes_longer(tmp_path: Path, causal: bool, measured: float) -> None:
    """As measured on an H200 by `benchmarks/products.py --layers`: 344 µs causal, 569 without a mask, 1,213 with one."""
    ops = [attention(causal=causal), product(), attention(bias=True)]
    step = compiled(tmp_path, ops, masks=True)[0]
    assert step.masking == {0: pytest.approx(measured, rel=0.15)}
    assert compiled(tmp_path, ops)[0].masking == {}


def pointwise(name: str = "relu", *, dur: float = 140, backward: bool = False) -> Op:
    return Op(f"aten::{name}", ADD, dur, [[ROWS, WIDTH]], ["float"], outer=BACKWARD if backward else ())


def product(*, backward: bool = False) -> Op:
    sides = [[ROWS, WIDTH], [WIDTH, WIDTH]]
    return Op("aten::mm", GEMM, 500, sides, ["float", "float"], outer=BACKWARD if backward else ())


def test_operators_become_kernels_and_products_stay(tmp_path: Path) -> None:
    steps = compiled(tmp_path, [pointwise(), pointwise(), product(), pointwise()])
    assert len(steps) == STEPS
    first, second = steps[0].kernels
    assert (first.tasks, second.tasks) == ((0, 1), (3,))
    assert steps[0].kept == ((2,),)
    assert (steps[0].operators, steps[0].graphs) == (4, 1)
    assert steps[1].kernels[0].tasks == (4, 5)
    moved = 2 * 4 * ROWS * WIDTH
    assert first.dur_ns == pytest.approx(moved / (4.8e3 * 0.78) + 1_200, rel=0.01)
    assert not first.of_loss


def test_the_optimizer_and_what_follows_the_backward_stay(tmp_path: Path) -> None:
    update = Op("aten::_foreach_add_", "multi_tensor_apply_kernel", 300, [[], []], ["TensorList", ""])
    ops = [product(), pointwise(), product(backward=True), pointwise(backward=True), pointwise("abs"), update]
    step = compiled(tmp_path, ops)[0]
    assert [kernel.tasks for kernel in step.kernels] == [(1,), (3,)]
    assert (step.operators, step.graphs) == (4, 2)


def test_the_loss_lies_between_the_last_product_and_the_first_of_the_backward(tmp_path: Path) -> None:
    log = Op("aten::_log_softmax", "void cunn_SoftMaxForward<4, float>", 300, [[ROWS, WIDTH], [], []],
             ["float", "Scalar", "Scalar"], inputs=["", "1", "False"])  # fmt: skip
    ops = [
        pointwise(),
        product(),
        log,
        pointwise(backward=True),
        product(backward=True),
        pointwise(backward=True),
    ]
    step = compiled(tmp_path, ops)[0]
    assert [(kernel.tasks, kernel.of_loss) for kernel in step.kernels] == [
        ((0,), False), ((2,), True), ((3,), True), ((5,), False)
    ]  # fmt: skip


def test_without_an_operator_of_a_loss_there_is_none(tmp_path: Path) -> None:
    ops = [product(), pointwise(), pointwise(backward=True), product(backward=True)]
    assert not any(kernel.of_loss for kernel in compiled(tmp_path, ops)[0].kernels)


def test_copies_from_the_host_and_triton_kernels_stay(tmp_path: Path) -> None:
    both = [[ROWS, WIDTH], [ROWS, WIDTH], []]
    types = ["float", "float", "Scalar"]
    ops = [
        Op("aten::copy_", "triton_poi_fused_0", 100, both, types),
        Op("aten::copy_", CAST, 100, both, types),
        product(),
    ]
    step = compiled(tmp_path, ops)[0]
    assert [kernel.tasks for kernel in step.kernels] == [(1,)]
    assert (0,) in step.kept


def convolutions(*weights: tuple[int, int, int, int], extra: list[Op] | None = None) -> list[Op]:
    """A conversion and a convolution each."""
    ops = []
    for outer, inner, groups, size in weights:
        shapes = [[8, inner * groups, 32, 32], [outer, inner, size, size], [], [], [], [], []]
        inputs = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", str(groups), "False"]
        types = ["float", "float", *["ScalarList"] * 3, "Scalar", "Scalar"]
        ops += [
            Op("aten::cudnn_convolution", kernel, 100, shapes, types, inputs=inputs)
            for kernel in (CONVERSION, "sm80_xmma_fprop_implicit_gemm_tf32f32")
        ]
    return ops + (extra or [])


@pytest.mark.parametrize(
    ("weights", "training", "inference"),
    [
        ([(256, 128, 1, 3)], True, True),
        (
            [(256, 128, 1, 3), (256, 32, 4, 3)],
            False,
            True,
        ),  # one grouped, of less work than the gain of the other
        ([(256, 64, 2, 3)], False, False),  # grouped alone
        ([(256, 1, 256, 3)], True, True),  # depthwise is not grouped in that sense
        ([(256, 128, 1, 3), (64, 128, 1, 3)], False, True),  # halves its channels
        ([(256, 128, 1, 3), (64, 128, 1, 1)], True, True),  # the same of one by one is no matter
        ([(64, 32, 1, 3), (32, 64, 1, 1)], False, True),  # all small
        ([], False, False),
    ],
)
def test_layouts_by_the_compilers_own_rules(
    tmp_path: Path, weights: list[tuple[int, int, int, int]], training: bool, inference: bool
) -> None:
    """torch/_inductor/graph.py, decide_layout_opt: other rules where gradients are computed."""
    (tmp_path / "training").mkdir()
    gradient = [Op("aten::relu", ADD, 10, [[64]], ["float"], outer=BACKWARD)]
    alone = compiled(tmp_path, convolutions(*weights, extra=[pointwise()]))[0]
    trained = compiled(tmp_path / "training", convolutions(*weights, extra=gradient))[0]
    for step, one_layout in ((alone, inference), (trained, training)):
        assert len(step.converting) == (len(weights) if one_layout else 0)
        assert len(step.kept) == (len(weights) if one_layout else 2 * len(weights))
