"""tiny-copies: small tensors brought to the device one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.rules.copies.pageable_copy import pageable_copy
from foretrace.diagnose.rules.copies.tiny_copies import tiny_copies
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def copies(recording: Recording, at: float, count: int, *, size: int = 80) -> None:
    """`tensor.to(device)`, 200 µs each: a copy of 1 µs and a wait for it."""
    for number in range(count):
        start = at + number * 200
        recording.op("aten::to", start, start + 200).op("aten::copy_", start + 5, start + 200)
        recording.launch(
            start + 100, PAGEABLE, start + 104, start + 105, category="gpu_memcpy", call=4, bytes=size
        )
        recording.runtime("cudaStreamSynchronize", start + 105, start + 108)


@pytest.mark.parametrize(("size", "left"), [(80, 2_200 + 9 * 100), (8, 2_000)])
def test_ten_small_copies_a_step(tmp_path: Path, size: int, left: float) -> None:
    """2 of 4 ms are copies, by two operators each, and 2 ms by 20 operators more: an operator takes 100 µs.

    All but the first can go, and of single numbers that one too; data is put together by an operator for each.
    """

    def body(recording: Recording, at: float) -> None:
        copies(recording, at, 10, size=size)
        launches(recording, at + 2_000, 20, every=100)

    (found,) = findings(tiny_copies, loop(tmp_path, 4_000, body), step_us=4_000)
    assert found.evidence["copies_per_step_count"] == 10
    assert found.evidence["mean_bytes"] == size
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.speedup.point == pytest.approx(4_000 / left, rel=0.03)
    assert found.predicted.speedup.high >= 4_000 / 2_200 * 0.97  # where it lies together already


@pytest.mark.parametrize(("count", "size"), [(2, 8), (10, 1 << 20)])
def test_few_or_large_copies_are_no_finding(tmp_path: Path, count: int, size: int) -> None:
    def body(recording: Recording, at: float) -> None:
        copies(recording, at, count, size=size)
        launches(recording, at + 2_000, 20, every=100)

    assert findings(tiny_copies, loop(tmp_path, 4_000, body), step_us=4_000) == []


@pytest.mark.slow
@pytest.mark.parametrize(("maker", "saved"), [("aten::arange", 9 * 300), ("aten::sort", 9 * 100)])
def test_constants_are_made_once(tmp_path: Path, maker: str, saved: float) -> None:
    """Before each copy the host works for 100 µs; on a constant, that need not be done again.

    An operator takes 100 µs: what is no constant is packed, and of the 200 µs of its copy 100 are left.
    """

    def body(recording: Recording, at: float) -> None:
        for number in range(10):
            recording.op(maker, at + number * 300, at + number * 300 + 100)
            copies(recording, at + number * 300 + 100, 1)
        launches(recording, at + 3_000, 20, every=100)

    (found,) = findings(tiny_copies, loop(tmp_path, 5_000, body), step_us=5_000)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(5_000 / (5_000 - saved), rel=0.05)
    assert found.predicted.speedup.low < 5_000 / (5_000 - 9 * 200)


def test_numbers_need_no_tensor_and_no_stack(tmp_path: Path) -> None:
    """Twenty times torch.tensor(x).to(device), 100 µs, and 20 µs of Python; then 400 µs of torch.stack and 20 launches.

    One copy stays, 50 µs, for what the stack made: of 20 · 120 + 400 µs, and the rest of 2 ms. At worst all is still
    made on the host, and only the twenty copies of 50 µs go.
    """

    def body(recording: Recording, at: float) -> None:
        for number in range(20):
            start = at + number * 120
            for place, name in enumerate(("empty", "to", "lift_fresh", "detach_")):
                recording.op(f"aten::{name}", start + 12 * place, start + 12 * place + 12)
            recording.op("aten::to", start + 50, start + 100).op("aten::copy_", start + 52, start + 100)
            recording.launch(
                start + 90, PAGEABLE, start + 94, start + 95, category="gpu_memcpy", call=4, bytes=4
            )
            recording.runtime("cudaStreamSynchronize", start + 95, start + 98)
        recording.op("aten::stack", at + 2_400, at + 2_800)
        recording.launch(at + 2_790, "cat_kernel", at + 2_800, at + 2_801, call=4)
        launches(recording, at + 2_800, 20, every=100)

    (found,) = findings(tiny_copies, loop(tmp_path, 4_800, body), step_us=4_800)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(4_800 / 2_050, rel=0.03)
    assert found.predicted.speedup.low < 4_800 / 3_800


@pytest.mark.slow
def test_what_is_stacked_behind_its_copies_is_copied_once(tmp_path: Path) -> None:
    """Ten copies of 200 µs, then 100 µs of torch.stack: one copy stays, and nine operators of 100 µs pack the others.

    The first copy of a step stays as well.
    """

    def body(recording: Recording, at: float) -> None:
        copies(recording, at, 10)
        recording.op("aten::stack", at + 2_000, at + 2_100)
        recording.launch(at + 2_090, "cat_kernel", at + 2_100, at + 2_101, call=4)
        launches(recording, at + 2_100, 20, every=100)

    (found,) = findings(tiny_copies, loop(tmp_path, 4_100, body), step_us=4_100)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(4_100 / (2 * 200 + 9 * 100 + 2_000), rel=0.03)


def test_a_program_that_copies_nothing_was_looked_at(tmp_path: Path) -> None:
    """Kernels were recorded, so copies would have been."""
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 50))
    assert trace.copies.is_empty()
    found = diagnose(Case(trace), (tiny_copies, pageable_copy))
    assert found.checked == ("tiny-copies", "pageable-copy")
