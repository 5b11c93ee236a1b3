"""One broken table, rule or view never costs the rest: it becomes a line that says so."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from foretrace import analyze
from foretrace.analyze import kernels, overview, steps, trust
from foretrace.commands import main
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.ingest import open_trace
from foretrace.present.web import payload
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import overview as overview_page
from tests.builders import Recording
from tests.present.web.contract import document

SAYS = "internal error: ZeroDivisionError: broken on purpose"


def broken(*_: Any, **__: Any) -> NoReturn:
    raise ZeroDivisionError("broken on purpose")


@pytest.fixture(autouse=True)
def contains_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORETRACE_FAULTS", raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    recording = Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200", "numSms": 132}])
    for number in range(4):
        at = 1000.0 * number
        recording.step(number, at, at + 950)
        for call in range(8):
            recording.op("aten::add", at + 100 * call, at + 100 * call + 60)
            recording.launch(at + 100 * call + 5, "add", at + 100 * call + 20, at + 100 * call + 50)
    return recording.write(tmp_path)


def break_analysis(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    made = replace(getattr(module, name), function=broken)
    others = [made if each.name == made.name else each for each in analyze.ANALYSES]
    monkeypatch.setattr(analyze, "ANALYSES", tuple(others))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "form"),
    [
        (steps, "steps", "table"),
        (overview, "overview", "table"),
        (trust, "trust", "table"),
        (trust, "trust", "json"),
        (overview, "overview", "md"),
    ],
)
def test_a_broken_analysis_costs_its_part_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: Any, name: str, form: str
) -> None:  # fmt: skip
    break_analysis(monkeypatch, module, name)
    assert main(["diagnose", str(path), "--format", form]) == 0
    said = capsys.readouterr().out
    assert "launch-bound" in said
    if form == "table":
        assert SAYS in " ".join(said.split())


def test_asking_for_the_broken_table_itself_is_an_internal_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_analysis(monkeypatch, kernels, "kernels")
    assert main(["show", "kernels", str(path)]) == 70
    assert SAYS in capsys.readouterr().err
    assert main(["summary", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert SAYS in said
    assert "overview" in said


@pytest.mark.slow
def test_a_broken_rule_is_not_checked(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from foretrace import diagnose

    rules = tuple(replace(rule, function=broken) if rule.name == "host-sync" else rule for rule in RULES)
    monkeypatch.setattr(diagnose, "RULES", rules)
    assert main(["diagnose", str(path), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    unchecked = {each["rule"]: each["says"] for each in told["findings"] if each["severity"] == "unchecked"}
    assert SAYS in unchecked["host-sync"]
    assert "launch-bound" in {each["rule"] for each in told["findings"]}


def test_where_nothing_can_be_replayed_by_a_fault_the_tables_are_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("foretrace.diagnose.case.build", broken)
    assert main(["diagnose", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert SAYS in said
    assert "GPU step time" in said


def parts(report: Path) -> dict[str, bytes]:
    """What a report holds, by name."""
    found: dict[str, bytes] = {}
    element = r'data-resource="([^"]+)" data-part="\d+">([^<]*)</script>'
    for name, text in re.findall(element, report.read_text("utf-8")):
        found[name] = found.get(name, b"") + b64decode(text)
    return {name: gzip.decompress(packed) for name, packed in found.items()}


@pytest.mark.slow
def test_broken_views_cost_the_report_those_views_alone(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("memory", "modules", "roofline", "whatif")
    monkeypatch.setattr(payload, "RESOURCES", {**payload.RESOURCES, **dict.fromkeys(names, broken)})
    out = tmp_path / "out.html"
    assert main(["report", str(path), "-o", str(out)]) == 0
    assert capsys.readouterr().err.count(SAYS) == len(names)
    shown = parts(out)
    assert not {f"1/{name}" for name in names} & set(shown)
    assert {"1/overview", "1/timeline", "1/table/kernels"} <= set(shown)
    left_out = json.loads(shown["1/overview"])["left_out"]
    assert sum(SAYS in reason for reason in left_out) == len(names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["trust", "headline", "waterfall", "step_time", "checked", "one_step", "next"]
)
def test_a_broken_part_of_the_overview_leaves_the_others(
    path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(overview_page, "_PARTS", {**overview_page._PARTS, part: broken})
    shown = document(RecordingView(Case(open_trace(path))), "overview")
    assert shown["findings"]
    assert shown["facts"]
