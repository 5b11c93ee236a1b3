"""tiny-copies: small tensors brought to the device one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording

from foretrace.diagnose.tiny_copies import tiny_copies
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
