"""loop-optimizer: Adam and the like, with a launch for every operation on every parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace.diagnose.rules.fusion.loop_optimizer import loop_optimizer
from foretrace.diagnose.rules.fusion.parameter_loop import parameter_loop
from foretrace.diagnose.rules.host.launch_bound import launch_bound
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop
from tests.diagnose.parameters import EVERY, FORWARD, OPS, PARAMETERS


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
    assert findings(parameter_loop, trace, step_us=2000) == []


def test_a_few_parameters_are_no_fault(tmp_path: Path) -> None:
    trace = training(tmp_path, "vectorized_elementwise_kernel", parameters=8)
    assert findings(loop_optimizer, trace, step_us=720) == []
    assert findings(parameter_loop, trace, step_us=720) == []


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


def plain_sgd(
    folder: Path, ops: tuple[str, ...], shapes: tuple[list[int], ...], *, told: bool = True
) -> Trace:
    """400 µs of forward work, an operator of autograd's, and these operators for one parameter after the other."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, round(FORWARD / EVERY))
        autograd = {"Sequence number": 1, "Fwd thread id": 1} if told else {}
        recording.op("aten::mm", at + FORWARD, at + FORWARD + EVERY, **autograd)
        recording.launch(at + FORWARD + 7, "mm", at + FORWARD + 10, at + FORWARD + 11, call=2)
        for number in range(len(shapes) * len(ops)):
            start, shape = at + FORWARD + EVERY + number * EVERY, shapes[number // len(ops)]
            arguments = {"Input Dims": [shape, shape, []], "Input type": ["float", "float", "Scalar"]}
            recording.op(ops[number % len(ops)], start, start + EVERY, **arguments)
            recording.launch(start + EVERY - 3, "elementwise", start + EVERY, start + EVERY + 1, call=2)

    return loop(folder, FORWARD + EVERY * (1 + len(shapes) * len(ops)), body)


WEIGHTS = ([650, 650], [650]) * 5  # of five layers


def test_plain_sgd_by_hand_is_found_for_a_few_layers(tmp_path: Path) -> None:
    """100 of 510 µs are the update: 10 µs for ten tensors and 10 for the launch are left."""
    trace = plain_sgd(tmp_path, ("aten::add_",), WEIGHTS)
    (found,) = findings(loop_optimizer, trace, step_us=510)
    assert found.evidence["parameters_count"] == 10
    assert "_foreach_add_" in found.fix.code
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(410 + 20, rel=0.05)
    assert findings(parameter_loop, trace, step_us=510) == []


def test_plain_sgd_by_hand_over_many_tensors_is_one_finding(tmp_path: Path) -> None:
    trace = plain_sgd(tmp_path, ("aten::mul_", "aten::add_"), WEIGHTS * 5)
    assert len(findings(loop_optimizer, trace, step_us=1_410)) == 1
    assert findings(parameter_loop, trace, step_us=1_410) == []


@pytest.mark.slow
def test_sums_of_other_tensors_are_no_update(tmp_path: Path) -> None:
    assert findings(loop_optimizer, plain_sgd(tmp_path, ("aten::add_",), WEIGHTS[:6]), step_us=470) == []
    alike = ([650, 650],) * 10  # one tensor added to ten times, as likely
    assert findings(loop_optimizer, plain_sgd(tmp_path, ("aten::add_",), alike), step_us=510) == []
    before = plain_sgd(tmp_path, ("aten::add_",), WEIGHTS, told=False)  # no backward pass before it
    assert findings(loop_optimizer, before, step_us=510) == []


def test_the_optimizer_of_the_recording_is_named(tmp_path: Path) -> None:
    """Fused SGD for who uses SGD: another class would train otherwise."""
    recording = tmp_path / "trace.json"
    training(tmp_path, "vectorized_elementwise_kernel")
    recording.write_text(
        recording.read_text().replace("Optimizer.step#AdamW.step", "Optimizer.step#SGD.step")
    )
    (found,) = findings(loop_optimizer, foretrace.open(recording, cache=False), step_us=2000)
    assert "torch.optim.SGD(params, ..., fused=True)" in found.fix.code
    assert "AdamW" not in found.fix.code
