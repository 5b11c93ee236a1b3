"""A disk that is full: the program's exit code stays its own, and no half of a file stays."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from foretrace.capture import plan
from foretrace.capture.run_folder import RunFolder
from foretrace.commands import main
from foretrace.errors import UsageError
from foretrace.whole_files import check_end, whole_or_gone

PROGRAM = """
import sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(12):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
sys.exit(7)
"""


def limited() -> None:
    """No file may grow beyond 8 kB: run.json and rank.json do not, a recording does."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, 8_192))


def test_the_program_keeps_its_exit_code_and_no_half_recording_stays(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(PROGRAM)
    out = tmp_path / "run"
    words = [
        "run",
        "-o",
        out,
        "--wait",
        "2",
        "--warmup",
        "1",
        "--active",
        "3",
        "--",
        sys.executable,
        "train.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "foretrace", *map(str, words)], cwd=tmp_path, text=True, capture_output=True,
        timeout=240, check=False, preexec_fn=limited, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert "could not be written" in done.stderr
    assert sorted(file.name for file in out.rglob("*") if file.is_file()) == ["rank.json", "run.json"]
    assert json.loads((out / "run.json").read_text())["exit_code"] == 7
    assert "could not be written" in json.loads((out / "rank0" / "rank.json").read_text())["reason"]


def test_what_fails_behind_the_program_does_not_change_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """run.json can be written once, before the program starts, and not again."""
    write, calls = RunFolder.write_run, []

    def once(self: RunFolder, facts: dict[str, object]) -> Path:
        calls.append(facts)
        if len(calls) > 1:
            raise UsageError(f"cannot write {self.path}: No space left on device")
        return write(self, facts)

    monkeypatch.setattr(RunFolder, "write_run", once)
    out = tmp_path / "run"
    assert main(["run", "-o", str(out), "--", sys.executable, "-c", "raise SystemExit(5)"]) == 5
    assert len(calls) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_a_run_that_cannot_be_begun_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foretrace.capture.run_folder.write_json", full)
    assert main(["run", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", "print('started')"]) == 2
    assert "run.json: No space left on device" in capsys.readouterr().err


def test_a_file_that_breaks_off_goes_with_what_torch_wrote_beside_it(tmp_path: Path) -> None:
    partial = tmp_path / ".light.partial.json"
    beside = tmp_path / ".light.partial.json.tmp"

    def export(text: str) -> None:
        with whole_or_gone(partial):
            beside.write_text(text)
            partial.write_text(text)
            check_end(partial, b"}")

    with pytest.raises(OSError, match="could not be written"):
        export('{"traceEvents": [')
    assert list(tmp_path.iterdir()) == []
    export('{"traceEvents": []}\n')
    assert partial.exists()
    with pytest.raises(OSError, match="could not be written"):
        check_end(tmp_path / "absent", b"}")


def test_a_plan_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Path, _: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        plan.write_plan(tmp_path, plan.Plan(()))
    assert list(tmp_path.iterdir()) == []
