"""Weights that nothing trains, cast in every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.precision.weight_casts import weight_casts
from tests.diagnose.casts import BF16, FP32, work
from tests.diagnose.kernels import ADD, CAST, Op, device_bound
from tests.diagnose.loops import findings


def linear(outer: str = "aten::linear") -> Op:
    around = {"Input Dims": [[64, 256], [1024, 256], []]} if outer == "aten::linear" else {}
    sides = [[64, 256], [256, 1024]]
    return Op("aten::mm", "gemm", 300, sides, [BF16, BF16], (outer, "aten::matmul"), around=around)


def made_anew() -> list[Op]:
    """A weight from int8, less its zero point, times its scale."""
    weight = [1024, 256]
    return [
        Op("aten::copy_", CAST, 200, [weight, weight, []], [BF16, "signed char", "Scalar"], ("aten::to",)),
        Op("aten::sub", ADD, 100, [weight, [1024, 1], []], [BF16, BF16, "Scalar"]),
        Op("aten::mul", ADD, 100, [weight, [1024, 1]], [BF16, BF16]),
    ]


@pytest.mark.parametrize(("outer", "verdict"), [("aten::linear", "gain"), ("", "uncertain")])
def test_weights_made_anew_in_every_step(tmp_path: Path, outer: str, verdict: str) -> None:
    """What was done to the weight goes with its cast. Of a plain product it may be no weight."""
    product = linear() if outer else Op("aten::mm", "gemm", 300, [[64, 256], [256, 1024]], [BF16, BF16])
    (found,) = findings(
        weight_casts, device_bound(tmp_path, [*made_anew(), product, work(300)]), step_us=1000
    )
    assert found.predicted
    assert found.predicted.verdict == verdict
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(600, rel=0.02)


def test_weights_that_are_trained_have_to_be_made_anew(tmp_path: Path) -> None:
    weight = [1024, 256]
    trained = Op("aten::copy_", CAST, 50, [weight, weight, []], [BF16, FP32, "Scalar"], ("aten::to",))
    backward = Op("aten::mm", ADD, 800, told={"Sequence number": 3, "Fwd thread id": 1})
    assert findings(weight_casts, device_bound(tmp_path, [trained, linear(), backward]), step_us=1150) == []


LINEAR = {"Input Dims": [[64, 256], [1024, 256], [1024]]}


def weight_cast(shape: list[int], **around: object) -> Op:
    outer = ("aten::linear", "aten::to", "aten::_to_copy")
    return Op(
        "aten::copy_", CAST, 100, [shape, shape, []], [BF16, FP32, "Scalar"], outer, around=dict(around)
    )


def test_casts_of_weights_that_nothing_changes_are_promised(tmp_path: Path) -> None:
    """Inference under autocast: weight and bias, 200 of 1000 µs, could be cast once."""
    ops = [weight_cast([1024, 256], **LINEAR), weight_cast([1024], **LINEAR), work()]
    (found,) = findings(weight_casts, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)
    assert found.evidence["casts_per_step_count"] == 2


@pytest.mark.parametrize(
    "ops",
    [
        [weight_cast([64, 256], **LINEAR), work()],  # the activations: autocast needs that
        [weight_cast([1024, 256], **LINEAR), work(20_000)],  # too little to matter
        [  # training: the weights are others after each step
            weight_cast([1024, 256], **LINEAR),
            Op("aten::mm", ADD, 800, told={"Sequence number": 3, "Fwd thread id": 1}),
        ],
    ],
)
def test_casts_that_autocast_has_to_make(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(weight_casts, device_bound(tmp_path, ops)) == []


def test_what_else_autocast_casts_goes_where_the_model_is_kept_in_half_precision(tmp_path: Path) -> None:
    """300 µs of weights and 100 of an activation. With autocast's cache alone, 300: the other end of the range."""
    weight, x = [4096, 4096], [64, 4096]
    told = {"Input Dims": [x, weight, []]}

    def under_linear(shape: list[int], dur: float) -> Op:
        outer = ("aten::linear", "aten::to", "aten::_to_copy")
        return Op("aten::copy_", CAST, dur, [shape, shape, []], [BF16, FP32, "Scalar"], outer, around=told)

    trace = device_bound(tmp_path, [under_linear(weight, 300), under_linear(x, 100), work(600)])
    (found,) = findings(weight_casts, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(600, rel=0.02)
    assert found.predicted.after_ns.high / 1e3 >= 700
