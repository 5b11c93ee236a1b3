"""Copies by contiguous() and clone() that what follows could do without."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnose.kernels import ADD, CAST, Op, device_bound

from foretrace.diagnose.redundant_copies import redundant_copies
from tests.diagnose.loops import findings


def copied(*outer: str, source: str = "float") -> Op:
    shapes = [[64, 1024, 64], [64, 1024, 64], []]
    return Op("aten::copy_", CAST, 200, shapes, ["float", source, "Scalar"], outer)


def work(name: str = "aten::bmm", dur: float = 800) -> Op:
    return Op(name, ADD, dur, [[1 << 20]], ["float"])


def test_a_copy_before_a_product_is_worth_its_time(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [copied("aten::contiguous", "aten::clone"), work()])
    (found,) = findings(redundant_copies, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


@pytest.mark.parametrize(
    "ops",
    [
        [copied("aten::contiguous", "aten::clone"), work("aten::view")],  # the view needs the order
        [copied("aten::clone"), work("aten::add_")],  # changed in place
        [copied("aten::reshape", "aten::clone"), work()],  # not asked for by the program
        [copied("aten::to", "aten::_to_copy"), work()],
        [copied("aten::contiguous", source="c10::Half"), work()],  # a cast
        [copied("aten::contiguous"), work(dur=20_000)],  # too little to matter
    ],
)
def test_no_fault(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(redundant_copies, device_bound(tmp_path, ops)) == []
