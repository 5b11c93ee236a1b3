"""Short programs without a GPU: some of their first steps are recorded at once, and stay if nothing better comes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from foretrace.capture.early import FROM_STEP
from foretrace.capture.options import CaptureOptions
from foretrace.capture.recorder import Recorder
from foretrace.capture.run_folder import RunFolder


class Program:
    """Its steps take as long as it says, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000_000
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now_ns)

    def steps(self, recorder: Recorder, count: int, step_ms: float) -> None:
        import torch

        for _ in range(count):
            if recorder.done:
                return
            torch.ones(8, 8) @ torch.ones(8, 8)
            self.now_ns += round(step_ms * 1e6)
            recorder.step()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    return RunFolder(tmp_path / "run").create()


def made(folder: RunFolder, **options: Any) -> Recorder:
    return Recorder(CaptureOptions(output=str(folder.path), **options), folder, 0, early=True)


def facts(folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder.path / "rank0" / "rank.json").read_text())
    return found


def test_120_calls_of_10_ms_leave_both_passes_and_their_step_time(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.2 s in all: the program would be settled for 0.2 s when it ends."""
    recorder = made(folder)
    Program(monkeypatch).steps(recorder, 120, 10)
    recorder.close("the program ended")
    found = facts(folder)
    assert [(kept["kind"], kept["steps"]) for kept in found["passes"]] == [("light", 5), ("rich", 1)]
    assert found["unprofiled"]["median_ns"] == 10_000_000
    assert found["status"] == "partial"
    for kept in found["passes"]:
        assert (folder.path / "rank0" / kept["file"]).is_file()


def test_a_program_that_ends_within_the_early_passes_keeps_what_there_is(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = made(folder)
    Program(monkeypatch).steps(recorder, FROM_STEP + 6, 10)
    recorder.close("the program ended")
    found = facts(folder)
    (light,) = found["passes"]
    assert (light["kind"], found["unprofiled"]["median_ns"]) == ("light", 10_000_000)
    assert "first steps" in found["reason"]


def test_passes_of_a_settled_program_take_the_place_of_the_early_ones(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = made(folder)
    Program(monkeypatch).steps(recorder, 3_000, 10)
    found = facts(folder)
    assert found["status"] == "complete"
    assert [(kept["kind"], kept["steps"], kept["file"]) for kept in found["passes"]] == [
        ("light", 10, "light.json"),
        ("rich", 3, "rich.json"),
    ]
    assert {path.name for path in (folder.path / "rank0").iterdir()} == {
        "light.json",
        "rich.json",
        "rank.json",
    }


def test_a_given_schedule_and_long_steps_need_no_early_pass(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = made(folder, wait=50)
    Program(monkeypatch).steps(recorder, 40, 10)
    recorder.close("the program ended")
    assert facts(folder)["passes"] == []
    recorder = made(folder)
    Program(monkeypatch).steps(recorder, FROM_STEP + 8, 300)  # settled after four of them
    recorder.close("the program ended")
    assert "first steps" not in facts(folder)["reason"]


def test_what_is_of_another_kind_of_step_is_dropped(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, program = made(folder), Program(monkeypatch)
    program.steps(recorder, 40, 10)
    recorder.restart("optimizer.step() of SGD")
    program.steps(recorder, 4, 10)
    recorder.close("the program ended")
    assert facts(folder)["passes"] == []
    assert not (folder.path / "rank0" / "light.json").exists()
