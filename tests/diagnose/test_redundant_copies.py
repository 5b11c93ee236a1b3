"""Copies by contiguous() and clone() that what follows could do without, and torch.cat that copies all to add a little."""

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


def cat(*parts: list[int], **told: int) -> Op:
    return Op("aten::cat", CAT, 500, [list(parts), []], ["TensorList", "Scalar"], told=told)


CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>>"
NEW = [8, 1, 64]


def test_a_cache_that_grows_by_cat_is_worth_all_but_what_is_new(tmp_path: Path) -> None:
    """Of 1,000 rows one is new: two copies of 500 µs become two of 2 µs, which is the least."""
    ops = [cat([8, 1000, 64], NEW), cat([8, 1001, 64], NEW), work(dur=200)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1200)
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(200 + 2 * 2, rel=0.03)
    assert found.evidence["copies_per_step_count"] == 2


def test_a_part_that_is_new_is_still_copied(tmp_path: Path) -> None:
    """80 of 1,080 rows: 500 µs become 37; 80 of 1,160: 34."""
    ops = [cat([8, 1000, 64], [8, 80, 64]), cat([8, 80, 64], [8, 1080, 64]), work(dur=200)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1200)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(200 + 37 + 34.5, rel=0.03)


@pytest.mark.parametrize(
    "ops",
    [
        [cat([8, 1000, 64], NEW), work()],  # once: nothing copies it again
        [cat([8, 500, 64], [8, 500, 64]), cat([8, 1000, 64], [8, 1000, 64]), work()],  # doubles each time
        [cat([8, 1000, 64], NEW), cat([8, 2000, 64], NEW), work()],  # two tensors that have nothing in common
        [
            cat([8, 1000, 64], NEW, **{"Sequence number": 7}),
            cat([8, 1001, 64], NEW, **{"Sequence number": 8}),
            work(),
        ],  # autograd keeps what it copied
        [cat([8, 1000, 64], NEW), cat([8, 1001, 64], NEW), work(dur=60_000)],  # too little to matter
    ],
)
def test_other_concatenations_are_no_fault(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(redundant_copies, device_bound(tmp_path, ops)) == []
