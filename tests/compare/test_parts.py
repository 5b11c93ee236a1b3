"""The parts of a step: every moment belongs to one, and they sum to the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.compare.parts import GPU, HOST, WAIT, step_parts
from tests.builders import Recording
from tests.compare.recorded import ADD, GEMM, steps


def parts(made: Recording, folder: Path) -> dict[tuple[str, str], float]:
    """In microseconds."""
    found = step_parts(made.open(folder))
    assert sum(found.parts.values()) == pytest.approx(found.step_ns, abs=1e-6)
    return {name: ns / 1e3 for name, ns in found.parts.items()}


def test_a_step_on_paper(tmp_path: Path) -> None:
    """From completion to completion 2,300 us: 800 of nothing until the step ends, 300 of loading, 90 more, a call of 10."""
    found = parts(steps((1_000.0,) * 3, loading=300.0), tmp_path)
    assert found[GPU, "matrix products"] == pytest.approx(1_000)
    assert found[GPU, "elementwise"] == pytest.approx(100)
    assert found[WAIT, "waiting for data"] == pytest.approx(300)
    assert found[WAIT, "launching: operators and calls"] == pytest.approx(
        15
    )  # 5 in the operator before its call
    assert sum(found.values()) == pytest.approx(2_300)


def test_work_at_the_same_time_counts_once(tmp_path: Path) -> None:
    """A copy of 300 us beside a product of 200: 100 of it are exposed. Communication hides a copy, and a product both."""
    made = Recording()
    for number in range(2):
        at = 1_000.0 * number
        made.step(number, at, at + 900)
        made.launch(at + 10, GEMM, at + 100, at + 300)
        made.launch(
            at + 20, "Memcpy HtoD (Pinned -> Device)", at + 100, at + 400, category="gpu_memcpy", stream=8
        )
        made.launch(at + 30, "ncclDevKernel_AllReduce_Sum_f32", at + 250, at + 350, stream=9)
    found = parts(made, tmp_path)
    assert found[GPU, "matrix products"] == pytest.approx(200)
    assert found[GPU, "communication"] == pytest.approx(50)
    assert found[GPU, "copies to and from the host"] == pytest.approx(50)


def test_of_several_steps_it_is_the_one_in_the_middle(tmp_path: Path) -> None:
    """Of steps of which one is disturbed, the parts sum to the median, not to the mean."""
    found = step_parts(steps((1_000.0, 1_500.0, 1_000.0, 1_000.0, 1_000.0)).open(tmp_path))
    assert found.step_ns == pytest.approx(2_000_000)
    assert found.parts[GPU, "matrix products"] == pytest.approx(1_000_000)
    even = step_parts(steps((500.0, 1_000.0, 1_100.0, 1_700.0)).open(tmp_path, "even.json"))
    assert sum(even.parts.values()) == pytest.approx(even.step_ns)


def test_without_steps_it_is_the_recording(tmp_path: Path) -> None:
    made = Recording().op("aten::mm", 0, 20).launch(5, GEMM, 30, 130).launch(12, ADD, 150, 170)
    found = step_parts(made.open(tmp_path))
    assert not found.marked
    assert sum(found.parts.values()) == pytest.approx(170_000)
    assert found.parts[GPU, "matrix products"] == pytest.approx(100_000)


def test_a_program_without_a_gpu(tmp_path: Path) -> None:
    made = Recording()
    for number in range(3):
        at = 1_000.0 * number
        made.step(number, at, at + 1_000)
        made.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 200)
        made.op("aten::linear", at + 300, at + 700).op("aten::addmm", at + 310, at + 690)
        made.op("aten::relu", at + 800, at + 900)
    found = parts(made, tmp_path)
    assert found[WAIT, "waiting for data"] == pytest.approx(200)
    assert found[HOST, "matrix products"] == pytest.approx(400)
    assert found[HOST, "elementwise"] == pytest.approx(100)
    assert found[HOST, "Python between operators"] == pytest.approx(300)
