"""host-sync: waits for the device that pay when removed, and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording

from foretrace.diagnose.finding import Place
from foretrace.diagnose.host_sync import host_sync
from tests.diagnose.loops import findings, launches, loop


def item(recording: Recording, at: float, end: float) -> None:
    recording.op("aten::item", at, end).op("aten::_local_scalar_dense", at, end)
    recording.runtime("cudaStreamSynchronize", at, end)


def test_a_wait_that_keeps_the_host_from_launching(tmp_path: Path) -> None:
    """A kernel of 1 ms is waited for, then 0.5 ms of launching follows, which could run beside it."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::mm", at, at + 10)
        recording.launch(at + 5, "gemm", at + 10, at + 1_000, call=2)
        item(recording, at + 10, at + 1_002)
        launches(recording, at + 1_002, 50)

    (found,) = findings(host_sync, loop(tmp_path, 1_504, body), step_us=1_504)
    assert found.evidence["op"] == "aten::item"
    assert found.evidence["calls_per_step_count"] == 1
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.speedup.point == pytest.approx(1_504 / 1_050, rel=0.05)
    assert found.where == (Place(None, None, "aten::item"),)


def test_a_wait_of_a_host_that_is_slower_anyway_gains_nothing(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        for part in range(10):
            launches(recording, at + part * 100, 9)
            item(recording, at + part * 100 + 90, at + part * 100 + 96)

    (found,) = findings(host_sync, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.verdict != "gain"
    assert found.evidence["calls_per_step_count"] == 10


def test_the_line_is_the_programs_own(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.python("train.py(12): step", at, at + 1_000)
        recording.python("torch/_tensor.py(40): wrapped", at + 900, at + 1_000)
        recording.launch(at, "gemm", at + 5, at + 998)
        item(recording, at + 900, at + 1_000)

    (found,) = findings(host_sync, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.where[0] == Place("train.py", 12, "step")


def test_no_wait_no_finding(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(host_sync, trace, step_us=1_000) == []


def test_waits_for_the_size_of_a_result_promise_nothing(tmp_path: Path) -> None:
    """The same loop as the first, but the wait is inside nonzero: what follows may have more rows without it."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::mm", at, at + 10)
        recording.launch(at + 5, "gemm", at + 10, at + 1_000, call=2)
        recording.op("aten::index", at + 10, at + 1_002).op("aten::nonzero", at + 10, at + 1_002)
        recording.runtime("cudaStreamSynchronize", at + 10, at + 1_002)
        launches(recording, at + 1_002, 50)

    (found,) = findings(host_sync, loop(tmp_path, 1_504, body), step_us=1_504)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.speedup.low <= 1.0
    assert "Not promised: what follows has as many rows as the values decide" in found.predicted.basis
