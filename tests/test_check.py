"""`scripts/check`: every stage runs, what failed is named, and the exit code says so."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.a.test_x" file="tests/a/test_x.py" name="test_one"/>
<testcase classname="tests.a.test_x" file="tests/a/test_x.py" name="test_two[3]"><failure message="no"/></testcase>
<testcase classname="tests.a.test_x" file="tests/a/test_x.py" name="test_three"><skipped message="no torch"/></testcase>
<testcase classname="" name="tests.b.test_y"><error message="collection"/></testcase>
</testsuite></testsuites>"""
NODE = """✔ draws a line (3.1ms)
✖ draws a box (6.4ms)
ℹ tests 4
ℹ pass 2
ℹ fail 1
ℹ skipped 1

✖ failing tests:

test at box.test.mjs:4:1
✖ draws a box (6.4ms)
  AssertionError: 1 !== 2
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a build folder of its own and the environment of this process."""
    loader = importlib.machinery.SourceFileLoader("check_script", str(ROOT / "scripts" / "check"))
    spec = importlib.util.spec_from_loader("check_script", loader)
    assert spec
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check_script", script)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(script)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "BUILD", tmp_path / "build")
    monkeypatch.setattr(script, "PYTHON", tmp_path / "build" / "python")
    monkeypatch.setattr(script, "environment", dict)
    return script


def test_results_are_counted_from_the_reports_of_pytest_and_node(check: ModuleType) -> None:
    assert check.junit_counts(JUNIT) == (1, ["tests/a/test_x.py::test_two[3]", "tests.b.test_y"], 1)
    assert check.node_counts(NODE) == (2, ["draws a box"], 1)


def test_a_failed_stage_is_named_and_stops_only_what_needs_it(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(work) -> None:  # type: ignore[no-untyped-def]
        work.check("compile", sys.executable, "-c", "print('a line of the log'); raise SystemExit(3)")

    def dependent(work) -> None:  # type: ignore[no-untyped-def]
        raise AssertionError("this stage must not run")

    def faulty(work) -> None:  # type: ignore[no-untyped-def]
        raise FileNotFoundError("no wheel")

    def sound(work) -> None:  # type: ignore[no-untyped-def]
        work.check("pass", sys.executable, "-c", "pass")

    stages = [
        check.Stage(broken),
        check.Stage(dependent, ("broken",)),
        check.Stage(faulty),
        check.Stage(sound),
    ]
    monkeypatch.setattr(check, "STAGES", {stage.name: stage for stage in stages})
    monkeypatch.setattr(sys, "argv", ["check"])
    assert check.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert "a line of the log" in lines
    table = lines[lines.index(next(line for line in lines if line.startswith("stage "))) :]
    assert [line.split()[:2] for line in table[1:5]] == [
        ["FAIL", "broken"], ["FAIL", "dependent"], ["FAIL", "faulty"], ["ok", "sound"],
    ]  # fmt: skip
    assert {line for line in table if line.startswith("FAILED")} == {
        "FAILED broken: compile   (again: scripts/check broken)",
        "FAILED dependent: not run: broken failed   (again: scripts/check dependent)",
        "FAILED faulty: FileNotFoundError: no wheel   (again: scripts/check faulty)",
    }
    monkeypatch.setattr(sys, "argv", ["check", "sound"])
    assert check.main() == 0


@pytest.mark.slow
def test_tests_that_fail_are_named_with_the_command_that_runs_them(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_two.py").write_text("def test_good(): pass\ndef test_bad(): assert 1 == 2\n")

    def tests(work) -> None:  # type: ignore[no-untyped-def]
        work.pytest("test_two.py", python=sys.executable)

    monkeypatch.setattr(check, "STAGES", {"tests": check.Stage(tests)})
    monkeypatch.setattr(sys, "argv", ["check"])
    assert check.main() == 1
    printed = capsys.readouterr().out
    assert (
        "FAILED tests: test_two.py::test_bad   (again: build/python -m pytest 'test_two.py::test_bad')"
        in printed
    )
    (row,) = [line.split() for line in printed.splitlines() if line.startswith("FAIL ")][-1:]
    assert row[-3:] == ["1", "1", "0"]


def test_a_stage_brings_what_it_needs(check: ModuleType) -> None:
    def names(*asked: str, everything: bool = False) -> list[str]:
        return [stage.name for stage in check.chosen(asked, everything=everything)]

    assert names("browser") == ["packages", "chromium", "build", "npm", "browser"]
    assert names(everything=True) == list(check.STAGES)
    assert set(check.STAGES) - set(names()) == {"docs", "wheel", "source"}
