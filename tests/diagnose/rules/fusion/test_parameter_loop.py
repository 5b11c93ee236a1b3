"""parameter-loop: updates by hand, averages and clipping, one tensor after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.patterns import parameter_loops
from foretrace.diagnose.rules.fusion.loop_optimizer import loop_optimizer
from foretrace.diagnose.rules.fusion.parameter_loop import parameter_loop
from foretrace.diagnose.rules.fusion.penalty_loop import penalty_loop
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop
from tests.diagnose.parameters import EVERY, FORWARD, OPS, PARAMETERS, SHAPES, products


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


@pytest.mark.slow
def test_an_update_written_by_hand_keeps_its_operators(tmp_path: Path) -> None:
    """Four operators over 40 tensors: 4 x 40 µs for the tensors and 4 x 10 for the launches are left of 1,600."""
    trace = by_hand(tmp_path)
    assert findings(penalty_loop, trace, step_us=2010) == []
    (found,) = findings(parameter_loop, trace, step_us=2010)
    assert found.evidence["parameters_count"] == PARAMETERS
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(410 + 200, rel=0.05)
    assert "_foreach_" in found.fix.code


@pytest.mark.slow
def test_other_work_after_the_backward_is_no_update(tmp_path: Path) -> None:
    assert findings(parameter_loop, by_hand(tmp_path, backward=False), step_us=2010) == []
    products = ("aten::mm", "aten::softmax", "aten::bmm", "aten::sum")
    assert findings(parameter_loop, by_hand(tmp_path, products), step_us=2010) == []
    fresh = ("aten::mul", "aten::add", "aten::exp", "aten::sub")  # nothing is changed in place
    assert findings(parameter_loop, by_hand(tmp_path, fresh), step_us=2010) == []


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
    (found,) = findings(parameter_loop, trace, step_us=length)
    assert found.evidence["launches_per_step_count"] == PARAMETERS * len(ops)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(FORWARD + len(ops) * (40 + 10), rel=0.05)


def test_a_chain_on_one_tensor_is_no_loop_over_tensors(tmp_path: Path) -> None:
    trace = before_the_forward(tmp_path, ("aten::mul", "aten::tanh", "aten::add"), shapes=([1000],))
    assert findings(parameter_loop, trace, step_us=1_600) == []


def test_samples_of_different_length_are_no_parameters(tmp_path: Path) -> None:
    trace = before_the_forward(tmp_path, ("aten::sub", "aten::abs", "aten::mean"), shapes=([7, 4], [9, 4]))
    assert findings(parameter_loop, trace, step_us=1_600) == []


@pytest.mark.slow
def test_a_few_tensors_with_many_operators_are_no_loop_over_tensors(tmp_path: Path) -> None:
    """As of a loss at several scales: one operator comes often, but for few tensors."""
    others = ("aten::exp", "aten::log", "aten::abs", "aten::sqrt", "aten::sigmoid", "aten::tanh", "aten::neg")
    ops = tuple(each for other in others for each in (other, f"{other}_", "aten::add", "aten::sub"))

    def body(recording: Recording, at: float) -> None:
        for number, op in enumerate(ops * 5):
            start, shape = at + number * EVERY, SHAPES[number // len(ops) % 3]
            recording.op(op, start, start + EVERY, **{"Input Dims": [shape], "Input type": ["float"]})
            recording.launch(start + EVERY - 3, "elementwise", start + EVERY, start + EVERY + 1, call=2)

    assert findings(parameter_loop, loop(tmp_path, len(ops) * 50, body), step_us=len(ops) * 50) == []


def test_products_between_them_are_no_loop_over_tensors(tmp_path: Path) -> None:
    trace = before_the_forward(tmp_path, ("aten::mm", "aten::gelu", "aten::add"))
    assert findings(parameter_loop, trace, step_us=1_600) == []


@pytest.mark.slow
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

    trace = loop(tmp_path, FORWARD + 1_600, body)
    assert findings(loop_optimizer, trace, step_us=2_000) == []
    (found,) = findings(parameter_loop, trace, step_us=2_000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(FORWARD + 4 * (40 + 10), rel=0.05)


def test_the_code_names_the_operators_of_the_loop(tmp_path: Path) -> None:
    trace = before_the_forward(tmp_path, ("aten::linalg_vector_norm", "aten::mul_"))
    (found,) = findings(parameter_loop, trace, step_us=FORWARD + PARAMETERS * 2 * EVERY)
    assert "torch._foreach_norm(" in found.fix.code
    assert "torch._foreach_mul_(" in found.fix.code


def test_torch_has_the_operators_that_the_code_names() -> None:
    torch = pytest.importorskip("torch")
    for name in parameter_loops.FOREACH:
        assert hasattr(torch, f"_foreach_{name}") or hasattr(torch, f"_foreach_{name}_"), name
