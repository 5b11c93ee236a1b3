"""exposed-copies: copies that take turns with kernels in one stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.copies.exposed_copies import exposed_copies
from tests.builders import Recording
from tests.diagnose.loops import findings

TO_HOST, FROM_HOST = "Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"


def copying(stream: int, *, way: str = TO_HOST, computing: int = 600, pieces: int = 1) -> Recording:
    """A host far ahead; each step of 1,000 µs computes and then copies to or from pinned memory."""
    recording = Recording()
    for number in range(3):
        recording.step(number, 10 * number, 10 * number + 10)
        at, begin = 10 * number, 20 + 1_000 * number
        recording.op("aten::mm", at + 1, at + 3).launch(at + 1, "gemm", begin, begin + computing)
        start = begin + computing if stream == 7 else begin
        end = begin + 1_000 if stream == 7 else begin + 1_000 - computing
        each = (end - start) / pieces
        for piece in range(pieces):
            begun = start + piece * each
            recording.launch(
                at + 5 + piece, way, begun, begun + each, category="gpu_memcpy", stream=stream, call=0.5
            )
    return recording


def test_copies_in_the_computing_stream_could_run_beside_it(tmp_path: Path) -> None:
    (found,) = findings(exposed_copies, copying(7).open(tmp_path), step_us=1_000)
    assert found.evidence["exposed_ns"] == 400_000
    assert found.evidence["exposed_pct"] == pytest.approx(40)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(1_000 / (1_000 - 0.67 * 400), rel=0.02)
    assert 1 < found.predicted.speedup.low < 1_000 / (1_000 - 0.25 * 400), (
        "a quarter of it is hidden at least"
    )
    assert found.predicted.speedup.high >= 1_000 / 600


@pytest.mark.parametrize(("way", "least"), [(TO_HOST, 0.4), (FROM_HOST, 0.55)])
def test_of_many_copies_only_the_last_must_wait(tmp_path: Path, way: str, least: float) -> None:
    """Four copies of 100 µs behind 600 µs of kernels: a part of them is sure to be hidden, which is a promise."""
    (found,) = findings(exposed_copies, copying(7, way=way, pieces=4).open(tmp_path), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.high / 1e3 > 1_000 - least * 400


def test_copies_in_a_stream_of_their_own_are_no_finding(tmp_path: Path) -> None:
    assert findings(exposed_copies, copying(20).open(tmp_path), step_us=600) == []


def test_what_comes_from_the_host_can_be_fetched_ahead(tmp_path: Path) -> None:
    (found,) = findings(exposed_copies, copying(7, way=FROM_HOST).open(tmp_path), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(1_000 / (1_000 - 0.85 * 400), rel=0.02)


def test_copies_hide_behind_no_more_than_is_computed(tmp_path: Path) -> None:
    """900 µs of copies beside 100 µs of kernels: 900 are left, whatever is done."""
    (found,) = findings(exposed_copies, copying(7, computing=100).open(tmp_path), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(900, rel=0.02)
