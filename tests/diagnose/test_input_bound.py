"""input-bound: waits for a DataLoader, and what workers would be worth."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording

from foretrace.diagnose.input_bound import input_bound
from tests.diagnose.loops import findings, launches, loop

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def waiting(name: str, wait: float) -> object:
    def body(recording: Recording, at: float) -> None:
        recording.annotation(name, at, at + wait)
        launches(recording, at + wait, 20)

    return body


def test_loading_in_the_main_process_hides_behind_the_rest(tmp_path: Path) -> None:
    """8 ms of loading before 0.2 ms of work: six workers deliver every 1.33 ms."""
    trace = loop(tmp_path, 8_200, waiting(SINGLE, 8_000))
    (found,) = findings(input_bound, trace, step_us=8_200)
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.speedup.point == pytest.approx(6, rel=0.06)
    assert found.predicted.speedup.low < 4.1
    assert found.predicted.speedup.high > 11
    assert found.evidence["loader"] == "in the main process"
    assert "6 workers (4 to 12)" in found.predicted.basis


def test_operators_of_the_loader_have_one_core_in_a_worker(tmp_path: Path) -> None:
    """All of the loading is in torch's operators: taken to be twice as slow in a worker."""

    def body(recording: Recording, at: float) -> None:
        recording.annotation(SINGLE, at, at + 8_000)
        recording.op("aten::avg_pool2d", at, at + 8_000)
        launches(recording, at + 8_000, 20)

    (found,) = findings(input_bound, loop(tmp_path, 8_200, body), step_us=8_200)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(3, rel=0.06)


def test_more_workers_are_never_promised(tmp_path: Path) -> None:
    (found,) = findings(input_bound, loop(tmp_path, 1_200, waiting(WORKERS, 1_000)), step_us=1_200)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert found.evidence["loader"] == "by workers"


def test_a_quick_loader_is_no_finding(tmp_path: Path) -> None:
    assert findings(input_bound, loop(tmp_path, 208, waiting(WORKERS, 8)), step_us=208) == []
