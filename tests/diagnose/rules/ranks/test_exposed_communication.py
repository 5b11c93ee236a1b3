"""exposed-communication: collectives that no computation hides."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording

from foretrace.diagnose.rules.ranks.exposed_communication import exposed_communication
from tests.diagnose.loops import findings, launches, loop

TO_HOST, FROM_HOST = "Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def beside(recording: Recording, at: float) -> None:
    """A kernel and a collective of 500 µs, side by side."""
    recording.launch(at, "gemm", at + 10, at + 510)
    recording.launch(at + 2, NCCL, at + 10, at + 510, stream=20)


def test_a_collective_behind_the_computation_is_never_promised_away(tmp_path: Path) -> None:
    """The host is far ahead: a step of it takes 10 µs, one of the device 1 ms, half of it communication."""
    recording = Recording()
    for number in range(3):
        recording.step(number, 10 * number, 10 * number + 10)
        at, begin = 10 * number, 20 + 1_000 * number
        recording.launch(at + 1, "gemm", begin, begin + 500)
        recording.launch(at + 5, NCCL, begin + 500, begin + 1_000)
    (found,) = findings(exposed_communication, recording.open(tmp_path), step_us=1_000)
    assert found.evidence["exposed_ns"] == 500_000
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.speedup.point == pytest.approx(1_000 / 750, rel=0.05)
    assert found.predicted.speedup.high >= 1.9


def test_a_hidden_collective_is_no_finding(tmp_path: Path) -> None:
    trace = loop(tmp_path, 520, beside)
    assert findings(exposed_communication, trace, step_us=520) == []


def test_no_collective_no_finding(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(exposed_communication, trace) == []


def copying(stream: int, *, way: str = TO_HOST, computing: int = 600, pieces: int = 1) -> Recording:
    """A host far ahead; each step of 1,000 µs computes and then copies to or from pinned memory."""
    recording = Recording()
    for number in range(3):
        recording.step(number, 10 * number, 10 * number + 10)
        at, begin = 10 * number, 20 + 1_000 * number
        recording.launch(at + 1, "gemm", begin, begin + computing)
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
    (found,) = findings(exposed_communication, copying(7).open(tmp_path), step_us=1_000)
    assert found.evidence["exposed_ns"] == 400_000
    assert found.evidence["exposed_pct"] == pytest.approx(40)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.speedup.point == pytest.approx(1_000 / (1_000 - 0.67 * 400), rel=0.02)
    assert found.predicted.speedup.high >= 1_000 / 600


@pytest.mark.parametrize(("way", "least"), [(TO_HOST, 0.4), (FROM_HOST, 0.55)])
def test_of_many_copies_only_the_last_must_wait(tmp_path: Path, way: str, least: float) -> None:
    """Four copies of 100 µs behind 600 µs of kernels: a part of them is sure to be hidden, which is a promise."""
    (found,) = findings(exposed_communication, copying(7, way=way, pieces=4).open(tmp_path), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.high / 1e3 > 1_000 - least * 400


def test_copies_in_a_stream_of_their_own_are_no_finding(tmp_path: Path) -> None:
    assert findings(exposed_communication, copying(20).open(tmp_path), step_us=600) == []


def test_what_comes_from_the_host_can_be_fetched_ahead(tmp_path: Path) -> None:
    (found,) = findings(exposed_communication, copying(7, way=FROM_HOST).open(tmp_path), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(1_000 / (1_000 - 0.85 * 400), rel=0.02)


def test_copies_hide_behind_no_more_than_is_computed(tmp_path: Path) -> None:
    """900 µs of copies beside 100 µs of kernels: 900 are left, whatever is done."""
    (found,) = findings(exposed_communication, copying(7, computing=100).open(tmp_path), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(900, rel=0.02)
    assert found.predicted.verdict != "gain"
