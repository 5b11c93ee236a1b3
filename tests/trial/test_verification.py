"""A finding's prediction beside two recordings, before and after its fix."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.trial import ledger
from tests.trial.waiting import AFTER, free, waiting

FROZEN = Path(__file__).parents[1] / "accuracy" / "frozen_6"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verify(*arguments: str, capsys: pytest.CaptureFixture[str], rule: str = "host-sync") -> dict[str, object]:
    assert main(["verify", *arguments, "--finding", rule, "--format", "json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.slow
def test_a_fix_that_brings_what_was_predicted_is_inside_and_kept(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = waiting(here), free(here)
    told = verify(str(before), str(after), capsys=capsys)
    assert told["verdict"] == "inside"
    before_ms, after_ms = told["before_ms"], told["after_ms"]
    assert isinstance(before_ms, float)
    assert isinstance(after_ms, float)
    assert after_ms == pytest.approx(AFTER / 1e3, rel=0.05)
    assert told["speedup"]["point"] == pytest.approx(before_ms / after_ms)  # type: ignore[index]
    (kept,) = ledger.read(ledger.DEFAULT).records
    assert (kept.rule, kept.by, kept.device, kept.inside) == ("host-sync", "verify", "NVIDIA H200", True)
    assert str(here) not in ledger.DEFAULT.read_text()


@pytest.mark.slow
def test_a_fix_that_brings_nothing_is_outside(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = waiting(here), free(here, length=2_000)
    assert verify(str(before), str(after), capsys=capsys)["verdict"] == "outside"
    assert [kept.inside for kept in ledger.read(ledger.DEFAULT).records] == [False]


@pytest.mark.slow
def test_what_cannot_be_compared_is_said_and_not_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = waiting(here), free(here, device="NVIDIA A100")
    told = verify(str(before), str(after), capsys=capsys)
    assert told["verdict"] == "not comparable"
    assert "different devices" in str(told["differs"])
    assert not ledger.DEFAULT.exists()


@pytest.mark.slow
def test_a_rule_that_finds_nothing_has_nothing_to_verify(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = waiting(here)
    assert main(["verify", str(before), str(before), "--finding", "input-bound"]) == 4
    assert "input-bound finds nothing here; found were: " in capsys.readouterr().err
    assert main(["verify", str(before), str(before), "--finding", "host-snyc"]) == 2
    assert "did you mean host-sync" in capsys.readouterr().err
    assert main(["verify", str(before), str(before), "--finding", "host-sync", "--no-ledger"]) == 0
    out = capsys.readouterr().out
    assert "verdict    " in out
    assert not ledger.DEFAULT.exists()


@pytest.mark.slow
def test_the_measured_range_is_that_of_compare(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A measured Run, and the same with the times of a program that is a fifth faster."""
    packed = FROZEN / "lightning_sasrec.tar.xz"
    for side in ("before", "after"):
        with tarfile.open(packed) as files:
            files.extractall(here / side, filter="data")
    told = here / "after" / "lightning_sasrec" / "rank0" / "rank.json"
    rank = json.loads(told.read_text())
    for timed in ("unprofiled", "timed_first", "timed_again"):
        times = rank[timed]
        times["blocks_ns"] = [round(block / 1.2) for block in times["blocks_ns"]]
        times |= {name: round(times[name] / 1.2) for name in ("median_ns", "low_ns", "high_ns")}
    told.write_text(json.dumps(rank))
    runs = [str(here / side / "lightning_sasrec") for side in ("before", "after")]
    speedup = verify(*runs, capsys=capsys, rule="launch-bound")["speedup"]
    assert main(["compare", *runs, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["speedup"] == speedup
    assert speedup["point"] == pytest.approx(1.2)  # type: ignore[index]
