"""What `diagnose` promises for programs whose fix was measured stays within the bars of docs/accuracy.md."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SETS = ROOT / "benchmarks" / "pairs" / "recordings"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("predictions", ROOT / "benchmarks" / "predictions.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["predictions"] = module
    spec.loader.exec_module(module)
    return module


predictions = load()


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
