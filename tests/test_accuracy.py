"""What `diagnose` promises for programs whose fix was measured stays within the bars of docs/accuracy.md."""

from __future__ import annotations

import gzip
import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.diagnose.finding import Alternative, Finding, Fix

ROOT = Path(__file__).parents[1]
SETS = ROOT / "benchmarks" / "pairs" / "recordings"


def load(path: str) -> Any:
    """A program of benchmarks/, imported."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / "benchmarks" / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(path).stem] = module
    spec.loader.exec_module(module)
    return module


predictions = load("predictions.py")
product_costs = load("product_costs.py")
trim = load("pairs/trim.py")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("h", 24), ("i", 24), ("j", 15), ("t", 17)])
def test_measured_fixes_are_predicted_within_the_bars(name: str, least: int) -> None:
    """h, i and j: programs with one fault or none. t: all fixes made together."""
    paths = sorted((SETS / name).glob("*.truth.json"))
    rows = [row for path in paths if (row := predictions.judge(path, "lite", known=True))]
    assert len(rows) >= least
    gains = [row for row in rows if row.true_gain]
    errors = [row.error for row in gains]
    assert statistics.median(errors) <= 0.12
    assert float(np.percentile(errors, 90)) <= 0.30
    assert sum(row.covered for row in gains) >= 0.8 * len(gains)
    assert [row.name for row in rows if row.false_promise] == []


def test_an_error_is_the_distance_to_the_measured_range() -> None:
    assert predictions.distance(2.0, (1.5, 2.5)) == 0
    assert predictions.distance(2.0, (2.5, 3.0)) == pytest.approx(0.25)
    assert predictions.distance(3.0, (1.0, 2.0)) == pytest.approx(0.5)


def test_a_fix_that_is_not_offered_is_not_judged() -> None:
    fix = Fix("", "")
    several = Finding("", "", fix, {}, label="bf16-autocast", alternatives=(Alternative("tf32", fix, None),))
    assert [found.label for found in predictions.fixed_by([several], "tf32")] == ["tf32"]
    assert predictions.fixed_by([several], "other") == []
    assert predictions.fixed_by([several], "") == [several]
    alone = Finding("", "", fix, {})
    assert predictions.fixed_by([alone], "tf32") == [alone]


def test_frozen_sets_and_every_rule_keep_a_recording() -> None:
    """Programs of other sets may have lost theirs: see benchmarks/README.md."""
    truths = sorted(SETS.glob("?/*.truth.json"))
    kept = [path for path in truths if predictions.recordings(path, "lite")]
    assert len(kept) < len(truths)
    assert [path.name for path in truths if path.parent.name in "hijpt" and path not in kept] == []
    named = [json.loads(path.read_text())["truth"].get("rule") for path in truths]
    assert {json.loads(path.read_text())["truth"].get("rule") for path in kept} == set(named)


def test_a_program_without_a_recording_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = {"slow": {"step_ms": 1.0}, "speedup_range": [1.0, 1.1], "truth": {"rule": "host-sync"}}
    (tmp_path / "gone.truth.json").write_text(json.dumps(truth))
    monkeypatch.setattr(sys, "argv", ["predictions.py", str(tmp_path)])
    assert predictions.main() == 0
    said = capsys.readouterr()
    assert "step time known: 0 pairs" in said.out
    assert "skipped: 1 of 1 programs have no lite recording here" in said.err
    assert "measure.py --missing --half SET" in said.err


@pytest.mark.slow
def test_trimming_leaves_out_only_what_no_table_holds(tmp_path: Path) -> None:
    """On the shipped sample, which is as torch wrote it."""
    path = tmp_path / "sample.json.gz"
    original = (ROOT / "src/foretrace/samples/naive_attention.json.gz").read_bytes()
    path.write_bytes(original)
    packed = trim.trim(path)
    assert packed == tmp_path / "sample.json.zst"
    assert not path.exists()
    events, before = trim.read(packed)["traceEvents"], json.loads(gzip.decompress(original))["traceEvents"]
    assert {"s", "f"} <= {event["ph"] for event in before}
    assert not {"s", "t", "f"} & {event["ph"] for event in events}
    assert len(events) == sum(event["ph"] not in "stf" for event in before)
    path.write_bytes(original)
    assert trim.difference(path, packed) is None


def test_a_recording_that_would_be_read_otherwise_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sample.json.gz"
    path.write_bytes((ROOT / "src/foretrace/samples/naive_attention.json.gz").read_bytes())
    monkeypatch.setattr(trim, "DROPPED", frozenset(("grid",)))
    assert trim.trim(path) == path
    assert [each.name for each in tmp_path.iterdir()] == ["sample.json.gz"]


def test_products_are_modelled_as_they_were_measured() -> None:
    """On an H200, by benchmarks/products.py: what the costs say in their sources."""
    found = product_costs.errors(product_costs.MEASURED)
    bars = {
        ("product", "bf16"): 0.08, ("product", "tf32"): 0.10, ("product in pieces", "bf16"): 0.20,
        ("product in pieces", "tf32"): 0.20, ("convolution", "bf16"): 0.35, ("convolution", "tf32"): 0.30,
    }  # fmt: skip
    assert set(found) == set(bars)
    for key, logs in found.items():
        assert len(logs) >= 30
        assert float(np.median(np.expm1(np.abs(logs)))) <= bars[key], key
