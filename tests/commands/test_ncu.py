"""Counters of Nsight Compute in every command: alone, named beside a recording, and in a folder with one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import foretrace
from foretrace.commands import main
from foretrace.errors import InputError, MissingDataError
from tests.analyze.nine_kernels import DETAILS, RAW, recording


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_counters_alone_have_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(RAW)]) == 0
    page = said(capsys)
    assert "9 launches of 9 kernels profiled by Nsight Compute" in page
    assert "reaches 98 % of its limit (memory)" in page
    assert "wait most for data of global or local memory" in page
    assert main(["diagnose", str(RAW)]) == 0
    assert "no timeline to replay" in said(capsys)


@pytest.mark.parametrize("name", ["profiled", "warp-stalls", "memory-access", "ncu-rules", "roofline"])
def test_each_analysis_of_counters_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for page in (RAW, DETAILS):
        shutil.copy(page, tmp_path)
    assert main(["show", name, str(tmp_path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["rows"]) >= 8


@pytest.mark.slow
def test_counters_named_beside_a_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(recording().write(tmp_path))
    assert main(["diagnose", path, "--no-cache", "--ncu", str(RAW), "--ncu", str(DETAILS)]) == 0
    page = said(capsys)
    assert f"{RAW.name} (ncu): counters of kernels (9 launches in these 2 files together)" in page
    assert "100.0 % of the profiled launches' time is of kernels in this recording" in page
    assert main(["show", "roofline", path, "--no-cache", "--ncu", str(RAW), "--format", "json"]) == 0
    assert {row["source"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"ncu"}
    assert main(["show", "profiled", path, "--no-cache"]) == MissingDataError.exit_code


@pytest.mark.slow
def test_json_and_python_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recording().write(tmp_path)
    assert main(["diagnose", str(path), "--no-cache", "--ncu", str(RAW), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["trace"]["profiled"] == {"launches_count": 9, "matched_pct": 100, "covered_pct": 100}
    assert [each["file"] for each in document["trace"]["recordings"]] == ["trace.json", RAW.name]
    assert "latency-bound-kernels" in document["checked"]
    for of in (path, foretrace.open(path, cache=False)):
        found = foretrace.diagnose(of, ncu=RAW, cache=False)
        assert [finding.rule for finding in found.findings] == [
            finding["rule"] for finding in document["findings"] if finding["severity"] != "unchecked"
        ]
        assert "latency-bound-kernels" in found.checked
    assert "latency-bound-kernels" not in foretrace.diagnose(path, cache=False).checked


@pytest.mark.slow
def test_a_folder_is_one_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording().write(tmp_path)
    shutil.copy(RAW, tmp_path)
    assert main(["diagnose", str(tmp_path), "--no-cache"]) == 0
    page = said(capsys)
    assert "trace.json (kineto): times, operators and shapes" in page
    assert "counters of kernels (9 launches)" in page
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "out.html"), "--no-cache"]) == 0
    assert 'data-resource="1/table/profiled"' in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    "content", ["a,b\n1,2\n", "", "\0\1\2", '"ID","Process ID","Process Name","Host Name"\n']
)
def test_what_is_no_table_of_ncu_is_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(content)
    path = str(recording().write(tmp_path / "."))
    for command in (["summary", str(bad)], ["diagnose", path, "--no-cache", "--ncu", str(bad)]):
        assert main(command) == InputError.exit_code
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith(f"foretrace: {bad}: ")
