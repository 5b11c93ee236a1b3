"""cold-start: a first step that paid for what the others had."""

from __future__ import annotations

from pathlib import Path

from foretrace.diagnose.rules.recording.cold_start import cold_start
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop


def test_a_first_step_that_allocates(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 3_000).runtime("cudaMalloc", 0, 2_000)
    launches(recording, 2_000, 100)
    for number in (1, 2):
        start = 3_000 + (number - 1) * 1_000
        recording.step(number, start, start + 1_000)
        launches(recording, start, 100)
    (found,) = findings(cold_start, recording.open(tmp_path))
    assert found.evidence["first_host_ns"] == 3_000_000
    assert found.evidence["allocation_ns"] == 2_000_000
    assert "allocation" in found.says
    assert found.predicted is None


def test_warm_steps_are_no_finding(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(cold_start, trace) == []
