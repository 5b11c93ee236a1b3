"""torch.cat that copies all to add a little."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.copies.growing_cat import growing_cat
from tests.diagnose.copies import ordered, reads, work
from tests.diagnose.kernels import ADD, Op, device_bound
from tests.diagnose.loops import findings


def cat(*parts: list[int], **told: int) -> Op:
    return Op("aten::cat", CAT, 500, [list(parts), []], ["TensorList", "Scalar"], told=told)


CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>>"
NEW = [8, 1, 64]


def test_a_cache_that_grows_by_cat_is_worth_all_but_what_is_new(tmp_path: Path) -> None:
    """Of 1,000 rows one is new: two copies of 500 µs become two of 2 µs, which is the least."""
    ops = [cat([8, 1000, 64], NEW), cat([8, 1001, 64], NEW), work(dur=200)]
    (found,) = findings(growing_cat, device_bound(tmp_path, ops), step_us=1200)
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(200 + 2 * 2, rel=0.03)
    assert found.evidence["copies_per_step_count"] == 2


def test_a_part_that_is_new_is_still_copied(tmp_path: Path) -> None:
    """80 of 1,080 rows: 500 µs become 37; 80 of 1,160: 34."""
    ops = [cat([8, 1000, 64], [8, 80, 64]), cat([8, 80, 64], [8, 1080, 64]), work(dur=200)]
    (found,) = findings(growing_cat, device_bound(tmp_path, ops), step_us=1200)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(200 + 37 + 34.5, rel=0.03)


def test_a_list_joined_anew_for_every_part_is_worth_all_but_the_last(tmp_path: Path) -> None:
    """Of 20 and 21 parts one is new: 500 µs become 25 and 24."""
    ops = [cat(*[[8, 1, 64]] * 20), cat(*[[8, 1, 64]] * 21), work(dur=200)]
    (found,) = findings(growing_cat, device_bound(tmp_path, ops), step_us=1200)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(200 + 500 / 20 + 500 / 21, rel=0.03)


def test_a_window_that_moves_along_is_copied_for_what_is_new(tmp_path: Path) -> None:
    cut = reads("aten::slice", ordered(8, 1000, 64), dur=0)
    ops = [cut, cat([8, 999, 64], NEW), work(dur=500)]
    (found,) = findings(growing_cat, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(500 + 2, rel=0.03)


def test_without_a_backward_pass_nothing_is_kept(tmp_path: Path) -> None:
    ops = [
        cat([8, 1000, 64], NEW, **{"Sequence number": 7}),
        cat([8, 1001, 64], NEW, **{"Sequence number": 8}),
        work(),
    ]
    assert findings(growing_cat, device_bound(tmp_path, ops))


@pytest.mark.parametrize(
    "ops",
    [
        [cat([8, 1000, 64], NEW), work()],  # once: nothing copies it again
        [cat([8, 500, 64], [8, 500, 64]), cat([8, 1000, 64], [8, 1000, 64]), work()],  # doubles each time
        [cat([8, 1000, 64], NEW), cat([8, 2000, 64], NEW), work()],  # two tensors that have nothing in common
        [
            cat([8, 1000, 64], NEW, **{"Sequence number": 7}),
            cat([8, 1001, 64], NEW, **{"Sequence number": 8}),
            Op("CatBackward0", ADD, 800, told={"Sequence number": 8, "Fwd thread id": 1}),
        ],  # autograd keeps what it copied
        [
            cat([8, 1000, 64], NEW),
            reads("aten::native_layer_norm", ordered(8, 1001, 64)),
            cat([8, 1001, 64], NEW),
        ],
        [cat([8, 1000, 64], NEW), cat([8, 1001, 64], NEW), work(dur=60_000)],  # too little to matter
    ],
)
def test_other_concatenations_are_no_fault(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(growing_cat, device_bound(tmp_path, ops)) == []
