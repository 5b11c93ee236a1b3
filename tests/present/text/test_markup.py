"""Text of a recording in Markdown, CSV and on terminals: shown as it is, never obeyed."""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace import cache
from foretrace.commands import main
from foretrace.diagnose.diagnosis import Diagnosis
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.step_times import StepTimes
from foretrace.present.text import findings, markup, tables
from foretrace.units import visible
from tests.builders import Recording

HOSTILE = "a | b `c` <img src=x> [l](javascript:x) **d** _e_ &amp; $x$ https://evil.example www.evil.example \x1b[31m"
ESCAPE, C1, BIDI = "\x1b]0;owned\x07", "\x9b31m", "\u202etxt.exe"


def test_markdown_shows_no_markup() -> None:
    assert markup.escaped(HOSTILE) == (
        r"a \| b \`c\` \<img src=x\> \[l\](javascript:x) \*\*d\*\* \_e\_ \&amp; \$x\$ https\://evil.example "
        r"www\.evil.example \\x1b\[31m"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- a", r"\- a"),
        ("+ a", r"\+ a"),
        ("1. a", r"1\. a"),
        ("12) a", r"12\) a"),
        ("# a", r"\# a"),
        ("==", r"\=="),
    ],
)
def test_markdown_begins_no_list_and_no_heading(text: str, shown: str) -> None:
    assert markup.paragraph(text) == shown


def test_code_is_not_ended_by_backticks_inside() -> None:
    assert markup.code("a.py:3 in f") == "`a.py:3 in f`"
    assert markup.code("a``b") == "```a``b```"
    assert markup.code("`a") == "`` `a ``"
    assert markup.code_block("x\n```\n<b>\x1b") == ["````python", "x", "```", "<b>\\x1b", "````"]


@pytest.mark.parametrize(
    "text", ["=1+1", "+x", "-x", "@SUM(A1)", "=cmd|' /C calc'!A0", "\uff1d1", "-1+1", "+1;2"]
)
def test_csv_holds_no_formula(text: str) -> None:
    assert markup.csv_text(text) == f"'{text}"
    frame = pl.DataFrame({"name": [text]}, schema={"name": pl.Categorical})
    assert list(csv.reader(io.StringIO(tables.to_csv(frame)))) == [["name"], [f"'{text}"]]


@pytest.mark.parametrize("text", ["-5", "+5", "-1.5e-3", "-.5", "aten::add", "a-b", "", "(=x)"])
def test_csv_keeps_numbers_and_ordinary_text(text: str) -> None:
    assert markup.csv_text(text) == text


def test_csv_keeps_numbers_as_they_are() -> None:
    frame = pl.DataFrame({"=a": [-5], "x_pct": [-1.5], "name": ["\t=1"]})
    assert tables.to_csv(frame) == "'=a,x_pct,name\n-5,-1.5,\\x09=1\n"


@given(st.text(max_size=40))
def test_csv_and_markdown_act_on_no_terminal(text: str) -> None:
    for shown in (markup.csv_text(text), markup.escaped(text), markup.code(text)):
        assert shown == visible(shown)


def test_a_diagnosis_in_markdown_shows_names_as_text() -> None:
    finding = Finding(
        rule="host-sync", severity="high", says=HOSTILE, why="", evidence={},
        where=(Place("a`.py", 3, ESCAPE),), fix=Fix(HOSTILE, "x = 1\n```\n<script>"),
    )  # fmt: skip
    text = findings.to_markdown(
        Diagnosis((finding,), (), (), None), StepTimes(1e6, None, None, True), HOSTILE
    )
    assert text.count(markup.escaped(HOSTILE)) == 3, "its name, what it says, and the fix"
    assert "\n   ````python\n   x = 1\n   ```\n   <script>\n   ````\n" in text
    assert "\x1b" not in text
    assert f"   - at ``a`.py:3 in {visible(ESCAPE)}``" in text


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "csv", "md", "json"])
@pytest.mark.parametrize("command", [["show", "kernels"], ["show", "operators"], ["summary"], []], ids=str)
def test_no_command_prints_what_acts_on_a_terminal(
    command: list[str], form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Recording().step(1, 0, 100)
    for number, name in enumerate((ESCAPE, C1, BIDI)):
        made.op(name, 5 + 20 * number, 20 + 20 * number).launch(
            10 + 20 * number, name, 30 + number, 31 + number
        )
    path = made.write(tmp_path, f"x{ESCAPE}{BIDI}.json")
    main([*command, str(path), "--format", form])
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["PATH"],
        ["show", "kernels", "PATH"],
        ["report", "PATH", "-o", "PATH.html"],
        ["flame", "PATH", "-o", "PATH"],
        ["PATH\n"],
    ],
    ids=str,
)
def test_file_names_in_errors_are_shown_as_text(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(tmp_path / f"no{ESCAPE}{C1}{BIDI}")
    assert main([each.replace("PATH", name) for each in arguments]) in (2, 3)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "\\x1b" in error
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(error)


@pytest.mark.slow
def test_what_was_written_is_told_in_plain_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Recording().step(1, 0, 100).op("aten::add", 5, 20).launch(10, "add", 30, 60).write(tmp_path)
    endings = {"perfetto": ".json", "report": ".html"}
    for command in ("perfetto", "report"):
        output = tmp_path / f"out{ESCAPE}{endings[command]}"
        assert main([command, str(path), "-o", str(output)]) == 0
        assert "\x1b" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes there alone")
def test_a_file_name_that_is_no_text_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORETRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "MIN_SPANS", 1)
    made = Recording().step(1, 0, 100).python("/a.py(1): f", 1, 99).op("aten::add", 5, 20)
    path = str(made.launch(10, "add", 30, 60).write(tmp_path, os.fsdecode(b"x\xff\x1b.json")))
    for arguments in (
        ["flame", path, "-o", str(tmp_path / "out.speedscope.json"), "--metric", "host"],
        ["report", path, "-o", str(tmp_path / "out.html")],
        ["cache"],
        ["cache", "--format", "csv"],
    ):
        assert main(arguments) == 0, capsys.readouterr().err
        captured = capsys.readouterr()
        assert "\x1b" not in captured.out + captured.err
    assert "\\udcff" in captured.out
