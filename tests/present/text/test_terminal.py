from __future__ import annotations

import io
import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

import polars as pl
import pytest
from rich.progress import Progress

from foretrace import analyze
from foretrace.analyze.result import Result
from foretrace.analyze.steps import ROLES
from foretrace.present.text import summary_page, terminal
from foretrace.trace import Trace
from foretrace.units import cells
from tests.builders import Recording

HOSTILE = {
    "escape": "\x1b[31mred\x1b[0m\x1b]0;owned\x07",
    "markup": "[red]not red[/red] [link=http://x]y[/link] :smile: [/]",
    "bidi": "\u202egnp.exe\u2066x\u2069",
    "controls": "a\rb\nc\td\x08\x7f\x9b31m",
    "long": "k" * 10_000,
    "wide": "語" * 500,
    "zero-width": "\u200b\u0301" * 500,
    "html": "<script>alert(1)</script>",
}


class Screen(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("COLUMNS", "100")
    return Screen()


def plain(text: str) -> str:
    """The text without colours; any other escape sequence stays."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def a_result(name: str = "softmax", **changes: object) -> Result:
    fields = {
        "name": "thing",
        "says": f"{name} is the slowest",
        "table": pl.DataFrame(
            {"name": [name, "matmul"], "total_ns": [3_000_000, 1_000], "total_pct": [75.0, 25.0]}
        ),
        "values": {"busy_ns": 1_500, "busy_pct": 12.5, "label": name, "lost_count": None},
        "denominators": {"total_pct": "of the kernel time", "busy_pct": "of the step"},
        "notes": (f"a note on {name}",),
        **changes,
    }
    return Result(**fields)  # type: ignore[arg-type]


def test_result_as_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_result(a_result(), rows_left=1234)
    assert capsys.readouterr().out == (
        "thing  softmax is the slowest\n"
        "\n"
        "  busy        1.50 µs   12.5 %  of the step\n"
        "  label       softmax\n"
        "  lost count  not recorded\n"
        "\n"
        "name       total  total %\n"
        "softmax  3.00 ms   75.0 %\n"
        "matmul   1.00 µs   25.0 %\n"
        "1,234 more rows; --limit 0 prints all\n"
        "total %: of the kernel time\n"
        "\n"
        "· a note on softmax\n"
    )


def test_notes_say_what_is_not_shown_and_how_to_see_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "34")
    table = pl.DataFrame(
        {
            "name": ["softmax"], "wait_ns": [0], "lost_ns": [None], "a_ns": [1], "b_ns": [2], "c_ns": [3], "d_ns": [4],
            "e_ns": [5], "key_ns": [6],
        },
        schema_overrides={"lost_ns": pl.Int64},
    )  # fmt: skip
    terminal.show_result(a_result(table=table, values={}, notes=(), keep=("name", "key_ns")))
    shown = capsys.readouterr().out.splitlines()
    assert shown[2].split() == ["name", "a", "b", "c", "key"]
    assert " ".join(shown[4:]) == (
        "not shown: d_ns, e_ns (to see them: a wider terminal or --columns NAME,... or --format json) "
        "not shown, 0 in every row above: wait_ns (to see them: --format json) not recorded: lost_ns"
    )
    terminal.show_result(
        a_result(table=table.select("name", "wait_ns", "lost_ns"), values={}, notes=()), all_columns=True
    )
    assert capsys.readouterr().out.splitlines()[2:] == ["name     wait  lost", "softmax     0     –"]


def test_a_query_shows_every_column_that_it_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_frame(pl.DataFrame({"n_count": [0], "nothing": [None]}))
    assert capsys.readouterr().out == "n count  nothing\n      0  –\n"


@pytest.mark.parametrize("width", [40, 80])
def test_commands_are_never_cut(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    command = "foretrace predict trace.json.gz --change 'fix unfused-attention' --step-ms 12.5 --format json"
    sample = Path("/a/folder") / ("name" * 30) / "sample.json.gz"
    terminal.show_next([(command, "what it is worth")], sample=sample)
    shown = capsys.readouterr().out
    assert f"  {command}\n" in shown
    assert f"  this recording: {sample}\n" in shown
    terminal.show_result(a_result(notes=(f"try `{command}` then",)))
    assert f"`{command}`" in capsys.readouterr().out


def test_colours_and_bars_on_a_terminal(screen: Screen) -> None:
    with redirect_stdout(screen):
        terminal.show_result(a_result())
    assert "\x1b[" in screen.getvalue()
    assert "75.0 % ██████████" in plain(screen.getvalue())
    assert "25.0 % ███▍" in plain(screen.getvalue())


def test_no_color_is_respected(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(screen):
        terminal.show_result(a_result())
    assert "softmax" in screen.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])", screen.getvalue())


@pytest.mark.parametrize("width", [20, 40, 80, 100, 200])
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_are_only_text(
    kind: str, width: int, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with redirect_stdout(screen):
        terminal.show_result(a_result(HOSTILE[kind]))
        terminal.show_frame(pl.DataFrame({HOSTILE[kind]: [HOSTILE[kind]], "n_count": [1]}))
    shown = plain(screen.getvalue())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", shown)
    assert max(map(len, shown.split("\n"))) <= 2 * width
    if kind == "markup" and width >= 80:
        assert "[red]not red[/red] [link=http://x]y[/link] :smile: [/]" in shown


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_in_a_notebook(kind: str) -> None:
    shown = a_result(HOSTILE[kind])._repr_html_()
    assert "<script" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("width", [24, 60, 80, 120, 300])
@pytest.mark.parametrize("colour", [True, False])
def test_page_of_a_hostile_recording(width: int, colour: bool, tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[{"id": 0, "name": HOSTILE["escape"] + HOSTILE["markup"]}])
    for number in range(20):
        at = number * 100.0
        recording.step(number, at, at + 100)
        for index, name in enumerate(HOSTILE.values()):
            recording.launch(at + 2 * index, name, at + 10 * index, at + 10 * index + 9)
    trace = recording.open(tmp_path)
    results = [analyze.run(trace, name) for name in ("trust", "overview", "steps", "kernels")]
    lines = list(summary_page.page_lines(trace, results, {}, width=width, colour=colour))
    text = "\n".join("".join(part for part, _ in line) for line in lines)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "12 more steps" in text
    assert width < 60 or max(cells(line.rstrip()) for line in text.split("\n")) <= width
    assert all(style in terminal.STYLES for line in lines for _, style in line if style)


def test_page_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Recording().op("aten::add", 0, 10).open(tmp_path, "cpu.json")
    terminal.show_page(trace, [], {"steps": "cpu.json: no steps recorded; call profiler.step()"})
    assert capsys.readouterr().out == (
        "foretrace cpu.json\n"
        "          no GPU · 0 steps · 1 events · 10.0 µs recorded\n"
        "\n"
        "steps     cpu.json: no steps recorded; call profiler.step()\n"
    )


def test_bar_parts_are_as_long_as_their_shares() -> None:
    parts = dict.fromkeys(ROLES, 0) | {"kernel": 60, "memcpy": 30, "runtime": 10}
    bar = summary_page.stacked_bar(parts, 100, 50, colour=False)
    assert bar == [("K" * 30, "role kernel"), ("C" * 15, "role memcpy"), ("R" * 5, "role runtime")]
    half = summary_page.stacked_bar(parts, 200, 50, colour=True)
    assert sum(len(text) for text, _ in half) == 25
    assert summary_page.stacked_bar(dict.fromkeys(ROLES), 0, 50, colour=True) == []


@pytest.mark.parametrize(("value", "expected"), [(100.0, "█" * 10), (0.0, " " * 10), (None, " " * 10), (50.0, "█" * 5 + " " * 5), (1.25, "▏" + " " * 9)])  # fmt: skip
def test_share_bars(value: float | None, expected: str) -> None:
    assert summary_page.share_bar(value, 100.0) == expected


def test_progress_only_for_large_files_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large, little = tmp_path / "large", tmp_path / "little"
    for path, size in ((large, terminal.LARGE_BYTES), (little, 10)):
        path.touch()
        os.truncate(path, size)
    drawn: list[tuple[float | None, float | None]] = []
    monkeypatch.setattr(
        Progress, "update", lambda self, task, completed, total: drawn.append((completed, total))
    )
    with terminal.reading(large) as progress:
        assert progress is None  # stderr is no terminal here
    monkeypatch.setattr(sys, "stderr", Screen())
    with terminal.reading(little) as progress:
        assert progress is None
    with terminal.reading(tmp_path / "absent") as progress:
        assert progress is None
    with terminal.reading(large) as progress:
        assert progress is not None
        progress(10, 100)
    assert drawn == [(10, 100)]


def test_empty_table_still_shows_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_frame(pl.DataFrame(schema={"name": pl.String, "total_ns": pl.Int64}))
    assert capsys.readouterr().out == "name  total\n"


def test_sentences_go_below_their_row_only_where_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.DataFrame({"code": ["a"], "says": ["short"]})
    terminal.show_frame(frame)
    assert capsys.readouterr().out == "code  says\na     short\n"
    terminal.show_frame(pl.DataFrame({"code": ["a"], "says": ["word " * 40]}))
    assert capsys.readouterr().out.splitlines()[:2] == ["code", "a"]


def test_notebook_shows_units_and_whole_names() -> None:
    name = "void at::native::" + "x" * 200
    shown = a_result(name)._repr_html_()
    assert "3.00 ms" in shown
    assert f"title='{name}'" in shown


def test_trace_of_no_device_has_a_page(tmp_path: Path) -> None:
    trace: Trace = Recording().step(1, 0, 10).op("aten::add", 0, 10).open(tmp_path)
    results = [analyze.run(trace, name) for name in ("trust", "overview", "steps")]
    assert list(summary_page.page_lines(trace, results, {}, width=100, colour=True))
