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
from foretrace.capture.hidden_files import HiddenFile, hidden_file, remove_leftovers
from foretrace.capture.run_folder import RunFolder
from foretrace.commands import main
from foretrace.errors import UsageError
from foretrace.whole_files import check_end

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
    names = sorted(file.name for file in out.rglob("*") if file.is_file())
    assert [name for name in names if not name.startswith("lines-")] == ["rank.json", "run.json"]
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


def export(target: Path, text: str) -> None:
    """As Kineto writes: into a second name, which it then renames to the first."""
    with hidden_file(target) as file:
        beside = file.path.with_name(f"{file.path.name}.tmp")
        beside.write_text(text)
        beside.replace(file.path)
        check_end(file.path, b"}")
        file.publish()


@pytest.mark.parametrize("system", ["linux", "no /proc", "no files without a name"])
def test_a_file_that_breaks_off_leaves_nothing(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "no /proc":
        monkeypatch.setattr("foretrace.capture.hidden_files._unnamed_file", lambda _: None)
    elif system == "no files without a name":  # such as NFS
        monkeypatch.setattr(os, "O_TMPFILE", os.O_RDWR)
    target = tmp_path / "light.json"
    with pytest.raises(OSError, match="could not be written"):
        export(target, '{"traceEvents": [')
    assert list(tmp_path.iterdir()) == []
    whole = json.dumps({"traceEvents": [], "note": "push ghp_" + "0123456789abcdefABCDEF0123456789abcd"})
    for _ in range(2):  # also in place of an earlier one
        export(target, whole)
        assert list(tmp_path.iterdir()) == [target]
        assert json.loads(target.read_text())["note"] == f"push {'*' * 40}"
    assert target.stat().st_mode & 0o600 == 0o600
    with pytest.raises(OSError, match="could not be written"):
        check_end(tmp_path / "absent", b"}")


def test_a_file_in_the_making_has_no_bytes_that_another_process_could_find(tmp_path: Path) -> None:
    """What `kill -9` would leave at this moment: links, and no file."""
    file = HiddenFile(tmp_path / "rich.json")
    file.path.write_text("secret" * 10_000)
    assert [path for path in tmp_path.iterdir() if not path.is_symlink()] == []
    os.close(file._descriptor or -1)  # as the kernel does
    assert not file.path.exists()
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Path, _: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        plan.write_plan(tmp_path, plan.Plan(()))
    assert list(tmp_path.iterdir()) == []
