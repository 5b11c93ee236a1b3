"""Casts there and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.precision.dtype_casts import dtype_casts
from foretrace.errors import MissingDataError
from tests.diagnose.casts import BF16, FP16, FP32, cast, work
from tests.diagnose.kernels import ADD, CAST, Op, device_bound
from tests.diagnose.loops import findings


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


def test_casts_around_an_operator_that_computes_in_fp32_inside(tmp_path: Path) -> None:
    """A norm of 400 µs in fp32: without the casts it takes 85 % of that in bf16, and nothing speaks against it."""
    norm = Op("aten::native_layer_norm", "vectorized_layer_norm_kernel", 400, [[1024, 1024], [], [1024], [1024], []],
              [FP32, "ScalarList", FP32, FP32, "Scalar"], ("aten::layer_norm",))  # fmt: skip
    ops = [cast(BF16, FP32), norm, cast(FP32, BF16), work(400)]
    (found,) = findings(dtype_casts, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(0.85 * 400 + 400, rel=0.02)


@pytest.mark.slow
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


def test_what_is_kept_is_not_undone_by_the_next_cast(tmp_path: Path) -> None:
    """master.sub_(grad.float()); weight.copy_(master), for one weight after the other."""
    one = [cast(BF16, FP32), work(1_000), cast(FP32, BF16, outer=())]
    assert findings(dtype_casts, device_bound(tmp_path, [*one, *one]), step_us=2400) == []


def test_without_shapes_it_could_not_look(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="record_shapes"):
        list(dtype_casts(Case(device_bound(tmp_path, [Op("aten::copy_", CAST, 100)]))))


@pytest.mark.slow
def test_casts_that_cost_only_the_host_are_found_where_the_step_follows_it(tmp_path: Path) -> None:
    """Of 15 µs on the GPU two casts take 0.2, but 40 of 60 µs on the host."""
    there = Op("aten::copy_", CAST, 0.1, [[1024], [1024], []], [BF16, FP32, "Scalar"], ("aten::to",))
    back = Op("aten::copy_", CAST, 0.1, [[1024], [1024], []], [FP32, BF16, "Scalar"], ("aten::to",))
    (found,) = findings(dtype_casts, device_bound(tmp_path, [there, back, work(15)]), step_us=60)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(20, rel=0.1)
