"""Recordings of thousands of short steps: the time grows with the steps, not with their square."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import foretrace
from benchmarks.many_steps import write
from foretrace.diagnose import RULES
from foretrace.diagnose import case as cases
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.predict import graph_capture
from foretrace.predict.builder import build
from foretrace.trace import Trace
from tests.builders import Recording


def calls_of_a_diagnosis(folder: Path, steps: int) -> int:
    """How many functions a diagnosis of all of these steps, not a part of them, calls."""
    case = Case(foretrace.open(write(folder / f"{steps}.json", steps), cache=False))
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = diagnose(case, RULES)
    finally:
        sys.setprofile(None)
    assert case.step_count == steps
    assert "launch-bound" in {finding.rule for finding in found.findings}
    return calls


@pytest.mark.slow
def test_work_grows_with_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the steps are at most twice the work. Steps that are compared in pairs would be up to four times the work."""
    monkeypatch.setattr(cases, "chosen_steps", lambda whole: whole.steps)
    calls_of_a_diagnosis(tmp_path, 100)  # imports
    assert calls_of_a_diagnosis(tmp_path, 400) < 2.2 * calls_of_a_diagnosis(tmp_path, 200)


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
