"""The cell magic, driven by a fake of IPython's shell: IPython is not installed where the tests run."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.capture import notebook
from foretrace.capture.run_folder import RunFolder
from foretrace.commands import run
from foretrace.errors import UsageError
from tests.capture.programs import TRAINING, needs_torch, python

# What load_ipython_extension and a cell magic use of InteractiveShell: the names and behaviour of IPython 9.
SHELL = """
import traceback
class Shell:
    def __init__(self):
        self.user_ns, self.magics = {}, {}
    def register_magic_function(self, function, magic_kind="line", magic_name=None):
        assert magic_kind == "cell"
        self.magics[magic_name] = function
    def transform_cell(self, cell):
        return cell + "\\n"
    def run_cell(self, cell):
        try:
            exec(compile(cell, "<cell>", "exec"), self.user_ns)
        except Exception:
            traceback.print_exc()
"""


class Shell:
    """Keeps what is registered."""

    def __init__(self) -> None:
        self.magics: dict[str, Any] = {}

    def register_magic_function(self, function: Any, magic_kind: str = "line", magic_name: str = "") -> None:
        self.magics[f"{magic_kind} {magic_name}"] = function


def test_loading_the_extension_registers_the_magic() -> None:
    shell = Shell()
    foretrace.load_ipython_extension(shell)
    assert list(shell.magics) == ["cell foretrace"]
    assert "--loop" in (shell.magics["cell foretrace"].__doc__ or "")


def test_a_wrong_option_says_which_there_are() -> None:
    with pytest.raises(UsageError, match=r"--nonsense.*--loop"):
        notebook.run_cell(Shell(), "--nonsense", "pass")


def test_the_magic_takes_the_options_of_run() -> None:
    """All that is about steps, schedule, switches and limits; not what starts or stops a process."""
    ours = argparse.ArgumentParser()
    run.configure(ours)
    alone = {"--with", "--stop-after-capture", "--launch-blocking"}
    wanted = {
        word for action in ours._actions for word in action.option_strings if word not in ("-h", "--help")
    }
    magic = {word for action in notebook._parser()._actions for word in action.option_strings}
    assert wanted - magic == alone


def test_the_options_reach_the_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    class Stopped(Exception):
        pass

    def profile(output: str | None, **options: Any) -> Any:
        asked.update(options, output=output)
        raise Stopped

    monkeypatch.setattr(notebook, "profile", profile)
    with pytest.raises(Stopped):
        notebook.run_cell(Shell(), "-o there --wait 2 --warmup 1 --no-with-stack --settle-s 0.5", "pass")
    assert (asked["output"], asked["wait"], asked["warmup"], asked["settle_s"]) == ("there", 2, 1, 0.5)
    assert not asked["rich"].with_stack


def test_the_diagnosis_comes_from_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[1:])
        assert "FORETRACE_CAPTURE" not in options["env"]
        return subprocess.CompletedProcess(command, 3, "", "foretrace: no such folder\n")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("FORETRACE_CAPTURE", "{}")
    assert notebook._diagnosis(str(tmp_path)) == "foretrace: no such folder\n"
    assert asked == [["-m", "foretrace", str(tmp_path)]]


@needs_torch
def test_a_cell_with_a_loop_and_a_cell_that_is_one_step(tmp_path: Path) -> None:
    code = f"""{TRAINING}{SHELL}
shell = Shell()
foretrace.load_ipython_extension(shell)
shell.user_ns.update(train=train)
magic = shell.magics["foretrace"]
magic("--quiet -o loop --passes light --active 2", "for number in range(2000): loss = train()")
magic("--quiet -o one --passes light --active 2 --loop", "loss = train(); count = globals().get('count', 0) + 1")
magic("--quiet -o failing", "raise ValueError('mine')")
print(shell.user_ns["count"] > 5, isinstance(shell.user_ns["loss"], float))
"""
    done = python(tmp_path, code)
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
    assert "ValueError: mine" in done.stderr
    loop, one = RunFolder.read(tmp_path / "loop"), RunFolder.read(tmp_path / "one")
    assert loop.ranks[0].facts["step_source"] == "optimizer.step() of SGD"
    assert one.ranks[0].facts["step_source"] == "foretrace.step()"
    assert one.ranks[0].facts["status"] == "complete"
    assert one.ranks[0].recording("light") is not None
    assert RunFolder.read(tmp_path / "failing").ranks[0].facts["status"] == "partial"
