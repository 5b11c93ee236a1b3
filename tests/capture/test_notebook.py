"""The cell magic: its options, and cells run by IPython itself."""

from __future__ import annotations

import argparse
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.capture import notebook
from foretrace.capture.run_folder import RunFolder
from foretrace.commands import run
from foretrace.errors import UsageError
from tests.capture.programs import TRAINING, needs_torch, python


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
    assert asked == [["-P", "-m", "foretrace", str(tmp_path)]]


@needs_torch
@pytest.mark.skipif(
    find_spec("IPython") is None, reason="IPython is not installed: pip install 'foretrace[frameworks]'"
)
def test_cells_of_ipython(tmp_path: Path) -> None:
    """A loop, a step, an error, a wrong option: IPython is told as by any cell, and later cells of a notebook stop."""
    code = f"""{TRAINING}
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
def run(*lines):
    done = shell.run_cell("\\n".join(lines))
    return type(done.error_in_exec).__name__, done.result
shell.push(dict(train=train))
print(run("%load_ext foretrace"))
short = "--quiet --passes light --wait 2 --warmup 1 --active 2"
print(run(f"%%foretrace {{short}} -o loop", "for number in range(20):", "    loss = train()", "number"))
print(run(f"%%foretrace {{short}} -o one --loop", "%precision 3", "loss, count = train(), globals().get('count', 0) + 1"))
print(shell.user_ns["number"], shell.user_ns["count"], isinstance(shell.user_ns["loss"], float))
print(run("%%foretrace --quiet -o failing", "raise ValueError('mine')"))
print(run("%%foretrace --nonsense", "pass"))
"""
    done = python(tmp_path, code, environ={"IPYTHONDIR": str(tmp_path / "ipython")})
    assert done.returncode == 0, done.stderr
    results = [line for line in done.stdout.splitlines() if line.startswith(("('", "19 "))]
    usage = "('UsageError', None)"
    # The loop ends when all is recorded: a boundary to begin with, and five steps.
    assert results == [*["('NoneType', None)"] * 3, "19 6 True", usage, usage], done.stdout
    assert "Out[0]: 19" in done.stdout  # the value of the cell, as IPython shows it
    assert "ValueError: mine" in done.stdout
    assert "UsageError: %%foretrace: the cell raised ValueError; see above" in done.stderr
    assert "UsageError: %%foretrace: unrecognized arguments: --nonsense" in done.stderr
    assert "notebook.py" not in done.stdout + done.stderr
    loop, one = (RunFolder.read(tmp_path / name).ranks[0] for name in ("loop", "one"))
    assert loop.facts["step_source"] == "optimizer.step() of SGD"
    assert one.facts["step_source"] == "foretrace.step()"
    for rank in (loop, one):
        assert (rank.facts["status"], rank.facts["steps_seen"]) == ("complete", 5)
        assert rank.recording("light") is not None
    failing = RunFolder.read(tmp_path / "failing").ranks[0].facts
    assert (failing["status"], "ValueError" in failing["reason"]) == ("partial", True)
