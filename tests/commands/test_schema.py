"""Schemas: every command that prints JSON has one, each is printed by its name, and each notices what is wrong.

tests/conftest.py checks every document that a command prints in any test, and that its schema would notice a field that is gone.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from foretrace.commands import main, whole_parser
from foretrace.present import schema
from tests import schemas
from tests.builders import Recording

pytest.importorskip("jsonschema", reason="of the extra `dev`: documents cannot be checked without it")
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "json.md"


def printing_json() -> list[str]:
    """The commands with --format json."""
    (commands,) = (
        action for action in whole_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    found = []
    for name, parser in commands.choices.items():
        below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        actions = next(iter(below[0].choices.values()))._actions if below else parser._actions
        formats = next((action.choices for action in actions if "--format" in action.option_strings), ())
        found += [name] if "json" in (formats or ()) else []
    return found


def test_every_command_that_prints_json_has_a_schema() -> None:
    commands = printing_json()
    assert {"diagnose", "show", "compare", "doctor", "bench", "try"} <= set(commands)
    assert {schemas.name_of(command, None) for command in commands} <= set(schema.names())


@pytest.mark.slow
def test_every_schema_is_printed_listed_and_in_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    import jsonschema

    assert main(["schema", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in listed] == list(schema.names())
    guide = GUIDE.read_text(encoding="utf-8")
    for row in listed:
        assert main(["schema", row["name"]]) == 0
        printed = json.loads(capsys.readouterr().out)
        jsonschema.Draft202012Validator.check_schema(printed)
        assert printed["title"] == row["says"]
        assert re.search(rf"`{row['name']}`", guide), f"docs/guide/json.md does not name {row['name']}"
    assert main(["schema", "diagnos"]) == 2
    assert "did you mean diagnose?" in capsys.readouterr().err


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    made = Recording().step(1, 0, 100).op("aten::add", 5, 20).launch(10, "add_kernel", 30, 60)
    return made.write(tmp_path)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main([*arguments, "--format", "json"])
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def test_a_schema_notices_what_is_wrong(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand, what the fixture does to every kind of document: fields taken out, of another type, and undocumented ones."""
    good = document(capsys, "show", "kernels", str(recording))
    assert schemas.problems(good, "show") == []
    assert list(schemas.let_through(good, "show")) == []
    changed: dict[str, Any]
    for wrong in (
        {**good, "schema": 2},
        {**good, "rows": {}},
        {**good, "values": {"total_ns": "30"}},
        {**good, "rows": [{**good["rows"][0], "total_ns": "30 µs"}]},
        {**good, "trace": {"path": "x"}},
        {key: value for key, value in good.items() if key != "notes"},
        {**good, "undocumented": 1},
    ):
        changed = wrong
        assert schemas.problems(changed, "show"), changed


@pytest.mark.slow
def test_errors_are_documents_where_json_is_asked_for(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line on standard error stays; the document says the same, with the exit code and the kind."""
    (tmp_path / "bad.json").write_text("no recording")
    for arguments, code, kind in (
        (["show", "kernals", str(recording)], 2, "usage"),
        (["show", "kernels", str(recording), "--limt", "3"], 2, "usage"),
        (["summary", str(tmp_path / "absent.json")], 3, "input"),
        (["summary", str(tmp_path / "bad.json")], 3, "format"),
        (["memory", str(recording)], 4, "not-recorded"),
        (["show", "memory", str(recording)], 4, "not-recorded"),
    ):
        for form in (["--format", "json"], ["--format=json"], ["--form", "json"]):
            assert main([*arguments, *form]) == code
            captured = capsys.readouterr()
            told = json.loads(captured.out)
            schemas.check(told, "error")
            assert (told["error"]["code"], told["error"]["kind"]) == (code, kind)
            assert captured.err == f"foretrace: {told['error']['message']}\n"
        assert main(arguments) == code
        assert capsys.readouterr().out == ""
    assert document(capsys, "show", "kernals", "x")["error"]["did_you_mean"] == ["kernels"]
    assert document(capsys, "show", "kernels", "x", "--limt", "3")["error"]["did_you_mean"] == ["--limit"]


def test_an_error_after_the_answer_is_no_second_document(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The comparison is printed, and then the file of gates cannot be written."""
    target = tmp_path / "no-such-folder" / "gates.xml"
    limits = ["--fail-on", "step_ms > +3%", "--junit", str(target)]
    assert main(["compare", str(recording), str(recording), "--format", "json", *limits]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["schema"] == "foretrace.compare/1"
    assert "cannot be written" in captured.err


def test_what_a_program_is_given_is_not_asked_of_us(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try", "--from", "absent", "--", "python", "train.py", "--format", "json"]) != 0
    assert capsys.readouterr().out == ""


def test_the_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    import platform

    import foretrace

    told = document(capsys, "--version")
    schemas.check(told, "version")
    assert (told["foretrace"], told["python"]) == (foretrace.__version__, platform.python_version())


@pytest.mark.slow
def test_documents_of_every_quick_command(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is checked by the fixture as it is printed; here, that they are no errors."""
    monkeypatch.chdir(tmp_path)
    path = str(recording)
    for arguments in (
        ["demo"],
        ["summary", path],
        ["sql", path, "show tables"],
        ["doctor"],
        ["formats"],
        ["cache"],
        ["schema"],
        ["explain", "aten::mm"],
        ["predict", path, "--change", "scale host 0.5"],
        ["compare", path, path],
        ["compare", path, path, path],
        ["compare", path, path, "--by", "kernels"],
        ["compare", path, "--save-baseline", "main"],
        ["compare", path, "--baseline", "main"],
    ):
        assert main([*arguments, "--format", "json"]) == 0, arguments
        printed = capsys.readouterr().out
        assert ("--save-baseline" in arguments) == (not printed), arguments
    schemas.check(json.loads(Path("foretrace-baselines.json").read_text()), "baselines")
