"""What a fix frees of memory, as the terminal, Markdown and JSON say it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, Unchecked, diagnose
from foretrace.diagnose.step_times import step_times
from foretrace.predict.prediction import Span
from foretrace.present.text.findings import finding_lines, freed_text, to_markdown
from foretrace.present.web.recording_view import RecordingView
from tests.diagnose.memory_steps import Training
from tests.present.web.contract import document

HALF = "c10::BFloat16"
LATE = Training(zero_grad="late", parameters=HALF, dtype=HALF)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Diagnosis]:
    case = Case(LATE.open(tmp_path_factory.mktemp("late")), step_ns=1_000_000)
    return case, diagnose(case, RULES)


def test_freed_bytes_share_a_unit() -> None:
    assert freed_text(Span(9.2 * 2**30, 8.74 * 2**30, 9.66 * 2**30)) == "9.20 (8.74 to 9.66) GiB"
    assert freed_text(Span(0.0, 0.0, 0.0)) == "nothing"


@pytest.mark.slow
def test_the_terminal_says_what_is_freed_alone_and_together(judged: tuple[Case, Diagnosis]) -> None:
    case, found = judged
    lines = ["".join(text for text, _ in line) for line in finding_lines(found, step_times(case), 90)]
    shown = "\n".join(lines)
    assert "  frees 3.73 (2.79 to 3.91) GiB of the device's memory" in shown
    assert "Together uncheckpointed-blocks, kept-gradients would free 3.73 (2.79 to 3.91) GiB." in " ".join(
        shown.split()
    )
    assert all(len(line) <= 70 for line in lines if "frees" in line)  # 80 columns, less what stands before it


def test_markdown_says_it_too(judged: tuple[Case, Diagnosis]) -> None:
    case, found = judged
    text = to_markdown(found, step_times(case), "late")
    assert "**kept-gradients** (frees 1.86 (1.77 to 1.96) GiB)" in text


@pytest.mark.slow
def test_the_json_has_it_where_there_is_something_to_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    LATE.open(tmp_path)
    assert main(["diagnose", str(tmp_path / "trace.json"), "--step-ms", "1", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    freed = {finding["rule"]: finding.get("freed_bytes") for finding in told["findings"]}
    assert freed.pop("kept-gradients") == {"point": 2e9, "low": 1.9e9, "high": 2.1e9}
    assert freed.pop("uncheckpointed-blocks") == {"point": 4e9, "low": 3e9, "high": 4.2e9}
    assert set(freed.values()) <= {None}
    assert told["freed_bytes"]["point"] == 4e9


@pytest.mark.slow
def test_the_page_has_it(judged: tuple[Case, Diagnosis]) -> None:
    case, found = judged
    findings = document(RecordingView(case), "overview")["findings"]
    shown = {finding["rule"]: finding.get("freed") for finding in findings}
    assert shown["kept-gradients"] == "1.86 (1.77 to 1.96) GiB"
    assert all(shown[finding.rule] is None for finding in found.findings if finding.freed is None)


def test_rules_that_lack_the_same_share_a_line(judged: tuple[Case, Diagnosis]) -> None:
    case, found = judged
    lacking = [Unchecked(rule, "no memory events") for rule in ("memory-pressure", "kept-gradients")]
    found = replace(found, unchecked=(*lacking, Unchecked("low-occupancy", "no kernels")))
    lines = ["".join(text for text, _ in line) for line in finding_lines(found, step_times(case), 90)]
    assert lines[-2:] == [
        "not checked: memory-pressure, kept-gradients: no memory events",
        "not checked: low-occupancy: no kernels",
    ]
    text = to_markdown(found, step_times(case), "late")
    assert "Not checked: memory-pressure, kept-gradients: no memory events\n" in text
