"""Verdicts on what a changed program computes, beside its own spread."""

from __future__ import annotations

from typing import Any

import pytest

from foretrace.trial import results
from foretrace.trial.candidates import BF16, DATA, FP32, MODEL, TF32


def values(*losses: float, norms: tuple[float, ...] = (), **facts: Any) -> dict[str, Any]:
    return {
        "losses": list(losses),
        "gradient_norms": list(norms),
        "outputs": [],
        "draws_in_model": False,
        "draws_in_data": False,
        **facts,
    }


BASE = values(2.0, 1.5, 1.2, norms=(1.0, 0.9, 0.8))


@pytest.mark.parametrize(
    ("changed", "precision", "verdict", "says"),
    [
        (BASE, FP32, "identical", "identical: 3 losses and 3 gradient norms"),
        (values(2.0, 1.5, 1.2006, norms=(1.0, 0.9, 0.8)), FP32, "as precision", "differs as fp32 does: loss off by 0.05 %"),
        (values(2.0, 1.5, 1.21, norms=(1.0, 0.9, 0.8)), FP32, "diverges", "diverges: loss off by 0.83 %"),
        (values(2.0, 1.5, 1.21, norms=(1.0, 0.9, 0.8)), TF32, "as precision", "differs as TF32 does: loss off by 0.83 %"),
        (values(2.0, 1.5, 1.23, norms=(1.0, 0.9, 0.86)), BF16, "as precision", "gradient norm off by 7 %"),
        (values(2.0, 1.5, 1.6, norms=(1.0, 0.9, 0.8)), BF16, "diverges", "loss off by 25 %"),
        (values(2.0, float("nan"), 1.2, norms=(1.0, 0.9, 0.8)), BF16, "diverges", "not a finite number"),
    ],
)  # fmt: skip
def test_values_are_judged_by_the_precision_that_a_change_has(
    changed: dict[str, Any], precision: str, verdict: str, says: str
) -> None:
    told = results.judge([BASE, BASE], changed, precision=precision)
    assert told.verdict == verdict
    assert says in told.says


def test_what_lies_within_the_programs_own_spread_is_noise() -> None:
    """Two runs as it is differ by 10 %: a loss between them, and one a little outside, say nothing."""
    runs = [values(2.0, 1.5), values(2.0, 1.65)]
    for loss in (1.6, 1.7):
        told = results.judge(runs, values(2.0, loss), precision=FP32)
        assert told.verdict == "within noise"
    assert told.own["losses"] == pytest.approx(0.15 / 1.65)


def test_other_random_numbers_cannot_be_compared() -> None:
    dropout = values(2.0, 1.5, draws_in_model=True)
    told = results.judge([dropout, dropout], values(2.0, 1.1), precision=FP32, redraws=[MODEL])
    assert told.verdict == "not comparable"
    assert "dropout" in told.says
    # A change that draws the same numbers is compared all the same.
    assert results.judge([dropout, dropout], values(2.0, 1.1), precision=FP32).verdict == "diverges"
    assert results.judge([dropout, dropout], dropout, precision=FP32, redraws=[MODEL]).verdict == "identical"


def test_workers_that_draw_for_the_data_cannot_be_compared() -> None:
    flips = values(2.0, 1.5, draws_in_data=True)
    assert (
        results.judge([flips], values(1.0, 1.0), precision=FP32, redraws=[DATA]).verdict == "not comparable"
    )
    by_workers = values(2.0, 1.5, workers=4)
    told = results.judge([by_workers], values(1.0, 1.0), precision=FP32, redraws=[DATA])
    assert told.verdict == "not comparable"
    assert results.judge([values(2.0)], values(1.0), precision=FP32, redraws=[DATA]).verdict == "diverges"


def test_without_losses_outputs_are_looked_at_and_without_those_nothing_is_claimed() -> None:
    served = {**values(), "outputs": [3.0, 4.0]}
    assert results.judge([served], served, precision=FP32).says == "identical: 2 outputs"
    assert results.judge([values()], values(), precision=FP32).verdict == "not checked"
