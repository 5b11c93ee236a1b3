"""What was predicted beside what was measured, kept and summed up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from foretrace.commands import main
from foretrace.trial import ledger
from foretrace.trial.ledger import Record
from tests import schemas
from tests.trial.waiting import waiting

ONE = Record(
    "host-sync", "", "NVIDIA H200", "verify", 1.1, 1.2, 1.4, 1.25, 1.3, 1.35, inside=True, promised=True
)


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "ledger.jsonl"
    assert ledger.read(file) == ledger.Ledger()
    ledger.add(file, [])
    assert not file.exists()
    ledger.add(file, [ONE])
    ledger.add(file, [replace(ONE, rule="input-bound")])
    assert ledger.read(file) == ledger.Ledger((ONE, replace(ONE, rule="input-bound")))
    schemas.check(json.loads(file.read_text().splitlines()[0]), "ledger-record")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("<<<<<<< HEAD", "Expecting value"),
        (b"\xff", "utf-8"),
        ("[1, 2]", "Expected `object`"),
        ('{"measured": 0}', r"\$\.measured"),
        ('{"measured": NaN}', "NaN"),
        ('{"measured": 1e999}', r"\$\.measured"),
        ('{"measured": 1' + "0" * 400 + "}", r"\$\.measured"),
        ('{"measured": "x"}', r"\$\.measured"),
        ('{"rule": []}', r"\$\.rule"),
        ('{"inside": "yes"}', r"\$\.inside"),
        ("[" * 200_000, "nested too deeply"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_damaged_line_costs_that_line_alone(tmp_path: Path, line: str | bytes, reason: str) -> None:
    file = tmp_path / "ledger.jsonl"
    ledger.add(file, [ONE])
    whole = file.read_bytes().strip()
    if isinstance(line, str):
        changes = json.loads(line) if reason.startswith(r"\$") and "999" not in line else None
        line = json.dumps({**json.loads(whole), **changes}).encode() if changes else line.encode()
    file.write_bytes(b"\n".join([whole, line, whole]))
    read = ledger.read(file)
    assert read.records == (ONE, ONE)
    (problem,) = read.problems
    assert problem.startswith(f"{file}: line 2: damaged: ")
    assert re.search(reason, problem)


def test_a_lone_surrogate_is_replaced(tmp_path: Path) -> None:
    """Half a pair cannot be printed."""
    file = tmp_path / "ledger.jsonl"
    ledger.add(file, [replace(ONE, change="\ud800x")])
    assert ledger.read(file).records == (replace(ONE, change="\ufffdx"),)


def test_predictions_are_summed_up_by_rule_and_device() -> None:
    """Predicted 1.2; measured 1.2, 1.5 and 0.96: off by 0, 20 and 25 %, and the last promise did not hold."""
    records = [
        replace(ONE, measured=1.2),
        replace(ONE, measured=1.5, inside=False),
        replace(ONE, measured=0.96, measured_high=0.98, inside=False),
        replace(ONE, device="CPU"),
    ]
    first, second = ledger.summary(records)
    assert (first.rule, first.device, first.records, first.inside) == ("host-sync", "NVIDIA H200", 3, 1)
    assert first.off == pytest.approx(0.2)
    assert (first.promised, first.held, first.broken) == (3, 2, 1)
    assert second.device == "CPU"


@pytest.mark.parametrize(
    ("low", "point", "high", "outcome"),
    [
        (1.25, 1.30, 1.35, "held"),  # inside of 1.1 to 1.4
        (1.45, 1.50, 1.55, "held"),  # more than was promised
        (1.02, 1.05, 1.08, "held"),  # less, and a gain all the same
        (1.005, 1.02, 1.025, "broken"),  # a gain that nobody notices
        (0.85, 0.95, 1.06, "broken"),  # a slowdown, and nothing that was promised within reach
        (0.90, 0.94, 0.98, "broken"),
        (0.80, 1.20, 1.80, "unclear"),  # as predicted, by a measurement that includes no gain at all
        (0.70, 0.95, 1.30, "unclear"),
    ],
)
def test_a_promise_is_held_only_by_a_gain_that_was_measured(
    low: float, point: float, high: float, outcome: str
) -> None:
    """1.1 to 1.4 was promised."""
    record = replace(ONE, measured_low=low, measured=point, measured_high=high)
    assert record.came_of == outcome
    (kept,) = ledger.summary([record])
    assert (kept.held, kept.broken) == (outcome == "held", outcome == "broken")


def test_a_noisy_measurement_is_not_within_the_range_because_its_ends_meet() -> None:
    """1.65 to 2.40 predicted, 0.95 measured within 0.5 and 1.8."""
    noisy = replace(ONE, predicted_low=1.65, predicted=1.88, predicted_high=2.4,
                    measured_low=0.5, measured=0.95, measured_high=1.8, inside=True)  # fmt: skip
    (kept,) = ledger.summary([noisy])
    assert (kept.inside, kept.held, kept.broken) == (0, 0, 0)
    assert "0 of 1 predictions" in ledger.sentence(kept)
    assert "of 1 promised gain, 0 came true and 0 did not" in ledger.sentence(kept)


def test_a_rule_is_quoted_from_five_records_on_the_same_device() -> None:
    four, five = [ONE] * 4, [ONE] * 5
    assert ledger.quotes(four, ["host-sync"], "NVIDIA H200") == {}
    (kept,) = ledger.quotes(five, ["host-sync", "input-bound"], "NVIDIA H200").values()
    assert ledger.sentence(kept) == (
        "host-sync: 5 of 5 predictions measured here on NVIDIA H200 came true within their range (typically 8 % off); "
        "of 5 promised gains, 5 came true and 0 did not"
    )
    assert ledger.quotes(five, ["host-sync"], "CPU") == {}
    assert ledger.quotes(five, ["input-bound"], "NVIDIA H200") == {}


def test_the_command_prints_the_ledger_of_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ledger"]) == 4
    assert "no record yet" in capsys.readouterr().err
    ledger.add(ledger.DEFAULT, [ONE, replace(ONE, measured=1.5)])
    assert main(["ledger", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["rule"], row["measured_count"], row["inside_pct"]) == ("host-sync", 2, 50.0)
    assert main(["ledger", "--records", "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    assert main(["ledger", "--records", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_the_command_skips_damaged_lines_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger.add(ledger.DEFAULT, [ONE])
    ledger.DEFAULT.write_text(ledger.DEFAULT.read_text() + "=======\n" * 7)
    assert main(["ledger", "--records", "--format", "json"]) == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["rows"]) == 1
    assert printed.err.count("the line is skipped") == 5
    assert "2 more like these" in printed.err
    ledger.DEFAULT.write_text("{\n")
    assert main(["ledger"]) == 3
    assert "no line could be read" in capsys.readouterr().err


@pytest.mark.slow
def test_diagnose_goes_on_beside_a_damaged_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recording = waiting(tmp_path)
    ledger.add(ledger.DEFAULT, [ONE] * 5)
    ledger.DEFAULT.write_text('{"rule": []}\n' + ledger.DEFAULT.read_text())
    assert main(["diagnose", str(recording), "--format", "json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["findings"]
    assert document["ledger"][0]["records"] == 5
    (skipped,) = document["ledger_skipped"]
    assert "line 1: damaged: Expected `str`, got `array` - at `$.rule`" in skipped
    assert "line 1" in printed.err


@pytest.mark.slow
def test_diagnose_quotes_it_once_there_are_five(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recording = waiting(tmp_path)
    ledger.add(ledger.DEFAULT, [ONE] * 4)
    assert main(["diagnose", str(recording)]) == 0
    before = capsys.readouterr().out
    assert "host-sync" in before
    assert "came true" not in before
    ledger.add(ledger.DEFAULT, [ONE])
    assert main(["diagnose", str(recording)]) == 0
    assert "5 of 5 predictions measured here on NVIDIA H200" in " ".join(capsys.readouterr().out.split())
    assert main(["diagnose", str(recording), "--format", "json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["ledger"]
    assert (told["rule"], told["records"], told["inside"]) == ("host-sync", 5, 5)
