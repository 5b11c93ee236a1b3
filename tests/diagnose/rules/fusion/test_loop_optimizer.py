"""Optimizers that launch for every operation on every parameter."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording

from foretrace.diagnose.rules.fusion.loop_optimizer import loop_optimizer
from foretrace.diagnose.rules.host.launch_bound import launch_bound
from foretrace.trace import Trace
from tests.diagnose.loops import findings, launches, loop

PARAMETERS, OPS = 40, ("aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_")
EVERY, FORWARD = 10.0, 400.0


def training(folder: Path, kernel: str, *, parameters: int = PARAMETERS) -> Trace:
    """Host-bound steps: 400 µs of forward work, then four operators of 10 µs for each parameter."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, round(FORWARD / EVERY))
        begin = at + FORWARD
        recording.annotation("Optimizer.step#AdamW.step", begin, begin + parameters * len(OPS) * EVERY)
        for number in range(parameters * len(OPS)):
            start = begin + number * EVERY
            shapes = {"Input Dims": [[1000], [1000]], "Input type": ["float", "float"]}
            recording.op(OPS[number % len(OPS)], start, start + EVERY, **shapes)
            recording.launch(start + EVERY - 3, kernel, start + EVERY, start + EVERY + 1, call=2)

    return loop(folder, FORWARD + parameters * len(OPS) * EVERY, body)


def test_a_loop_over_parameters_is_worth_nearly_all_of_its_host_time(tmp_path: Path) -> None:
    trace = training(tmp_path, "vectorized_elementwise_kernel")
    (found,) = findings(loop_optimizer, trace, step_us=2000)
    assert found.evidence["parameters_count"] == PARAMETERS
    assert found.evidence["launches_per_step_count"] == PARAMETERS * len(OPS)
    # 1 µs a parameter and 10 µs for the one launch are left of 1,600 µs.
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(400 + 50, rel=0.05)
    assert "fused=True" in found.fix.code


