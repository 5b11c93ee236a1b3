"""Optimizers that launch for every operation on every parameter."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording

from foretrace.diagnose.loop_optimizer import loop_optimizer
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
