"""Findings as SARIF: what the standard and GitHub ask of a log, and that a line is the repository's or none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretrace.analyze.concepts.trust.evidence import Note
from foretrace.analyze.trust import Trust
from foretrace.commands import main
from foretrace.diagnose import RULES
from foretrace.diagnose.diagnosis import Diagnosis
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.predict.prediction import Prediction, Span
from foretrace.present.export.sarif import FINGERPRINT, Repository, repository_root, to_sarif
from tests.builders import Recording

PROGRAM = "import torch\n\n\ndef step(x):\n    return x.max().item()\n"
TRUST = Trust("with care", (Note("few-steps", "care", "one step"), Note("gpu", "info", "an H200")))
GAIN = Prediction("gain", 10e6, Span(5e6, 4e6, 6e6), Span(2.0, 1.7, 2.5), basis="replayed")
# Of the standard, section 3, and of GitHub's page on SARIF: the properties that must be there, by object.
REQUIRED = {
    "log": ("$schema", "version", "runs"),
    "driver": ("name", "rules"),
    "rule": ("id", "shortDescription", "fullDescription", "help"),
    "result": ("ruleId", "message", "locations", "partialFingerprints"),
}
LEVELS = {"none", "note", "warning", "error"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    for name in ("src/my model/train.py", "one/twin.py", "two/twin.py", ".venv/lib/hidden.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROGRAM)
    return tmp_path


def finding(*places: Place, says: str = "It waits.", rule: str = "host-sync") -> Finding:
    fix = Fix("Keep it on the device.", "x.max()")
    made = Finding(says=says, why="", fix=fix, evidence={}, where=places, rule=rule, severity="high")
    return replace(made, predicted=GAIN)


def log_of(root: Path, *findings: Finding) -> dict[str, Any]:
    made = to_sarif(Diagnosis(findings, (), (), None), TRUST, Repository(root))
    document: dict[str, Any] = json.loads(json.dumps(made, allow_nan=False))
    check(document)
    return document


def check(log: dict[str, Any]) -> None:
    """What would make a code host refuse the file."""
    assert [name for name in REQUIRED["log"] if name not in log] == []
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert [name for name in REQUIRED["driver"] if name not in driver] == []
    rules = driver["rules"]
    for rule in rules:
        assert [name for name in REQUIRED["rule"] if name not in rule] == []
        assert "helpUri" not in rule
        assert len(rule["properties"]["tags"]) <= 20
        assert all(rule[part]["text"].strip() for part in ("shortDescription", "fullDescription", "help"))
    assert len({rule["id"] for rule in rules}) == len(rules)
    for result in run["results"]:
        assert [name for name in REQUIRED["result"] if name not in result] == []
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in LEVELS
        assert len(result["locations"]) == 1
        for place in (*result["locations"], *result["relatedLocations"]):
            uri = place["physicalLocation"]["artifactLocation"]["uri"]
            assert not uri.startswith(("/", "file:", "..")), "relative to the repository"
            assert place["physicalLocation"]["region"]["startLine"] >= 1
    said = run["invocations"][0]["toolExecutionNotifications"]
    assert all(each["level"] in LEVELS for each in said)
    assert all(text.strip() for text in _texts(run))
    fingerprints = [result["partialFingerprints"][FINGERPRINT] for result in run["results"]]
    assert len(set(fingerprints)) == len(fingerprints)


def _texts(value: Any) -> Iterator[str]:
    """The text of every message."""
    if isinstance(value, dict):
        if isinstance(value.get("message"), dict):
            yield value["message"]["text"]
        for inside in value.values():
            yield from _texts(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from _texts(inside)


def test_a_finding_is_shown_at_its_line(root: Path) -> None:
    """torch recorded the file relative to where the program lay: the repository has one that ends so."""
    found = finding(Place("my model/train.py", 5, "step"), Place("train.py", 4, "step"))
    run = log_of(root, found)["runs"][0]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "src/my%20model/train.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 5}
    assert [each["physicalLocation"]["region"]["startLine"] for each in result["relatedLocations"]] == [4]
    assert result["message"]["text"] == (
        "It waits. Predicted: gain, × 2.00 (1.70 to 2.50). Keep it on the device."
    )
    assert (result["level"], result["ruleId"]) == ("warning", "host-sync")
    assert result["properties"]["predicted"]["speedup"] == {"point": 2.0, "low": 1.7, "high": 2.5}
    said = run["invocations"][0]["toolExecutionNotifications"]
    assert [each["message"]["text"] for each in said] == ["few-steps: one step"]
    assert run["properties"] == {"trust": "with care"}


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("src/my model/train.py", 5, "src/my model/train.py"),
        ("/somewhere/else/checkout/src/my model/train.py", 5, "src/my model/train.py"),
        ("D:\\a\\checkout\\src\\my model\\train.py", 5, "src/my model/train.py"),
        ("one/twin.py", 5, "one/twin.py"),
        ("twin.py", 5, None),  # one of two
        ("hidden.py", 5, None),  # of an environment in the folder
        ("train.py", 500, None),
        ("../train.py", 5, None),
        ("vllm/v1/utils.py", 5, None),
        ("a\0b.py", 5, None),
        (None, None, None),
    ],
)
def test_a_line_is_the_repositorys_or_none(
    root: Path, file: str | None, line: int | None, expected: str | None
) -> None:
    found = Repository(root).find(Place(file, line, "step"))
    assert (found.path if found else None) == expected


def test_what_has_no_line_is_told_and_not_a_result(root: Path) -> None:
    """GitHub refuses a file with a result that has no location."""
    run = log_of(root, finding(Place(None, None, "aten::item")), finding())["runs"][0]
    assert run["results"] == []
    said = [each["message"]["text"] for each in run["invocations"][0]["toolExecutionNotifications"]]
    assert said[0].endswith("At aten::item: no line of this repository.")
    assert len(said) == 3


def test_fingerprints_stay_when_lines_and_numbers_change(root: Path) -> None:
    def fingerprint(line: int, says: str) -> str:
        run = log_of(root, finding(Place("src/my model/train.py", line, "step"), says=says))["runs"][0]
        return str(run["results"][0]["partialFingerprints"][FINGERPRINT])

    assert fingerprint(4, "It waits 3 ms.") == fingerprint(5, "It waits 2 ms.")


def test_a_file_that_was_changed_since_is_told(root: Path) -> None:
    run = log_of(root, finding(Place("src/my model/train.py", 2, "forward")))["runs"][0]
    assert run["results"][0]["message"]["text"].endswith("the line may have moved.")


def test_nothing_of_a_recording_becomes_a_link(root: Path) -> None:
    hostile = finding(
        Place("src/my model/train.py", 5, "step"), says="[click](https://x.example)\x1b[31m\u202e"
    )
    text = log_of(root, hostile)["runs"][0]["results"][0]["message"]["text"]
    assert "](" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_every_rule_can_be_described(root: Path) -> None:
    rules = log_of(root, *(finding(rule=rule.name) for rule in RULES))["runs"][0]["tool"]["driver"]["rules"]
    assert len(rules) == len(RULES)
    page = next(rule["help"]["markdown"] for rule in rules if rule["id"] == "host-sync")
    assert "\n\n**Slow**\n\n    if x.max().item() > limit:\n" in page


@pytest.mark.slow
def test_the_command_prints_a_log(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step that is a launch and a long wait: the finding has no stack, so it is a notification, and that is said."""
    made = Recording()
    for number in range(3):
        at = 3_000.0 * number
        made.step(number, at, at + 2_990).op("aten::mm", at + 10, at + 40)
        made.launch(at + 20, "sgemm", at + 50, at + 1_000)
        made.item(at + 100)
    path = made.write(root)
    inside = root / "src"
    monkeypatch.chdir(inside)
    assert repository_root(inside) == root
    assert main(["diagnose", "--no-cache", str(path), "--format", "sarif"]) == 0
    streams = capsys.readouterr()
    check(json.loads(streams.out))
    notifications = json.loads(streams.out)["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    found = [each for each in notifications if "associatedRule" in each]
    assert found
    assert f"{len(found)} finding" in streams.err
    assert main(["diagnose", str(path), "--source-root", "."]) == 2
    assert main(["diagnose", str(path), "--format", "sarif", "--source-root", "absent"]) == 2
