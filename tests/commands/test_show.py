from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Literal

import polars as pl
import pytest

from foretrace import analyze
from foretrace.analyze.result import Analysis, Result, Subject, analysis
from foretrace.commands import main
from foretrace.trace import Trace
from tests.builders import Recording

SEEN: dict[str, object] = {}


@analysis(Subject.REST)
def probe(
    trace: Trace,
    *,
    min_gap_ns: int = 1_000,
    ratio: float = 0.5,
    only: str | None = None,
    deep: bool = False,
    group_by: Literal["name", "op"] = "name",
    weird: tuple[int, ...] = (),
    limit: int = 3,
) -> Result:
    """Rows that show how they were asked for."""
    SEEN.clear()
    SEEN.update(min_gap_ns=min_gap_ns, ratio=ratio, only=only, deep=deep, group_by=group_by)
    table = pl.DataFrame(
        {
            "name": pl.Series(["b", "a", "c"], dtype=pl.Categorical),
            "total_ns": [1, 3, None],
            "total_pct": [math.nan, 75.0, 1.0],
        }
    )
    return Result(says="it says", table=table, values={"busy_pct": math.nan})


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Analysis:
    monkeypatch.setattr(analyze, "ANALYSES", (*analyze.ANALYSES, probe))
    return probe


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(Recording().step(1, 0, 100).launch(10, "add_kernel", 30, 60).write(tmp_path))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "--list").splitlines()
    named = [line for line in lines if line and not line.endswith("?")]
    assert [line.split()[0] for line in named] == [analysis.name for analysis in analyze.ANALYSES]
    assert named[-1].split(None, 1)[1] == "Rows that show how they were asked for."
    questions = {analysis.subject.value for analysis in analyze.ANALYSES}
    assert {line for line in lines if line.endswith("?")} == questions


def test_options_become_flags(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, "probe", path)
    assert SEEN == {"min_gap_ns": 1000, "ratio": 0.5, "only": None, "deep": False, "group_by": "name"}
    shown(
        capsys,
        "probe",
        path,
        "--min-gap-ns",
        "5",
        "--ratio",
        "0.25",
        "--only",
        "x",
        "--deep",
        "--group-by",
        "op",
    )
    assert SEEN == {"min_gap_ns": 5, "ratio": 0.25, "only": "x", "deep": True, "group_by": "op"}
    shown(capsys, "probe", path, "--no-deep")
    assert SEEN["deep"] is False


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--min-gap-ns", "soon"], "invalid int value: 'soon'"),
        (["--group-by", "colour"], "invalid choice: 'colour'"),
        (["--weird", "1"], "unrecognized arguments"),
        (["--sort", "colour"], "no column 'colour' to sort by; there are: name, total_ns, total_pct"),
        (["--sort", "nam"], "no column 'nam' to sort by; did you mean name?"),
        (["--sort", "total"], "no column 'total' to sort by; did you mean total_ns or total_pct?"),
        (["--columns", "name,totl_ns"], "no column 'totl_ns'; did you mean total_ns?"),
        (["--columns", ""], "no column ''; there are: name, total_ns, total_pct"),
        (["--sort", "name:up"], "the order is asc or desc"),
    ],
)
def test_wrong_options_are_told(
    arguments: list[str], says: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "probe", path, *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("total_ns", "abc"),
        ("total_ns:asc", "bac"),
        ("name", "abc"),
        ("name:desc", "cba"),
        ("total_pct:asc", "cab"),
    ],
)
def test_sort(order: str, names: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = csv.DictReader(io.StringIO(shown(capsys, "probe", path, "--sort", order, "--format", "csv")))
    assert "".join(row["name"] for row in rows) == names


def test_limit(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(shown(capsys, "probe", path, "--limit", "1", "--format", "json"))
    assert [row["name"] for row in document["rows"]] == ["b"]
    assert "2 more rows; --limit 0 prints all" in shown(capsys, "probe", path, "--limit", "1")
    assert "more rows" not in shown(capsys, "probe", path, "--limit", "0")


def test_columns_are_chosen_by_name_or_heading(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "probe", path, "--columns", "total_pct, Name", "--format", "csv") == (
        "total_pct,name\n,b\n75.0,a\n1.0,c\n"
    )
    sorted_by_another = shown(
        capsys, "probe", path, "--columns", "name", "--sort", "total_ns", "--format", "csv"
    )
    assert sorted_by_another == "name\na\nb\nc\n"


def test_json_has_no_nan(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    text = shown(capsys, "probe", path, "--format", "json")
    document = json.loads(text, parse_constant=refuse)
    assert document["values"] == {"busy_pct": None}
    assert document["rows"][0] == {"name": "b", "total_ns": 1, "total_pct": None}


@pytest.mark.slow
def test_all_analyses_in_all_formats(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every analysis as JSON, whose schema is checked, and in one of the other formats."""
    for place, shown in enumerate(analyze.ANALYSES):
        for form in ("json", ("table", "csv", "md")[place % 3]):
            code = main(["show", shown.name, path, "--format", form])
            captured = capsys.readouterr()
            assert code in (0, 4)
            told = code == 0 or (form == "json" and json.loads(captured.out)["error"]["code"] == 4)
            assert bool(captured.out) == told


def test_folder_with_one_recording_is_that_recording(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("not a recording")
    (tmp_path / ".hidden.json").write_bytes(Path(path).read_bytes())
    assert shown(capsys, "probe", str(tmp_path), "--format", "csv")


def test_folder_with_several_names_them(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank").mkdir()
    (tmp_path / "rank" / "other").write_bytes(Path(path).read_bytes())  # told by content, not by suffix
    assert main(["show", "probe", str(tmp_path)]) == 2
    assert "2 recordings in this folder, name one: rank/other, trace.json" in capsys.readouterr().err


def test_folder_without_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "probe", str(tmp_path)]) == 3
    assert "no recording in this folder" in capsys.readouterr().err
