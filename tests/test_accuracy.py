"""What `diagnose` promises for programs whose changes were measured stays within the bars of docs/accuracy.md."""

from __future__ import annotations

import json
import statistics
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import accuracy, product_costs
from foretrace.diagnose.finding import Alternative, Finding, Fix
from tests.corpus import ACCURACY, needs_accuracy

FROZEN = Path(__file__).parent / "accuracy"
PAIRS = ACCURACY / "pairs" / "recordings"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "least"),
    [
        pytest.param(FROZEN / "j", 15, id="j"),
        *(
            pytest.param(PAIRS / name, least, id=name, marks=needs_accuracy)
            for name, least in (("h", 24), ("i", 24), ("t", 17))
        ),
    ],
)
def test_measured_fixes_are_predicted_within_the_bars(folder: Path, least: int) -> None:
    """h, i and j: programs with at most one fault. t: all fixes made together."""
    rows = accuracy.judge_pairs(folder, (), "lite", known_step=True)
    assert len(rows) >= least
    gaining = [row for row in rows if row.gains]
    errors = [row.error for row in gaining]
    assert statistics.median(errors) <= 0.12
    assert float(np.percentile(errors, 90)) <= 0.30
    assert sum(row.covered for row in gaining) >= 0.8 * len(gaining)
    assert [row.name for row in rows if row.false_promise] == []


@pytest.mark.slow
def test_real_programs_are_predicted_within_the_bars(capsys: pytest.CaptureFixture[str]) -> None:
    """The bars that the project set for a frozen set: 85 % of ranges, 80 % of gains, nine in ten within 30 %."""
    rows = accuracy.judge_programs(FROZEN / "frozen_6")
    assert {row.name for row in rows} == {
        "diffusers_sd3_sample", "hf_modernbert_rerank", "lightning_sasrec", "vitp_vivit",
    }  # fmt: skip
    assert "tv_efficientnetv2: no recording" in capsys.readouterr().err
    predicted, large = [row for row in rows if row.predicted], [row for row in rows if row.large_gain]
    assert len(large) >= 8
    assert sum(row.covered for row in predicted) >= 0.85 * len(predicted)
    assert sum(row.promised for row in large) >= 0.8 * len(large)
    assert float(np.percentile([row.error for row in rows], 90)) <= 0.30
    assert [row.name for row in rows if row.false_promise] == []


def test_an_error_is_the_distance_to_the_measured_range() -> None:
    assert accuracy.distance(2.0, (1.5, 2.5)) == 0
    assert accuracy.distance(2.0, (2.5, 3.0)) == pytest.approx(0.25)
    assert accuracy.distance(3.0, (1.0, 2.0)) == pytest.approx(0.5)


def test_a_fix_that_is_not_offered_is_not_judged() -> None:
    fix = Fix("", "")
    several = Finding("", "", fix, {}, label="bf16-autocast", alternatives=(Alternative("tf32", fix, None),))
    assert [finding.label for finding in accuracy.fixed_by([several], "tf32")] == ["tf32"]
    assert accuracy.fixed_by([several], "other") == []
    assert accuracy.fixed_by([several], "") == [several]
    alone = Finding("", "", fix, {})
    assert accuracy.fixed_by([alone], "tf32") == [alone]


def prediction(point: float) -> Any:
    return SimpleNamespace(
        verdict="gain", speedup=SimpleNamespace(point=point, low=point - 0.1, high=point + 0.1)
    )


def finding(rule: str, label: str, point: float, *alternatives: tuple[str, float]) -> Any:
    others = [SimpleNamespace(label=other, predicted=prediction(gain)) for other, gain in alternatives]
    return SimpleNamespace(rule=rule, label=label, predicted=prediction(point), alternatives=others)


def diagnosis(*findings: Any) -> Any:
    return SimpleNamespace(findings=findings, combined=prediction(3.0))


def row(point: float, measured: tuple[float, float], verdict: str = "gain") -> accuracy.Row:
    return accuracy.Row("p", "c", "r", measured, True, verdict, point, point - 0.1, point + 0.1)


