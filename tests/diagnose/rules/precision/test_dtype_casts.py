"""Casts there and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnose.kernels import ADD, CAST, Op, device_bound

from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.precision.dtype_casts import dtype_casts
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


def test_casts_around_an_operator_that_computes_in_fp32_inside(tmp_path: Path) -> None:
    """A norm of 400 µs in fp32: without the casts it takes 85 % of that in bf16, and nothing speaks against it."""
    norm = Op("aten::native_layer_norm", "vectorized_layer_norm_kernel", 400, [[1024, 1024], [], [1024], [1024], []],
              [FP32, "ScalarList", FP32, FP32, "Scalar"], ("aten::layer_norm",))  # fmt: skip
    ops = [cast(BF16, FP32), norm, cast(FP32, BF16), work(400)]
    (found,) = findings(dtype_casts, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(0.85 * 400 + 400, rel=0.02)


def test_what_autograd_casts_around_the_same_operator_goes_where_the_program_asked_for_it(
    tmp_path: Path,
) -> None:
    """SiLU in fp32, forward and backward: 55 % of each is left. The same casts by autocast alone are its own affair."""

    def around(op: str, outer: str) -> list[Op]:
        middle = Op(op, ADD, 300, [[1 << 20], [1 << 20]], [FP32, FP32])
        return [cast(BF16, FP32, outer=(outer,)), middle, cast(FP32, BF16, outer=(outer,))]

    backward = around("aten::silu_backward", "autograd::engine::evaluate_function: ToCopyBackward0")
    ops = [*around("aten::silu", "aten::to"), work(400), *backward]
    (found,) = findings(dtype_casts, device_bound(tmp_path, ops), step_us=1400)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(400 + 2 * 0.55 * 300, rel=0.02)
    by_autocast = [work(400), *backward]
    assert findings(dtype_casts, device_bound(tmp_path, by_autocast), step_us=900) == []


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
    (found,) = findings(dtype_casts, device_bound(tmp_path, [*made_anew(), product, work(300)]), step_us=1000)
    assert found.predicted
    assert found.predicted.verdict == verdict
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(600, rel=0.02)


def test_weights_that_are_trained_have_to_be_made_anew(tmp_path: Path) -> None:
    weight = [1024, 256]
    trained = Op("aten::copy_", CAST, 50, [weight, weight, []], [BF16, FP32, "Scalar"], ("aten::to",))
    backward = Op("aten::mm", ADD, 800, told={"Sequence number": 3, "Fwd thread id": 1})
    assert findings(dtype_casts, device_bound(tmp_path, [trained, linear(), backward]), step_us=1150) == []


def test_what_is_kept_is_not_undone_by_the_next_cast(tmp_path: Path) -> None:
    """master.sub_(grad.float()); weight.copy_(master), for one weight after the other."""
    one = [cast(BF16, FP32), work(1_000), cast(FP32, BF16, outer=())]
    assert findings(dtype_casts, device_bound(tmp_path, [*one, *one]), step_us=2400) == []


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


def test_what_else_autocast_casts_goes_where_the_model_is_kept_in_half_precision(tmp_path: Path) -> None:
    """300 µs of weights and 100 of an activation. With autocast's cache alone, 300: the other end of the range."""
    weight, x = [4096, 4096], [64, 4096]
    told = {"Input Dims": [x, weight, []]}

    def under_linear(shape: list[int], dur: float) -> Op:
        outer = ("aten::linear", "aten::to", "aten::_to_copy")
        return Op("aten::copy_", CAST, dur, [shape, shape, []], [BF16, FP32, "Scalar"], outer, around=told)

    trace = device_bound(tmp_path, [under_linear(weight, 300), under_linear(x, 100), work(600)])
    (found,) = findings(dtype_casts, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(600, rel=0.02)
    assert found.predicted.after_ns.high / 1e3 >= 700


def test_layers_in_fp32_within_a_bf16_model_are_found_and_not_promised(tmp_path: Path) -> None:
    """Two casts of 100 µs, a product in fp32 and what scales its result: the casts go, the rest is half as much."""
    left, right = [8192, 4096], [4096, 4096]
    product = Op("aten::mm", "sgemm", 8_000, [left, right], [FP32, FP32], ("aten::linear",))
    scaled = Op("aten::mul", ADD, 200, [left, []], [FP32, "double"])
    other = Op("aten::mm", "gemm", 1_000, [left, right], [BF16, BF16])
    trace = device_bound(tmp_path, [other, cast(BF16, FP32), product, scaled, cast(FP32, BF16)])
    (found,) = findings(dtype_casts, trace, step_us=9_400)
    tiles, waves = 64 * 32, 16  # of 132 blocks each
    in_bf16 = (
        2 * 8192 * 4096 * 4096 / (989e12 * 0.84 * tiles / (waves * 132)) * 1e6
        + 2 * 8192 * 4096 / 4.8e12 * 1e6
        + 2
    )
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_000 + in_bf16 + 110, rel=0.02)
    assert found.predicted.verdict == "uncertain"


def test_work_in_half_precision_between_casts_is_no_layer_in_fp32(tmp_path: Path) -> None:
    product = Op("aten::mm", "gemm", 2_000, [[4096, 4096], [4096, 4096]], [BF16, BF16])
    assert findings(dtype_casts, device_bound(tmp_path, [cast(BF16, FP32), product, cast(FP32, BF16)])) == []
