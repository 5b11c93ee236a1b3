"""gradient-accumulation: parts of a batch, forward and backward, before one update."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.device.gradient_accumulation import gradient_accumulation
from foretrace.diagnose.rules.device.small_batch import small_batch
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop


@pytest.mark.slow
def test_parts_of_a_batch_before_one_update(tmp_path: Path) -> None:
    """Four times 200 µs forward and backward, then 100 µs of update: of the four one stays."""

    def body(recording: Recording, at: float) -> None:
        for number in range(80):
            part, place = divmod(number, 20)
            start, forward = at + number * 10, place < 10
            name = (
                f"aten::mm{place}" if forward else f"autograd::engine::evaluate_function: Mm{place}Backward0"
            )
            told = {"Sequence number": 10_000 * round(at) + 10 * part + (place if forward else 19 - place)}
            recording.op(name, start, start + 10, **told, **{"Fwd thread id": 0 if forward else 1})
            recording.launch(start + 8, name, start + 10, start + 11, call=1.5, **{"blocks per SM": 0.1})
        recording.annotation("Optimizer.step#AdamW.step", at + 800, at + 900)
        launches(recording, at + 800, 10, **{"blocks per SM": 0.1})

    trace = loop(tmp_path, 900, body)
    assert findings(small_batch, trace, step_us=900) == []
    (found,) = findings(gradient_accumulation, trace, step_us=900)
    assert found.evidence["parts_count"] == 4
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert "memory" in found.predicted.basis
    assert found.predicted.speedup.point == pytest.approx(900 / 300, rel=0.05)


def test_an_update_in_each_part_is_another_matter(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        for part in range(4):
            start = at + part * 200
            recording.op("aten::mm", start, start + 90)
            recording.launch(start + 80, "gemm", start + 90, start + 91, **{"blocks per SM": 0.1})
            recording.annotation("Optimizer.step#AdamW.step", start + 100, start + 200)
            launches(recording, start + 100, 10, **{"blocks per SM": 0.1})

    trace = loop(tmp_path, 800, body)
    assert findings(gradient_accumulation, trace, step_us=800) == []
    (found,) = findings(small_batch, trace, step_us=800)
    assert found.predicted is None
