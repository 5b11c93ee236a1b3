"""allocator-churn: memory taken from the driver in steps that have run before."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.host.allocator_churn import allocator_churn
from foretrace.errors import MissingDataError
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop


def test_allocations_in_every_step(tmp_path: Path) -> None:
    """Half of each step is spent in cudaMalloc."""

    def body(recording: Recording, at: float) -> None:
        recording.runtime("cudaMalloc", at, at + 500)
        launches(recording, at + 500, 5, every=100)

    (found,) = findings(allocator_churn, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.evidence["calls_per_step_count"] == 1
    assert found.evidence["spent_pct"] == pytest.approx(50)
    assert "cudaMalloc" in found.says
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(2, rel=0.05)


def test_the_first_step_may_allocate(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        if not at:
            recording.runtime("cudaMalloc", 0, 500)
        launches(recording, at + 500, 50)

    assert findings(allocator_churn, loop(tmp_path, 1_000, body), step_us=1_000) == []


def test_asynchronous_calls_are_the_allocators_own_business(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.runtime("cudaMallocAsync", at, at + 500)
        launches(recording, at + 500, 50)

    assert findings(allocator_churn, loop(tmp_path, 1_000, body), step_us=1_000) == []


def test_what_comes_right_before_memory_is_given_back_goes_too(tmp_path: Path) -> None:
    """2 ms in which nothing is called, then cudaFree: gc.collect() and empty_cache(). It may be something else."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 50)
        recording.runtime("cudaFree", at + 2_500, at + 2_600)
        recording.runtime("cudaFree", at + 2_600, at + 2_700)
        recording.runtime("cudaMalloc", at + 2_700, at + 3_000)

    (found,) = findings(allocator_churn, loop(tmp_path, 3_000, body), step_us=3_000)
    assert found.predicted is not None
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(
        500 / 1.8, rel=0.25
    )  # the launches, on a host that is not recorded: the step says little about them
    assert found.predicted.speedup.low < 3_000 / 2_500


def test_without_steps_it_cannot_look(tmp_path: Path) -> None:
    recording = Recording().runtime("cudaMalloc", 0, 500)
    launches(recording, 500, 50)
    with pytest.raises(MissingDataError, match="fewer than two steps"):
        list(allocator_churn(Case(recording.open(tmp_path))))
