"""exposed-communication: collectives that no computation hides."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording

from foretrace.diagnose.rules.ranks.exposed_communication import exposed_communication
from tests.diagnose.loops import findings, launches, loop

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
