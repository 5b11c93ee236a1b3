"""long-gap: the GPU stands still for many steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.recording.long_gap import long_gap
from tests.builders import Recording
from tests.diagnose.loops import H200, findings, launches, loop


def with_pause(pause: float, before: int = 2) -> Recording:
    """Steps of 1 ms, with a pause in microseconds after some of them."""
    recording = Recording(deviceProperties=[H200])
    at = 0.0
    for number in range(5):
        recording.step(number, at, at + 1_000)
        launches(recording, at, 100)
        at += 1_000 + (pause if number + 1 == before else 0)
    return recording


def test_a_pause_of_many_steps_is_found(tmp_path: Path) -> None:
    """50 ms after the second of five steps: 50 of 55 ms."""
    (found,) = findings(long_gap, with_pause(50_000).open(tmp_path))
    assert found.evidence["gaps_count"] == 1
    # From the end of the last kernel of the step, a microsecond after it, to the first launch's kernel in the next.
    assert found.evidence["longest_ns"] == pytest.approx(50_009_000, abs=2_000)
    assert found.evidence["lost_pct"] == pytest.approx(91, abs=1)
    assert found.predicted is None


def test_a_short_pause_is_none(tmp_path: Path) -> None:
    assert findings(long_gap, with_pause(5_000).open(tmp_path)) == []


def test_a_slow_first_step_is_another_problem(tmp_path: Path) -> None:
    """What is inside the first step is cold-start's; a recording without gaps has none."""
    recording = Recording(deviceProperties=[H200]).step(0, 0, 50_000)
    launches(recording, 0, 10)
    launches(recording, 49_000, 100)
    for number in range(1, 4):
        recording.step(number, 49_000 + number * 1_000, 50_000 + number * 1_000)
        launches(recording, 49_000 + number * 1_000, 100)
    assert findings(long_gap, recording.open(tmp_path)) == []
    assert findings(long_gap, loop(tmp_path, 1_000, lambda made, at: launches(made, at, 100))) == []