def test_a_change_is_judged_by_the_alternative_that_its_label_names() -> None:
    offered = diagnosis(finding("no-tensor-cores", "tf32", 1.5, ("bf16-autocast", 1.2)))

    def predicted(change: str, rule: str) -> Any:
        return accuracy.predicted_for(offered, change, rule)

    assert predicted("bf16", "no-tensor-cores:bf16-autocast")[1].speedup.point == 1.2
    assert predicted("bf16", "no-tensor-cores")[1].speedup.point == 1.2
    assert predicted("tf32", "no-tensor-cores:tf32")[1].speedup.point == 1.5
    assert predicted("half", "no-tensor-cores:weights") == ("no-tensor-cores:weights", None)
    assert predicted("noitem", "host-sync") == ("host-sync", None)
    assert predicted("all", "together")[1].speedup.point == 3.0


def test_a_loop_over_parameters_is_the_loop_of_an_optimizer_written_by_hand() -> None:
    by_hand = diagnosis(finding("parameter-loop", "", 1.03))
    _, loop = accuracy.predicted_for(by_hand, "foreach", "loop-optimizer")
    assert loop
    assert loop.speedup.point == 1.03
    both = diagnosis(finding("parameter-loop", "", 1.03), finding("loop-optimizer", "", 1.2))
    _, optimizer = accuracy.predicted_for(both, "foreach", "loop-optimizer")
    assert optimizer
    assert optimizer.speedup.point == 1.2


def test_a_rule_without_a_finding_predicts_no_gain() -> None:
    facts = {"rule": "host-sync", "speedup_range": [1.13, 1.16]}
    (only,) = accuracy.judge_program(
        "p", {"changes": {"noitem": facts, "other": {**facts, "rule": ""}}}, diagnosis()
    )
    assert (only.change, only.predicted, only.point, only.covered) == ("noitem", False, 1.0, False)
    assert only.error == pytest.approx(0.13)


def test_promises_are_counted_by_the_ends_of_the_measured_range() -> None:
    true, missed = row(1.3, (1.25, 1.35)), row(1.12, (1.12, 1.2), "uncertain")
    unsure, false = row(1.2, (1.05, 1.2)), row(1.5, (0.9, 1.02))
    rows = [true, missed, unsure, false]
    assert [change.large_gain for change in rows] == [True, True, False, False]
    assert [change.false_promise for change in rows] == [False, False, False, True]
    summary = accuracy.summary(rows)
    assert "gains of 10 % or more that are promised: 1/2" in summary
    assert "false promises: 1" in summary
    assert "ranges that cover the truth: 3/4" in summary


def test_runs_are_read_from_folders_and_tars(tmp_path: Path) -> None:
    folder, scratch, inner = tmp_path / "set", tmp_path / "scratch", tmp_path / "inner"
    for place in (folder / "a", inner / "b", scratch):
        place.mkdir(parents=True)
    (folder / "a" / "run.json").write_text("{}")
    (inner / "b" / "run.json").write_text("{}")
    with tarfile.open(inner / "b.tar.xz", "w:xz") as file:
        file.add(inner / "b", "b")
    with tarfile.open(folder / "recordings-1.tar", "w") as file:
        file.add(inner / "b.tar.xz", "b.tar.xz")
    assert sorted(accuracy.unpacked(folder, scratch)) == ["a", "b"]


def test_a_program_without_a_recording_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = {"slow": {"step_ms": 1.0}, "speedup_range": [1.0, 1.1], "truth": {"rule": "host-sync"}}
    (tmp_path / "gone.truth.json").write_text(json.dumps(truth))
    monkeypatch.setattr(sys, "argv", ["accuracy.py", str(tmp_path)])
    assert accuracy.main() == 0
    printed = capsys.readouterr()
    assert "nothing was judged" in printed.out
    assert printed.err == "gone: no lite recording\n"


def test_products_are_modelled_as_they_were_measured() -> None:
    """On an H200, by benchmarks/products.py: what the costs say in their sources."""
    errors = product_costs.errors(product_costs.MEASURED)
    bars = {
        ("product", "bf16"): 0.08, ("product", "tf32"): 0.10, ("product in pieces", "bf16"): 0.20,
        ("product in pieces", "tf32"): 0.20, ("convolution", "bf16"): 0.35, ("convolution", "tf32"): 0.30,
    }  # fmt: skip
    assert set(errors) == set(bars)
    for key, logs in errors.items():
        assert len(logs) >= 30
        assert float(np.median(np.expm1(np.abs(logs)))) <= bars[key], key
