"""`benchmarks/real/measure.py`: processes import together, then have the machine one at a time."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "real"
PROGRAM = """
import os, sys, time
import torch
FIX = os.environ["FIX"]
events = open(os.environ["EVENTS"], "a")
def say(what):
    print(what, FIX or "-", time.monotonic(), file=events, flush=True)
say("begins")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    time.sleep(0.01 if FIX == "half" else 0.02)
    model(torch.ones(2, 8)).sum().backward()
    say("steps")
    optimizer.step()
"""
SET = """
[broken]
what = "a program whose package is not there"
file = "broken.py"
preload = ["not_there"]
changes = {}
rule = {}

[a]
what = "a small program"
file = "a.py"
warm_n = 4
changes = { half = "sleeps half as long" }
rule = { half = "host-bound" }
"""


def load(name: str) -> Any:
    """A module of benchmarks/real."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


measure, turns, truth = load("measure"), load("turns"), load("truth")


@pytest.fixture
def small_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that says when it runs, and one that cannot."""
    (tmp_path / "a.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("import not_there\n")
    (tmp_path / "small.toml").write_text(SET)
    for name, value in {"WARM_S": "0", "BLOCKS": "4", "BLOCK_S": "0.06"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("EVENTS", str(tmp_path / "events"))
    monkeypatch.setattr(turns, "IMPORT_AT_ONCE", 2)  # this may be a small machine
    return tmp_path


def run(folder: Path, *more: str) -> dict[str, Any]:
    """The truth that measure.py finds for the small set."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        places = [
            "--set",
            str(folder / "small.toml"),
            "--out",
            str(folder / "out"),
            "--caches",
            str(folder / "c"),
        ]
        assert measure.main([*places, *more]) == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    file = folder / "out" / "truth.json"
    return json.loads(file.read_text()) if file.exists() else {}


def state_of(job: Any) -> str:
    """R, S, T, ... of the job's process, as Linux gives it; empty when it has ended."""
    if job.process is None or job.process.code is not None:
        return ""
    stat = Path(f"/proc/{job.process._process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]


@pytest.mark.slow
def test_one_process_at_a_time_has_the_machine(small_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    given: list[tuple[str, str]] = []
    awake: list[str] = []
    before: list[str] = []
    give = turns.Turns.give

    def watched(self: Any, job: Any) -> tuple[str, str]:
        if not given and Path(os.environ["EVENTS"]).exists():
            before.append(Path(os.environ["EVENTS"]).read_text())
        given.append((job.name, job.variant))
        others = [other for other in self.jobs if other is not job]
        awake.extend(f"{other.name} {other.variant}" for other in others if state_of(other) not in ("", "T"))
        answer: tuple[str, str] = give(self, job)
        assert job.process.code is not None
        return answer

    monkeypatch.setattr(turns.Turns, "give", watched)
    made = run(small_set, "--record", "half", "--no-warm")

    assert given == [
        *[("broken", variant) for variant in ("base", "base", "record")],
        *[("a", variant) for variant in ("base", "half", "base", "record", "record.half")],
    ]
    assert awake == []
    assert before == []  # no program began before the first turn
    events = [line.split() for line in (small_set / "events").read_text().splitlines()]
    assert [fix for what, fix, _ in events if what == "begins"] == ["-", "half", "-", "-", "half"]
    owner = None
    for what, fix, _ in events:
        owner = fix if what == "begins" else owner
        assert fix == owner

    assert list(made) == ["broken", "a"]
    assert "errors" not in made["a"]
    assert len(made["a"]["step_ms"]) == 2
    assert made["a"]["recorded_ms"] >= 20
    low, high = made["a"]["changes"]["half"]["speedup_range"]
    assert low <= high
    assert high > 1.2
    assert set(made["broken"]["errors"]) == {"base", "record"}
    assert "not_there" in made["broken"]["errors"]["base"]
    with tarfile.open(small_set / "out" / "recordings-1.tar") as file:
        assert sorted(file.getnames()) == ["a.half.tar.xz", "a.tar.xz"]


@pytest.mark.slow
def test_turns_end_with_the_budget(small_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    options = ["--only", "a", "--no-recordings", "--bases", "1", "--no-warm"]
    assert run(small_set, *options, "--budget", "0") == {}
    assert "left out, the budget is spent: --only a" in capsys.readouterr().out
    assert not (small_set / "events").exists()


def test_a_program_is_estimated_by_what_its_processes_do() -> None:
    entry = {"what": "p", "changes": {"compile": "torch.compile(model)", "tf32": "TF32"}, "file": "p.py"}
    place = SimpleNamespace(scratch=Path("nowhere"))
    variants = ("base", "compile", "tf32", "record", "record.compile")
    jobs = [turns.Job(place, "p", variant, entry, variant) for variant in variants]
    assert [job.change for job in jobs] == ["", "compile", "tf32", "", "compile"]
    assert [job.compiles for job in jobs] == [False, True, False, False, True]
    assert [job.out.name for job in jobs[3:]] == ["p", "p.compile"]
    assert measure.estimate_s(jobs) == 5 + 13 + 5 + 20 + 20
    compiled = {**entry, "what": "p, compiled already"}
    assert turns.compiles(compiled, "")
    assert not turns.compiles({**compiled, "compiled": False}, "")


def test_what_is_recorded_is_armed_in_its_turn(tmp_path: Path) -> None:
    """`foretrace run` looks for steps for a while after torch was imported: waiting must not use that up."""
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class _AfterImport:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            print('too early')\n"
        "def _arm():\n"
        "    print('armed', os.path.exists('go'), 'torch' in sys.modules)\n"
        "sys.meta_path.insert(0, _AfterImport())\n"
        f"exec(open({str(FOLDER / 'hold' / 'sitecustomize.py')!r}).read())\n"
    )
    variables = {
        "PATH": "",
        "PYTHONPATH": str(tmp_path),
        "HOLD": "ready,go",
        "HOLD_PRELOAD": "torch,not_there",
    }
    command = [sys.executable, "-c", "print('program')"]
    process = subprocess.Popen(
        command, env=variables, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    assert (tmp_path / "ready").exists()
    (tmp_path / "go").touch()
    out, err = process.communicate(timeout=60)
    assert out.splitlines() == ["armed True True", "program"]
    assert "not imported ahead: not_there" in err


def test_one_run_ranges_over_the_quartiles_of_its_blocks() -> None:
    one = {"step_ms": 10.0, "lo": 8.0, "hi": 14.0, "blocks": [8.0, 9.0, 10.0, 12.0, 14.0]}
    assert truth.step_times([one]) == [10.0, 9.0, 12.0]
    assert truth.step_times([one, one]) == [10.0, 10.0]
    entry = {"what": "p", "changes": {"tf32": "TF32"}, "rule": {"tf32": "r"}}
    fast = {"step_ms": 5.0, "lo": 4.0, "hi": 6.0, "blocks": [4.0, 4.5, 5.0, 6.0, 6.0]}
    made = truth.truth_of(entry, "a GPU", {"base": [one], "tf32": [fast]})
    assert made["changes"]["tf32"]["speedup_range"] == [round(9 / 6, 3), round(12 / 4.5, 3)]
    more = truth.truth_of(entry, "a GPU", {"base": [one], "tf32": [fast]}, recorded_ms=13.5)
    assert more["changes"]["tf32"]["speedup_range"] == [1.5, 3.0]
    other = truth.truth_of(entry, "a GPU", {"base": [one], "tf32": [fast]}, recorded_ms=20.0)
    assert other["changes"] == made["changes"]
    assert (other["recorded_ms"], other["recorded_is_other"]) == (20.0, True)
