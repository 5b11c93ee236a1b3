"""One question, one answer: a change is worth the same to `diagnose`, to `predict --change` and when it is ticked on the page."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from foretrace.commands import _input, main
from foretrace.diagnose import RULES, diagnosis
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, diagnose
from foretrace.diagnose.opening import open_case
from foretrace.diagnose.rule import Rule
from foretrace.present.web.recording_view import RecordingView
from tests.corpus import CORPUS, needs_corpus
from tests.present.web.contract import document

pytestmark = needs_corpus
RECORDINGS = sorted((CORPUS / "h200").glob("*.lite.json.gz")) if CORPUS.is_dir() else []


@pytest.fixture
def command_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command opens and diagnoses a recording once for the same options, in a Case of its own, not for every change."""
    monkeypatch.setattr(_input, "open_case", cache(_input.open_case))
    diagnosed = cache(lambda case: diagnose(case, RULES))

    def remembered(case: Case, rules: tuple[Rule, ...]) -> Diagnosis:
        assert rules is RULES
        return diagnosed(case)

    monkeypatch.setattr(diagnosis, "diagnose", remembered)


def by_command(capsys: pytest.CaptureFixture[str], path: Path, change: str, *options: str) -> dict[str, Any]:
    code = main(["predict", str(path), "--change", change, "--format", "json", *options])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    answer: dict[str, Any] = json.loads(printed.out)
    return answer


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] == other[name] for name in ("verdict", "step_ms", "after_ms", "speedup", "basis"))


@pytest.mark.usefixtures("command_remembers")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".lite.json.gz"))
def test_a_change_is_worth_the_same_everywhere(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The step is measured for slow programs, and estimated for the others, whose fixes gain less, from both recordings."""
    known = ".slow." in path.name
    rich = path.with_name(path.name.replace(".lite.", ".rich."))
    truth = json.loads(
        path.with_name(f"{path.name.partition('.')[0]}.truth.json").read_text(encoding="utf-8")
    )
    variant = path.name.split(".")[1]
    step_ms = truth[variant]["step_ms"]
    options = ("--step-ms", str(step_ms)) if known else ("--rich", str(rich))
    case = open_case(path, step_ms=step_ms if known else None, rich=None if known else rich)
    view, found = RecordingView(case), diagnose(case, RULES)
    view.keep("diagnosis", lambda: found)
    asked = set()
    for number, finding in enumerate(found.findings, 1):
        if finding.change is None or finding.predicted is None or finding.rule in asked:
            continue
        asked.add(finding.rule)
        told = by_command(capsys, path, f"fix {finding.rule}", *options)
        assert told["speedup"]["point"] == finding.predicted.speedup.point, finding.rule
        assert told["verdict"] == finding.predicted.verdict, finding.rule
        assert same(document(view, "predict", {"findings": str(number)})["predicted"], told), finding.rule
    kernels = case.tasks.filter(case.tasks["kind"] == "kernel")
    if kernels.is_empty():
        return
    longest = str(kernels.sort("dur_ns", descending=True)["name"][0])
    told = by_command(capsys, path, f"scale kernel:{longest} 0.5", *options)
    ticked = document(view, "predict", {"scale": f"{longest}:0.5"})["predicted"]
    assert (ticked["speedup"], ticked["verdict"]) == (told["speedup"], told["verdict"])


def test_a_rule_that_finds_nothing_has_no_fix(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(RECORDINGS[0])
    assert main(["predict", path, "--change", "fix memory-pressure"]) == 4
    assert main(["predict", path, "--change", "fix nothing"]) == 2
    assert "no rule named" in capsys.readouterr().err
