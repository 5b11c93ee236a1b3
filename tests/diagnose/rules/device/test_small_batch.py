"""small-batch: kernels that leave most multiprocessors empty."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording

from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.device.small_batch import small_batch
from foretrace.errors import MissingDataError
from tests.diagnose.loops import findings, launches, loop


def test_kernels_of_a_few_blocks(tmp_path: Path) -> None:
    trace = loop(
        tmp_path, 1_000, lambda recording, at: launches(recording, at, 100, **{"blocks per SM": 0.25})
    )
    (found,) = findings(small_batch, trace)
    assert found.evidence["filled_pct"] == pytest.approx(25)
    assert found.evidence["small_pct"] == pytest.approx(100)
    assert found.predicted is None  # a larger batch is other work


def test_full_kernels_are_no_finding(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(small_batch, trace) == []


def test_without_grids_it_cannot_look(tmp_path: Path) -> None:
    trace = loop(
        tmp_path,
        1_000,
        lambda recording, at: recording.launch(at, "kernel", at + 5, at + 100) and None,
    )
    with pytest.raises(MissingDataError, match="grids"):
        list(small_batch(Case(trace)))


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

    (found,) = findings(small_batch, loop(tmp_path, 900, body), step_us=900)
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

    (found,) = findings(small_batch, loop(tmp_path, 800, body), step_us=800)
    assert found.predicted is None
