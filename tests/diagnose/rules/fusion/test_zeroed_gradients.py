"""zeroed-gradients: gradients set to zero one by one, and then added to."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.fusion.parameter_loop import parameter_loop
from foretrace.diagnose.rules.fusion.zeroed_gradients import zeroed_gradients
from tests.builders import Recording
from tests.diagnose.loops import findings, loop
from tests.diagnose.parameters import EVERY, products


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

    trace = loop(tmp_path, 1_200, body)
    assert findings(parameter_loop, trace, step_us=1_200) == []
    (found,) = findings(zeroed_gradients, trace, step_us=1_200)
    assert "set to zero one by one, and the backward pass adds to each" in found.says
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(400, rel=0.05)
    assert "set_to_none=True" in found.fix.code
