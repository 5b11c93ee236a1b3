"""Which step is odd, and why: what it has more of than the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace.diagnose.case import Case
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.step_time import step_time
from tests.builders import Recording

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def steps(lengths: list[float], *, slow: str = "op") -> Recording:
    """Steps of these milliseconds that end with 5 ms of GPU work: before it the host loads data, or is in an operator."""
    recording, at = Recording(), 0.0
    for number, length in enumerate(lengths):
        end = at + 1000 * length
        recording.step(number, at, end)
        if slow == "data":
            recording.annotation(LOADER, at + 1, end - 5_100)
        else:
            recording.op("aten::nonzero", at + 1, end - 5_020)
        recording.launch(end - 5_040, "gemm", end - 5_000, end, call=10)
        at = end
    return recording


def made(recording: Recording, folder: Path) -> dict[str, Any]:
    return step_time(RecordingView(Case(recording.open(folder))))


def test_the_step_that_waits_for_data_is_odd(tmp_path: Path) -> None:
    (odd,) = made(steps([10, 10, 10, 30, 10], slow="data"), tmp_path)["odd"]
    assert odd["step"] == 3
    assert odd["says"] == "20.0 ms longer than the median step of 10.0 ms: 20.0 ms more waiting for data"
    assert (odd["from_ns"], odd["to_ns"]) == (30_000_000, 60_000_000)


def test_idle_time_has_its_cause_and_the_span_behind_it(tmp_path: Path) -> None:
    (odd,) = made(steps([10, 10, 16, 10]), tmp_path)["odd"]
    assert odd["says"] == (
        "6.00 ms longer than the median step of 10.0 ms: 6.00 ms more GPU idle time (host: operator: nonzero)"
    )


def test_a_short_step_is_odd_too(tmp_path: Path) -> None:
    (odd,) = made(steps([20, 20, 8, 20]), tmp_path)["odd"]
    assert odd["says"].startswith(
        "12.0 ms shorter than the median step of 20.0 ms: 12.0 ms less GPU idle time"
    )


@pytest.mark.slow
def test_even_steps_and_steps_that_always_scatter_are_not(tmp_path: Path) -> None:
    assert made(steps([10, 10.2, 9.9, 10.1]), tmp_path)["odd"] == []
    assert made(steps([8, 13, 10, 16, 11, 14]), tmp_path)["odd"] == []
    assert made(steps([10, 30]), tmp_path)["odd"] == [], "of two steps neither is the odd one"


def test_an_odd_step_is_drawn_wherever_it_is(tmp_path: Path) -> None:
    found = made(steps([10.0] * 20 + [40.0] + [10.0] * 9), tmp_path)
    assert [step["step"] for step in found["steps"]] == [*range(11), 20]
    assert found["steps_count"] == 30
