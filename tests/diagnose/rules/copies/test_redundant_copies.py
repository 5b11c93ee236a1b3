"""Copies by contiguous() and clone() that what follows could do without."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from foretrace.diagnose.rules.copies.redundant_copies import redundant_copies
from tests.diagnose.copies import CONTIGUOUS, SDPA, laid, ordered, reads, work
from tests.diagnose.kernels import ADD, CAST, Op, device_bound
from tests.diagnose.loops import findings


def copied(*outer: str, source: str = "float") -> Op:
    shapes = [[64, 1024, 64], [64, 1024, 64], []]
    return Op("aten::copy_", CAST, 200, shapes, ["float", source, "Scalar"], outer)


HEADS = ([16, 16, 1024, 64], [3145728, 64, 3072, 1])  # of a product for queries, keys and values


def test_what_reads_a_copy_is_known_by_its_strides(tmp_path: Path) -> None:
    """Between the copies of heads lie views of other tensors: they need no order of these."""
    copy = ordered(*HEADS[0])
    other = ([16, 1024, 16, 64], [3145728, 3072, 64, 1])
    view = reads("aten::view", other, dur=0, inputs=["", "[16, 1024, 16, 64]"])
    ops = [
        laid(copy, HEADS, *CONTIGUOUS),
        view,
        laid(copy, HEADS, *CONTIGUOUS),
        view,
        reads(SDPA, copy, copy),
    ]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1200)
    assert found.evidence["copies_per_step_count"] == 2
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


def test_a_view_that_the_original_allows_too_is_seen_through(tmp_path: Path) -> None:
    """Of [16, 1024, 16, 64] in rows of 3,072, the last two dimensions are one; the first two are not."""
    original = ([16, 1024, 16, 64], [3145728, 3072, 64, 1])
    copy, merged = ordered(*original[0]), ordered(16, 1024, 1024)
    view = reads("aten::view", copy, dur=0, inputs=["", "[16, 1024, -1]"])
    ops = [laid(copy, original, *CONTIGUOUS), view, reads("aten::linear", merged)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


TRANSPOSED = ([64, 1024, 512], [524288, 1, 1024])
ROWS = ordered(*TRANSPOSED[0])


@pytest.mark.parametrize(
    "ops",
    [
        [laid(ROWS, TRANSPOSED, *CONTIGUOUS), reads("aten::layer_norm", ROWS)],  # it copies itself
        [laid(ROWS, TRANSPOSED, *CONTIGUOUS), reads("aten::softmax", ROWS)],
        [laid(ROWS, TRANSPOSED, *CONTIGUOUS), reads(SDPA, ROWS)],  # fused attention wants dense rows
        [laid(ROWS, TRANSPOSED, *CONTIGUOUS), reads("aten::view", ROWS, inputs=["", "[64, 524288]"])],
        [laid(ROWS, TRANSPOSED, *CONTIGUOUS), reads("aten::view", ROWS)],  # to what shape was not recorded
        [laid(ROWS, ROWS, "aten::clone"), reads("aten::select", ROWS, dur=0), reads("aten::fill_", ([64, 512], [524288, 1]))],
        [laid(([8, 64, 32, 32], [65536, 1, 2048, 64]), ordered(8, 64, 32, 32), *CONTIGUOUS, memory_format="2"),
         reads("aten::conv2d", ([8, 64, 32, 32], [65536, 1, 2048, 64]))],  # into channels-last order
    ],
)  # fmt: skip
def test_copies_that_are_needed(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(redundant_copies, device_bound(tmp_path, ops)) == []


def test_channels_last_pictures_need_no_planar_copy_for_a_convolution(tmp_path: Path) -> None:
    picture, planar = ([8, 64, 32, 32], [65536, 1, 2048, 64]), ordered(8, 64, 32, 32)
    ops = [laid(planar, picture, *CONTIGUOUS), reads("aten::conv2d", planar)]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


@pytest.mark.parametrize(("made_by", "passes"), [("aten::relu", 2), ("aten::linear", None)])
def test_pointwise_operators_read_transposed_rows_slowly(
    tmp_path: Path, made_by: str, passes: int | None
) -> None:
    """One read and one write of 134 MB are saved, 70 µs; all of the copy if a product could write this order."""
    ops = [
        Op(made_by, ADD, 400),
        laid(ROWS, TRANSPOSED, *CONTIGUOUS),
        reads("aten::add", ROWS, ROWS, dur=400),
    ]
    (found,) = findings(redundant_copies, device_bound(tmp_path, ops), step_us=1000)
    saved = 200 if passes is None else passes * 4 * prod(ROWS[0]) / (4.8e12 * 0.8) * 1e6
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1000 - saved, rel=0.02)


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
