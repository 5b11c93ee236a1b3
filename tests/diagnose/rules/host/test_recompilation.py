"""recompilation: torch.compile at work within the recorded steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.host.recompilation import recompilation
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop


def compiling(recording: Recording, at: float, length: float) -> None:
    recording.op("_compile.compile_inner (dynamo_timed)", at, at + length)


def test_every_step_compiles_again(tmp_path: Path) -> None:
    """Half of each recorded step is compilation; without the profiler, 500 launches take 5.28 µs each, not 10."""

    def body(recording: Recording, at: float) -> None:
        compiling(recording, at, 5_000)
        launches(recording, at + 5_000, 500)

    (found,) = findings(recompilation, loop(tmp_path, 10_000, body), step_us=7_640)
    assert found.evidence["compilations_count"] == 3
    assert found.evidence["compiling_pct"] == pytest.approx(50)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(7_640 / 2_640, rel=0.05)


def test_one_compilation_in_the_first_step_is_a_cold_start(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        if not at:
            compiling(recording, 0, 5_000)
        launches(recording, at + 5_000, 500)

    assert findings(recompilation, loop(tmp_path, 10_000, body)) == []


def test_a_program_that_is_not_compiled_has_none(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(recompilation, trace) == []
