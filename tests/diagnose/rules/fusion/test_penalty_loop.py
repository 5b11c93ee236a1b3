"""penalty-loop: a penalty on the parameters, forward and backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.fusion.parameter_loop import parameter_loop
from foretrace.diagnose.rules.fusion.penalty_loop import penalty_loop
from tests.builders import Recording
from tests.diagnose.loops import findings, loop
from tests.diagnose.parameters import EVERY, FORWARD, SHAPES, products


@pytest.mark.slow
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

    trace = loop(tmp_path, 2_000, body)
    assert findings(parameter_loop, trace, step_us=2_000) == []
    (found,) = findings(penalty_loop, trace, step_us=2_000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(FORWARD, rel=0.05)
    assert found.predicted.speedup.low < 2_000 / 1_200
