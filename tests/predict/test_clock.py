"""A GPU that does little but multiply clocks lower: products take longer once what lay between them is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.precision.dtype_casts import dtype_casts
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Tasks
from tests.diagnose.kernels import ADD, CAST, Op, device_bound
from tests.diagnose.loops import findings

BF16, FP32 = "c10::BFloat16", "float"
GEMM = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
PRODUCT_US = 2 * 4096**3 / (989.5e12 * 0.8) * 1e6


def product(rows: int, dur: float) -> Op:
    return Op("aten::mm", GEMM, dur, [[rows, 4096], [4096, 4096]], [BF16, BF16])


def cast(source: str, target: str, dur: float) -> Op:
    shapes = [[8192, 4096], [8192, 4096], []]
    return Op("aten::copy_", CAST, dur, shapes, [target, source, "Scalar"], ("aten::to", "aten::_to_copy"))


def test_products_that_are_left_alone_take_longer(tmp_path: Path) -> None:
    """Of 40 % of the step they become all of it: 1 + 0.3 * 0.5 times as long."""
    each = 0.75 * PRODUCT_US
    trace = device_bound(
        tmp_path, [product(4096, PRODUCT_US), cast(BF16, FP32, each), cast(FP32, BF16, each)]
    )
    (found,) = findings(dtype_casts, trace, step_us=2.5 * PRODUCT_US)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1.15 * PRODUCT_US, rel=0.02)
    assert "clocks lower" in found.predicted.basis


def test_what_was_hot_before_is_as_hot_after(tmp_path: Path) -> None:
    """From 80 % of the step to all of it: 1.15 / 1.09."""
    trace = device_bound(tmp_path, [product(4096, 4 * PRODUCT_US / 4), Op("aten::add", ADD, PRODUCT_US / 4)])
    case = Case(trace, step_ns=1.25 * PRODUCT_US * 1e3)
    gone = Change(
        "sums removed",
        Edit(removed_tasks=Tasks(case.tasks.filter(case.tasks["task"] % 2 == 1)["task"].to_numpy())),
    )
    _, heated = case.with_clock((gone,))
    assert list(heated.edit.stretched.values()) == pytest.approx([1.15 / 1.09] * 4, rel=0.01)


@pytest.mark.parametrize(("rows", "dur"), [(16, 10.0), (4096, 3 * PRODUCT_US)])
def test_products_that_wait_for_memory_stay_cool(tmp_path: Path, rows: int, dur: float) -> None:
    trace = device_bound(tmp_path, [product(rows, dur), Op("aten::add", ADD, dur)])
    case = Case(trace, step_ns=2 * dur * 1e3)
    gone = Change(
        "sums removed",
        Edit(removed_tasks=Tasks(case.tasks.filter(case.tasks["task"] % 2 == 1)["task"].to_numpy())),
    )
    assert case.with_clock((gone,)) == (gone,)


def test_half_of_the_step_is_cool(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [product(4096, PRODUCT_US), *[Op("aten::add", ADD, PRODUCT_US)] * 3])
    case = Case(trace, step_ns=4 * PRODUCT_US * 1e3)
    gone = Change(
        "a sum removed",
        Edit(removed_tasks=Tasks(case.tasks.filter(case.tasks["task"] % 4 == 1)["task"].to_numpy())),
    )
    assert case.with_clock((gone,)) == (gone,)
    assert case.with_clock(()) == ()
