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
