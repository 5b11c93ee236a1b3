"""Completions and the manual page: made from the parsers, and taken by the shells and by man."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from foretrace.analyze import ANALYSES
from foretrace.commands import COMMANDS, main, whole_parser
from foretrace.commands._parser import flags
from foretrace.commands.completion import SHELLS
from foretrace.diagnose import RULES

BASH = """
source {script}
ask() {{ COMP_WORDS=(foretrace "$@"); COMP_CWORD=$#; COMPREPLY=(); _shtab_foretrace; echo "${{COMPREPLY[@]}}"; }}
ask show ker
ask diagnose --explain host-sy
ask verify a b --finding host-sy
ask bench matm
ask show kernels x --format j
ask schema predi
ask try --only fused-o
ask sho
"""
COMPLETED = ["kernels", "host-sync", "host-sync", "matmul", "json", "predict", "fused-optimizer", "show"]
CHECKED = {"bash": ["-n"], "zsh": ["-n"], "fish": ["--no-execute"], "tcsh": ["-f"]}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import contextlib
    import io

    folder, made = tmp_path_factory.mktemp("completion"), {}
    for shell in SHELLS:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(["completion", shell]) == 0
        made[shell] = folder / shell
        made[shell].write_text(printed.getvalue(), encoding="utf-8")
    return made


@pytest.mark.slow
def test_every_script_names_commands_analyses_and_rules(scripts: dict[str, Path]) -> None:
    for shell, script in scripts.items():
        text = script.read_text()
        names = [*(command.name for command in COMMANDS), *(analysis.name for analysis in ANALYSES)]
        names += (
            [] if shell == "tcsh" else [rule.name for rule in RULES]
        )  # tcsh completes no values of options
        missing = [name for name in names if name not in text]
        assert not missing, (shell, missing)


def test_bash_completes_names(scripts: dict[str, Path]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    asked = subprocess.run([bash, "-c", BASH.format(script=scripts["bash"])], capture_output=True, text=True)
    assert asked.stderr == ""
    assert asked.stdout.split() == COMPLETED


def test_fish_completes_names(scripts: dict[str, Path]) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("there is no fish here")
    asked = f"source {scripts['fish']}; complete -C 'foretrace show ker'; complete -C 'foretrace show kernels --lim'"
    done = subprocess.run([fish, "--no-config", "-c", asked], capture_output=True, text=True)
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == ["kernels", "--limit"], (
        done.stderr
    )


@pytest.mark.parametrize("shell", CHECKED)
def test_shells_read_their_scripts(shell: str, scripts: dict[str, Path]) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run([program, *CHECKED[shell], str(scripts[shell])], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_manual_page_has_every_command_and_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["man"]) == 0
    page = capsys.readouterr().out
    plain = page.replace("\\-", "-")
    options = [flag for flag in flags(whole_parser()) if flag != "--help"]
    assert len(options) > 100
    assert [
        name for name in (command.name for command in COMMANDS) if f'.SS "foretrace {name}"' not in plain
    ] == []
    assert [flag for flag in options if f"\\fB{flag}\\fR" not in plain] == []
    assert page.isascii()
    file = tmp_path / "foretrace.1"
    file.write_text(page)
    if groff := shutil.which("groff"):
        done = subprocess.run([groff, "-man", "-Tascii", "-ww", str(file)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    if mandoc := shutil.which("mandoc"):
        done = subprocess.run(
            [mandoc, "-T", "lint", "-W", "warning", str(file)], capture_output=True, text=True
        )
        # Whose page has no date is the same page every day.
        assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []
    if groff is None and mandoc is None:
        pytest.skip("neither groff nor mandoc is here to read the page")


def test_start_up_does_not_pay_for_it() -> None:
    import sys

    code = "import sys, foretrace.commands as c; c.main(['--version']); print('shtab' in sys.modules, 'difflib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"
