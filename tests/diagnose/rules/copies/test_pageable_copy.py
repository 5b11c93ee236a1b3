"""pageable-copy: large copies between the device and memory that is not pinned."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.copies.pageable_copy import pageable_copy
from foretrace.trace import Trace
from tests.builders import Recording
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


def test_inputs_come_from_pinned_memory_in_turn_with_the_kernels(tmp_path: Path) -> None:
    """In one stream the copy's 300 µs precede the kernel's 1,000; on a stream of its own it would cost nothing."""
    (found,) = findings(pageable_copy, service(tmp_path, TO_DEVICE), step_us=1_920)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_300, rel=0.03)
    assert found.predicted.after_ns.low / 1e3 < 1_000
    assert "from pageable" in found.says
    assert "non_blocking" in found.fix.code


def test_large_inputs_come_on_a_stream_of_their_own(tmp_path: Path) -> None:
    """50.1 MB take 900 µs from pinned memory too: in turn 1,900 µs, beside the kernels 1,000."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::copy_", at, at + 4_520)
        recording.launch(
            at + 5, TO_DEVICE, at + 10, at + 4_510, category="gpu_memcpy", call=4_508, bytes=3 * SIZE
        )
        recording.op("aten::conv2d", at + 4_520, at + 4_530)
        recording.launch(at + 4_522, "conv", at + 4_530, at + 5_530, call=3)

    (found,) = findings(pageable_copy, loop(tmp_path, 5_540, body), step_us=5_540)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_000, rel=0.05)
    assert found.predicted.after_ns.high / 1e3 > 1_900
    assert "torch.cuda.stream" in found.fix.code


@pytest.mark.parametrize("kind", ["Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"])
def test_pinned_memory_is_no_fault(tmp_path: Path, kind: str) -> None:
    assert findings(pageable_copy, service(tmp_path, kind), step_us=1_920) == []


@pytest.mark.parametrize("kind", [TO_HOST, TO_DEVICE])
def test_copies_that_the_driver_stages_at_once_are_no_fault(tmp_path: Path, kind: str) -> None:
    assert findings(pageable_copy, training(tmp_path, kind, size=1 << 12, wait=False), step_us=520) == []


def training(folder: Path, kind: str, *, size: int, copies: int = 1, wait: bool = True) -> Trace:
    """Copies of 5 µs that their operators wait for, then 40 launches of 5 µs whose kernels take 10 µs each."""

    def body(recording: Recording, at: float) -> None:
        for number in range(copies):
            start = at + 20 * number
            recording.op("aten::copy_", start, start + 20)
            recording.launch(
                start + 2, kind, start + 6, start + 11, category="gpu_memcpy", call=3, bytes=size
            )
            if wait:
                recording.runtime("cudaStreamSynchronize", start + 6, start + 15)
        first = at + 20 * copies
        for number in range(40):
            recording.op("aten::mm", first + 5 * number, first + 5 * number + 5)
            recording.launch(
                first + 5 * number + 1, "gemm", first + 5 + 12 * number, first + 15 + 12 * number, call=3
            )

    return loop(folder, 20 * copies + 500, body)


@pytest.mark.parametrize("kind", [TO_DEVICE, "Memcpy HtoD (Pinned -> Device)"])
def test_a_small_batch_that_is_waited_for_holds_the_host(tmp_path: Path, kind: str) -> None:
    """The host waits until kernels of the step before, and the copy, are done; then it launches 10 kernels of 10 µs.

    The first takes 25 µs to launch, 14 unrecorded: of 144 µs, copy and kernels take 5 and 10 times 12.
    """

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::copy_", at, at + 85)
        recording.launch(at + 2, kind, at + 76, at + 81, category="gpu_memcpy", call=3, bytes=1 << 12)
        recording.runtime("cudaStreamSynchronize", at + 6, at + 85)
        for number in range(10):
            launched = at + 107 + 5 * number
            recording.op("aten::mm", launched - (22 if number == 0 else 2), launched + 3)
            recording.launch(launched, "gemm", at + 110 + 12 * number, at + 120 + 12 * number, call=3)

    (found,) = findings(pageable_copy, loop(tmp_path, 155, body), step_us=144)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(125, rel=0.05)
    assert "The host waits for them." in found.says


def test_many_small_copies_are_another_fault(tmp_path: Path) -> None:
    trace = training(tmp_path, TO_DEVICE, size=1 << 12, copies=4)
    assert findings(pageable_copy, trace, step_us=580) == []


def test_several_tensors_of_half_a_megabyte_are_one_batch(tmp_path: Path) -> None:
    trace = training(tmp_path, TO_DEVICE, size=1 << 19, copies=4)
    (found,) = findings(pageable_copy, trace, step_us=580)
    assert found.evidence["copies_per_step_count"] == 4
    assert found.evidence["moved_bytes"] == 1 << 21


def test_both_ways_are_pinned_together(tmp_path: Path) -> None:
    """16.7 MB come and go, 900 µs each and waited for: 1,000 µs of kernel and 300 µs of copy each way are left."""

    def body(recording: Recording, at: float) -> None:
        for kind, name, start, end in (
            ("gpu_memcpy", TO_DEVICE, at + 10, at + 910),
            ("kernel", "conv", at + 930, at + 1_930),
            ("gpu_memcpy", TO_HOST, at + 1_935, at + 2_835),
        ):
            call = end - start + 3 if kind == "gpu_memcpy" else 3
            launched = start - 8 if name != TO_HOST else at + 935
            call = call if name != TO_HOST else end - launched + 3
            recording.op(
                "aten::copy_" if kind == "gpu_memcpy" else "aten::conv2d", launched - 1, launched + call + 1
            )
            recording.launch(launched, name, start, end, category=kind, call=call, bytes=SIZE)

    (found,) = findings(pageable_copy, loop(tmp_path, 2_860, body), step_us=2_860)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_600, rel=0.03)
    assert found.predicted.after_ns.low / 1e3 < 1_300  # with inputs beside the kernels
    assert "from pageable" in found.says
    assert "to pageable" in found.says
