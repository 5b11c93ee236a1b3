"""Recordings of thousands of short steps: the time grows with the steps, not with their square."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import foretrace
from foretrace.diagnose import RULES
from foretrace.diagnose import case as cases
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.predict import graph_capture
from foretrace.predict.builder import build
from foretrace.trace import Trace
from tests.builders import Recording

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from many_steps import write

STEPS = 3_200


@pytest.mark.slow
def test_time_grows_with_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of 3,200 steps, not a part of them, took 30 s of processor time where steps were compared in pairs; now 1.5."""
    trace = foretrace.open(write(tmp_path / "many.json", STEPS), cache=False)
    monkeypatch.setattr(cases, "chosen_steps", lambda whole: whole.steps)
    case = Case(trace)
    began = time.process_time()
    found = diagnose(case, RULES)
    assert time.process_time() - began < 10
    assert case.step_count == STEPS
    assert "launch-bound" in {finding.rule for finding in found.findings}


def steps_of(folder: Path, kernels: list[str]) -> Trace:
    """Steps that each launch one of these kernels."""
    recording = Recording()
    for number, name in enumerate(kernels):
        at = 100.0 * number
        recording.step(number, at, at + 90)
        recording.launch(at + 15, name, at + 40, at + 70, grid=[1, 1, 1], block=[128, 1, 1])
    return recording.open(folder)


@pytest.mark.parametrize(
    ("kernels", "differ"),
    [(["a"] * 6, False), (["a"] * 4 + ["b"] * 2, False), (["a", "b"] * 3, True), (list("abcdef"), True)],
)
def test_steps_are_alike_where_two_thirds_launch_the_same(
    tmp_path: Path, kernels: list[str], differ: bool
) -> None:
    trace = steps_of(tmp_path, kernels)
    assert graph_capture.differ(trace, build(trace)) is differ
