"""Casts there and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnose.kernels import ADD, CAST, Op, device_bound

from foretrace.diagnose.case import Case
from foretrace.diagnose.dtype_casts import dtype_casts
from foretrace.errors import MissingDataError
from tests.diagnose.loops import findings

BF16, FP16, FP32 = "c10::BFloat16", "c10::Half", "float"


def cast(
    source: str, target: str, count: int = 1 << 20, outer: tuple[str, ...] = ("aten::to", "aten::_to_copy")
) -> Op:
    return Op("aten::copy_", CAST, 100, [[count], [count], []], [target, source, "Scalar"], outer)


def work(dur: float = 800) -> Op:  # beside a cast of 100
    return Op("aten::add", ADD, dur, [[1 << 20]], [FP32])


def test_casts_there_and_back_are_worth_all_their_time(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [work(), cast(FP32, BF16), cast(BF16, FP32)])
    (found,) = findings(dtype_casts, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)
    assert found.evidence["casts_per_step_count"] == 2


def test_only_the_part_that_returns_is_removed(tmp_path: Path) -> None:
    """bf16 to fp32 stays: the round trip is fp32, fp16, fp32."""
    trace = device_bound(tmp_path, [work(), cast(BF16, FP32), cast(FP32, FP16), cast(FP16, FP32)])
    (found,) = findings(dtype_casts, trace, step_us=1100)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(900, rel=0.02)


@pytest.mark.parametrize(
    "ops",
    [
        [work(2_000), cast(FP32, BF16)],
        [cast(FP32, BF16), work(2_000), cast(BF16, FP32)],  # something is computed in between
        [work(2_000), cast(FP32, BF16, 1 << 20), cast(BF16, FP32, 1 << 10)],  # another tensor
        [work(20_000), cast(FP32, BF16), cast(BF16, FP32)],  # too little to matter
        [work(2_000), cast(FP32, BF16), cast(FP32, BF16)],
        [work(), cast(FP32, BF16, outer=("aten::linear", "aten::to"))],  # autocast's own
    ],
)
def test_no_fault(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(dtype_casts, device_bound(tmp_path, ops)) == []


def test_casts_for_one_operator_are_found_and_not_promised(tmp_path: Path) -> None:
    """A norm in fp32 between bf16 layers: 200 of 1000 µs are casts, but fp32 may be needed."""
    trace = device_bound(tmp_path, [cast(BF16, FP32), work(), cast(FP32, BF16)])
    (found,) = findings(dtype_casts, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)
    assert found.predicted.speedup.low <= 1


def test_the_scaling_of_quantised_weights_goes_with_their_cast(tmp_path: Path) -> None:
    scale = Op("aten::mul", ADD, 100, [[1 << 20], [1]], [BF16, BF16])
    trace = device_bound(tmp_path, [cast("signed char", BF16), scale, work()])
    (found,) = findings(dtype_casts, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


def test_without_shapes_it_could_not_look(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="record_shapes"):
        list(dtype_casts(Case(device_bound(tmp_path, [Op("aten::copy_", CAST, 100)]))))


LINEAR = {"Input Dims": [[64, 256], [1024, 256], [1024]]}


def weight_cast(shape: list[int], **around: object) -> Op:
    outer = ("aten::linear", "aten::to", "aten::_to_copy")
    return Op(
        "aten::copy_", CAST, 100, [shape, shape, []], [BF16, FP32, "Scalar"], outer, around=dict(around)
    )


def test_casts_of_weights_that_nothing_changes_are_promised(tmp_path: Path) -> None:
    """Inference under autocast: weight and bias, 200 of 1000 µs, could be cast once."""
    ops = [weight_cast([1024, 256], **LINEAR), weight_cast([1024], **LINEAR), work()]
    (found,) = findings(dtype_casts, device_bound(tmp_path, ops), step_us=1000)
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
    assert findings(dtype_casts, device_bound(tmp_path, ops)) == []


def test_on_the_host_the_scaling_goes_with_the_cast(tmp_path: Path) -> None:
    """Three operators of 20 µs on a host that the step follows: without cast and scaling one is left."""
    scale = Op("aten::mul", ADD, 5, [[1 << 20], [1]], [BF16, BF16])
    quick = Op("aten::copy_", CAST, 5, [[1024], [1024], []], [BF16, "signed char", "Scalar"], ("aten::to",))
    (found,) = findings(dtype_casts, device_bound(tmp_path, [quick, scale, work(5)]), step_us=60)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(20, rel=0.1)


def test_casts_that_cost_only_the_host_are_found_where_the_step_follows_it(tmp_path: Path) -> None:
    """Of 15 µs on the GPU two casts take 0.2, but 40 of 60 µs on the host."""
    there = Op("aten::copy_", CAST, 0.1, [[1024], [1024], []], [BF16, FP32, "Scalar"], ("aten::to",))
    back = Op("aten::copy_", CAST, 0.1, [[1024], [1024], []], [FP32, BF16, "Scalar"], ("aten::to",))
    (found,) = findings(dtype_casts, device_bound(tmp_path, [there, back, work(15)]), step_us=60)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(20, rel=0.1)