def test_in_a_graph_adam_counts_its_steps_on_the_device(tmp_path: Path) -> None:
    """200 kernels of 1 µs, 0.15 µs apart, and 26 µs more for each of 40 parameters; the graph costs 15 µs of host."""
    (found,) = findings(launch_bound, training(tmp_path, "vectorized_elementwise_kernel"), step_us=2000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(200 * 1.15 + 40 * 26, rel=0.03)


def test_multi_tensor_launches_are_no_fault(tmp_path: Path) -> None:
    trace = training(tmp_path, "void at::native::multi_tensor_apply_kernel<Adam>")
    assert findings(loop_optimizer, trace, step_us=2000) == []


def test_a_few_parameters_are_no_fault(tmp_path: Path) -> None:
    trace = training(tmp_path, "vectorized_elementwise_kernel", parameters=8)
    assert findings(loop_optimizer, trace, step_us=720) == []


def by_hand(folder: Path, ops: tuple[str, ...] = OPS, *, backward: bool = True) -> Trace:
    """400 µs of forward work, one operator of autograd's, then the operators of 10 µs for each parameter."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, round(FORWARD / EVERY))
        told = {"Sequence number": 1, "Fwd thread id": 1} if backward else {}
        recording.op("aten::mm", at + FORWARD, at + FORWARD + EVERY, **told)
        recording.launch(at + FORWARD + 7, "mm", at + FORWARD + 10, at + FORWARD + 11, call=2)
        for number in range(PARAMETERS * len(OPS)):
            start = at + FORWARD + EVERY + number * EVERY
            shapes = {"Input Dims": [[1000], [1000]], "Input type": ["float", "float"]}
            recording.op(ops[number % len(ops)], start, start + EVERY, **shapes)
            recording.launch(start + EVERY - 3, "elementwise", start + EVERY, start + EVERY + 1, call=2)

    return loop(folder, FORWARD + EVERY + PARAMETERS * len(OPS) * EVERY, body)


def test_an_update_written_by_hand_keeps_its_operators(tmp_path: Path) -> None:
    """Four operators over 40 tensors: 4 x 40 µs for the tensors and 4 x 10 for the launches are left of 1,600."""
    (found,) = findings(loop_optimizer, by_hand(tmp_path), step_us=2010)
    assert found.evidence["parameters_count"] == PARAMETERS
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(410 + 200, rel=0.05)
    assert "_foreach_" in found.fix.code


def test_other_work_behind_the_backward_is_no_update(tmp_path: Path) -> None:
    assert findings(loop_optimizer, by_hand(tmp_path, backward=False), step_us=2010) == []
    products = ("aten::mm", "aten::softmax", "aten::bmm", "aten::sum")
    assert findings(loop_optimizer, by_hand(tmp_path, products), step_us=2010) == []
    fresh = ("aten::mul", "aten::add", "aten::exp", "aten::sub")  # nothing is changed in place
    assert findings(loop_optimizer, by_hand(tmp_path, fresh), step_us=2010) == []


SHAPES = ([1000], [40, 25], [25, 40])


def products(recording: Recording, at: float) -> None:
    """400 µs of launching products, which take the device 40 µs."""
    for start in range(round(at), round(at + FORWARD), round(EVERY)):
        recording.op("aten::mm", start, start + EVERY)
        recording.launch(start + EVERY - 2, "gemm", start + EVERY, start + EVERY + 1, call=1.5)


def before_the_forward(
    folder: Path, ops: tuple[str, ...], *, shapes: tuple[list[int], ...] = SHAPES
) -> Trace:
    """The operators of 10 µs for each of 40 tensors, then 400 µs of forward work and no backward pass."""

    def body(recording: Recording, at: float) -> None:
        for number in range(PARAMETERS * len(ops)):
            start = at + number * EVERY
            shape = shapes[number // len(ops) % len(shapes)]
            told = {"Input Dims": [shape, shape], "Input type": ["float", "float"]}
            recording.op(ops[number % len(ops)], start, start + EVERY, **told)
            recording.launch(start + EVERY - 3, "elementwise", start + EVERY, start + EVERY + 1, call=2)
        products(recording, at + PARAMETERS * len(ops) * EVERY)

    return loop(folder, FORWARD + PARAMETERS * len(ops) * EVERY, body)


@pytest.mark.parametrize(
    "ops",
    [("aten::mul", "aten::mul", "aten::add"), ("aten::lerp_",), ("aten::linalg_vector_norm", "aten::mul_")],
)
def test_averages_and_clipping_are_loops_wherever_they_are(tmp_path: Path, ops: tuple[str, ...]) -> None:
    """1 µs for each operator on each tensor and 10 µs for each launch of 40 tensors are left."""
    trace = before_the_forward(tmp_path, ops)
    length = FORWARD + PARAMETERS * len(ops) * EVERY
    (found,) = findings(loop_optimizer, trace, step_us=length)
    assert found.evidence["launches_per_step_count"] == PARAMETERS * len(ops)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(FORWARD + len(ops) * (40 + 10), rel=0.05)


def test_a_chain_on_one_tensor_is_no_loop_over_tensors(tmp_path: Path) -> None:
    trace = before_the_forward(tmp_path, ("aten::mul", "aten::tanh", "aten::add"), shapes=([1000],))
    assert findings(loop_optimizer, trace, step_us=1_600) == []


def test_samples_of_different_length_are_no_parameters(tmp_path: Path) -> None:
    trace = before_the_forward(tmp_path, ("aten::sub", "aten::abs", "aten::mean"), shapes=([7, 4], [9, 4]))
    assert findings(loop_optimizer, trace, step_us=1_600) == []


def test_a_few_tensors_with_many_operators_are_no_loop_over_tensors(tmp_path: Path) -> None:
    """As of a loss at several scales: one operator comes often, but for few tensors."""
    others = ("aten::exp", "aten::log", "aten::abs", "aten::sqrt", "aten::sigmoid", "aten::tanh", "aten::neg")
    ops = tuple(each for other in others for each in (other, f"{other}_", "aten::add", "aten::sub"))

    def body(recording: Recording, at: float) -> None:
        for number, op in enumerate(ops * 5):
            start, shape = at + number * EVERY, SHAPES[number // len(ops) % 3]
            recording.op(op, start, start + EVERY, **{"Input Dims": [shape], "Input type": ["float"]})
            recording.launch(start + EVERY - 3, "elementwise", start + EVERY, start + EVERY + 1, call=2)

    assert findings(loop_optimizer, loop(tmp_path, len(ops) * 50, body), step_us=len(ops) * 50) == []


def test_products_between_them_are_no_loop_over_tensors(tmp_path: Path) -> None:
    trace = before_the_forward(tmp_path, ("aten::mm", "aten::gelu", "aten::add"))
    assert findings(loop_optimizer, trace, step_us=1_600) == []


def test_a_penalty_goes_with_its_backward(tmp_path: Path) -> None:
    """pow and sum of 40 parameters, 800 µs, and as much in the backward pass; at worst they stay, over all at once."""

    def body(recording: Recording, at: float) -> None:
        for number in range(160):
            start = at + number * EVERY
            name = ("pow", "sum")[number % 2]
            told: dict[str, object] = {
                "Sequence number": 1000 * round(at) + number % 80,
                "Fwd thread id": number // 80,
            }
            if number < 80:
                shape = SHAPES[number // 2 % 3]
                told |= {"Input Dims": [shape], "Input type": ["float"]}
            recording.op(f"aten::{name}" if number < 80 else f"{name}Backward0", start, start + EVERY, **told)
            recording.launch(start + EVERY - 3, name, start + EVERY, start + EVERY + 1, call=2)
        products(recording, at + 1_600)

    (found,) = findings(loop_optimizer, loop(tmp_path, 2_000, body), step_us=2_000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(FORWARD, rel=0.05)
    assert found.predicted.speedup.low < 2_000 / 1_200


def test_an_optimizer_class_of_ones_own_has_no_fused_form(tmp_path: Path) -> None:
    """The same launches as of AdamW, but each of the four operators is left, over all tensors at once."""

    def body(recording: Recording, at: float) -> None:
        products(recording, at)
        begin = at + FORWARD
        recording.annotation("Optimizer.step#Lion.step", begin, begin + 1_600)
        for number in range(160):
            start = begin + number * EVERY
            shape = SHAPES[number // 4 % 3]
            told = {"Input Dims": [shape, shape], "Input type": ["float", "float"]}
            recording.op(OPS[number % 4], start, start + EVERY, **told)
            recording.launch(start + EVERY - 3, "elementwise", start + EVERY, start + EVERY + 1, call=2)

    (found,) = findings(loop_optimizer, loop(tmp_path, FORWARD + 1_600, body), step_us=2_000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(FORWARD + 4 * (40 + 10), rel=0.05)


def test_gradients_set_to_zero_go_with_what_is_added_to_them(tmp_path: Path) -> None:
    """40 times 10 µs to set to zero and 40 times 10 µs to add to it: both go."""

    def body(recording: Recording, at: float) -> None:
        recording.op("Optimizer.zero_grad#AdamW.zero_grad", at, at + 400)
        for number in range(40):
            start = at + number * EVERY
            recording.op("aten::zero_", start, start + EVERY).op("aten::fill_", start + 1, start + 9)
            recording.launch(start + 5, "fill", start + EVERY, start + EVERY + 1, call=2)
        products(recording, at + 400)
        for number in range(40):
            start = at + 800 + number * EVERY
            recording.op("torch::autograd::AccumulateGrad", start, start + EVERY, **{"Fwd thread id": 1})
            recording.op("aten::add_", start, start + EVERY)
            recording.launch(start + 5, "add", start + EVERY, start + EVERY + 1, call=2)

    (found,) = findings(loop_optimizer, loop(tmp_path, 1_200, body), step_us=1_200)
    assert "set to zero one by one, and the backward pass adds to each" in found.says
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(400, rel=0.05)
    assert "set_to_none=True" in found.fix.code


@pytest.mark.parametrize(("dtype", "item_bytes"), [("float", 4), ("c10::BFloat16", 2)])
def test_a_fused_optimizer_moves_each_moment_once(tmp_path: Path, dtype: str, item_bytes: int) -> None:
    """40 parameters of ten million elements, 7 values each: weight, gradient and moments read, all but one written."""
    moved_us = 40 * 1e7 * 7 * item_bytes / (0.75 * 4.8e12) * 1e6

    def body(recording: Recording, at: float) -> None:
        recording.annotation("Optimizer.step#AdamW.step", at, at + 1_600)
        for number in range(160):
            start, begin = at + number * EVERY, 10 * at + 10 + number * 100
            told = {"Input Dims": [[10_000_000]] * 2, "Input type": [dtype] * 2}
            recording.op(OPS[number % 4], start, start + EVERY, **told)
            recording.launch(start + EVERY - 3, "elementwise", begin, begin + 99, call=2)

    (found,) = findings(loop_optimizer, loop(tmp_path, 1_600, body), step_us=16_000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(moved_us, rel=0.05)
