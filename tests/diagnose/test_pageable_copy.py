"""pageable-copy: large copies between the device and memory that is not pinned."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording

from foretrace.diagnose.pageable_copy import pageable_copy
from foretrace.trace import Trace
from tests.diagnose.loops import findings, loop

SIZE = 16_704_000  # 300 µs at 87 % of 64 GB/s
TO_HOST, TO_DEVICE = "Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)"


def service(folder: Path, kind: str, *, size: int = SIZE) -> Trace:
    """A kernel of 1,000 µs and a copy of 900 µs that the host waits for; 20 µs of host work around them."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::conv2d", at, at + 10)
        recording.launch(at + 5, "conv", at + 8, at + 1_008, call=3)
        recording.op("aten::copy_", at + 10, at + 1_915)
        recording.launch(at + 15, kind, at + 1_010, at + 1_910, category="gpu_memcpy", call=1_898, bytes=size)

    return loop(folder, 1_920, body)


def test_results_go_to_pinned_memory_behind_the_kernels(tmp_path: Path) -> None:
    """The device then has 1,000 + 300 µs of work, and the host does not wait."""
    (found,) = findings(pageable_copy, service(tmp_path, TO_HOST), step_us=1_920)
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_300, rel=0.02)
    assert found.predicted.after_ns.high / 1e3 > 1_350  # where the host has to wait all the same
    assert "to pageable" in found.says
    assert "pinned.copy_" in found.fix.code


def test_inputs_come_from_pinned_memory_beside_the_kernels(tmp_path: Path) -> None:
    """The copy runs on a stream of its own: the kernel's 1,000 µs are left."""
    (found,) = findings(pageable_copy, service(tmp_path, TO_DEVICE), step_us=1_920)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_000, rel=0.03)
    assert "from pageable" in found.says


@pytest.mark.parametrize("kind", ["Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"])
def test_pinned_memory_is_no_fault(tmp_path: Path, kind: str) -> None:
    assert findings(pageable_copy, service(tmp_path, kind), step_us=1_920) == []


def test_small_copies_are_no_fault(tmp_path: Path) -> None:
    assert findings(pageable_copy, service(tmp_path, TO_HOST, size=1 << 19), step_us=1_920) == []
