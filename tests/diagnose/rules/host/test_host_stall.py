"""host-stall: what the host does instead of launching, and what is left of it where it has to be done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace.diagnose.finding import Finding
from foretrace.diagnose.rules.host.host_stall import host_stall
from tests.builders import Recording
from tests.diagnose.loops import H200, findings, loop

LENGTH = 3_000
FROM_HOST, TO_HOST = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"
Body = Callable[[Recording, float], None]


def kernel(recording: Recording, at: float, dur: float) -> None:
    """An operator of 10 µs and its kernel."""
    recording.op("aten::mm", at, at + 10)
    recording.launch(at + 5, "gemm", at + 10, at + 10 + dur, call=3)


def result(recording: Recording, at: float, begin: float, *, size: int) -> None:
    """A copy to the host of 5 µs that is waited for."""
    recording.op("aten::to", at, begin + 12)
    recording.launch(at + 2, TO_HOST, begin, begin + 5, category="gpu_memcpy", call=3, bytes=size)
    recording.runtime("cudaStreamSynchronize", at + 6, begin + 10)


def send(recording: Recording, at: float) -> None:
    recording.op("aten::to", at, at + 10)
    recording.launch(at + 2, FROM_HOST, at + 8, at + 10, category="gpu_memcpy", call=3, bytes=4096)


def stalled(folder: Path, body: Body) -> Finding:
    (found,) = findings(host_stall, loop(folder, LENGTH, body), step_us=LENGTH)
    assert found.predicted
    return found


def test_python_behind_the_launches_is_promised_away(tmp_path: Path) -> None:
    """1,000 µs of kernel, then 1,976 µs of Python that the device waits for: only the kernel is left."""

    def body(recording: Recording, at: float) -> None:
        kernel(recording, at, 1_000)
        result(recording, at + 12, at + 1_012, size=4)

    found = stalled(tmp_path, body)
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_020, rel=0.03)
    assert found.evidence["stalled_ns"] == pytest.approx(1_976_000, rel=0.01)


def test_operators_on_the_host_are_host_work(tmp_path: Path) -> None:
    """Twenty operators of 95 µs that launch nothing, as a metric or an augmentation is made of."""

    def body(recording: Recording, at: float) -> None:
        kernel(recording, at, 1_000)
        result(recording, at + 12, at + 1_012, size=4)
        for number in range(19):
            recording.op("aten::sort", at + 1_030 + 100 * number, at + 1_125 + 100 * number)

    found = stalled(tmp_path, body)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_100, rel=0.03)
    assert found.evidence["operators_ns"] == pytest.approx(19 * 95_000, rel=0.01)
    assert "operators of its own" in found.says


def test_an_operator_of_many_quick_ones_is_only_dispatched(tmp_path: Path) -> None:
    """600 µs of aten::unbind in a hundred views."""

    def body(recording: Recording, at: float) -> None:
        kernel(recording, at, 2_900)
        recording.op("aten::unbind", at + 50, at + 650)
        for number in range(100):
            recording.op("aten::select", at + 50 + 6 * number, at + 55 + 6 * number)
        for number in range(25):
            recording.op("aten::view", at + 700 + 90 * number, at + 705 + 90 * number)

    assert findings(host_stall, loop(tmp_path, LENGTH, body), step_us=LENGTH) == []


def test_input_made_in_line_may_have_to_be_made_all_the_same(tmp_path: Path) -> None:
    """2,000 µs of Python before the copy, 980 µs in which the host waits: a thread could use these and no more."""

    def body(recording: Recording, at: float) -> None:
        send(recording, at + 2_000)
        kernel(recording, at + 2_012, 950)
        result(recording, at + 2_025, at + 2_974, size=4)

    found = stalled(tmp_path, body)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_000, rel=0.03)
    assert found.predicted.after_ns.high / 1e3 > 2_000  # a thread's Python takes its 2,000 µs
    assert found.predicted.verdict == "gain"


def test_input_made_by_a_busy_host_is_not_promised_away(tmp_path: Path) -> None:
    """Nothing to overlap with: in a thread the same host does the same work."""

    def body(recording: Recording, at: float) -> None:
        send(recording, at + 2_000)
        for number in range(90):
            kernel(recording, at + 2_020 + 10 * number, 2)

    found = stalled(tmp_path, body)
    assert found.predicted
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.speedup.low < 1


def test_an_environment_that_answers_a_policy_is_not_promised_away(tmp_path: Path) -> None:
    """Actions come to the host, 1,900 µs of Python make the next observations of them."""

    def body(recording: Recording, at: float) -> None:
        send(recording, at)
        kernel(recording, at + 12, 1_000)
        result(recording, at + 25, at + 1_025, size=256)

    found = stalled(tmp_path, body)
    assert found.change
    assert "next input" in found.change.doubt
    assert found.predicted
    assert found.predicted.verdict == "uncertain"


def test_what_an_optimizer_spends_in_python_is_no_stall(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        kernel(recording, at, 1_000)
        recording.annotation("Optimizer.step#AdamW.step", at + 20, at + 2_990)
        kernel(recording, at + 2_970, 10)

    assert findings(host_stall, loop(tmp_path, LENGTH, body), step_us=LENGTH) == []


def test_a_host_that_is_ahead_may_take_its_time(tmp_path: Path) -> None:
    """2,000 µs of Python in a step whose kernels take 3,000 µs: nothing waits for it."""
    recording = Recording()
    for number in range(6):
        at = 2_100 * number
        recording.step(number, at, at + 2_100)
        recording.op("aten::mm", at, at + 10)
        recording.launch(at + 5, "gemm", 10 + 3_000 * number, 3_009 + 3_000 * number, call=3)
    (found,) = findings(host_stall, recording.open(tmp_path), step_us=3_000)
    assert found.predicted
    assert found.predicted.verdict == "no gain"


def test_many_short_stretches_are_a_stall(tmp_path: Path) -> None:
    """Ten times 150 µs of Python between waits for a kernel of 100 µs, as a sampler in numpy has it."""

    def body(recording: Recording, at: float) -> None:
        for number in range(10):
            start = at + 300 * number
            kernel(recording, start, 100)
            result(recording, start + 12, start + 120, size=4)

    found = stalled(tmp_path, body)
    assert found.predicted
    assert found.evidence["gaps_per_step_count"] == 10
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_320, rel=0.05)


def test_waiting_for_other_ranks_is_no_stall(tmp_path: Path) -> None:
    """gloo communicates in a thread of its own while the main thread waits for it."""

    def body(recording: Recording, at: float) -> None:
        kernel(recording, at, 500)
        recording.annotation("gloo:all_reduce", at + 15, at + 2_995, thread=7)

    assert findings(host_stall, loop(tmp_path, LENGTH, body), step_us=LENGTH) == []


def test_what_was_seen_once_is_not_promised(tmp_path: Path) -> None:
    """The same Python in the only step that was recorded: it may be a start or a compilation."""
    recording = Recording(deviceProperties=[H200]).step(0, 0, LENGTH)
    kernel(recording, 0, 1_000)
    recording.op("aten::mm", LENGTH - 10, LENGTH)
    (found,) = findings(host_stall, recording.open(tmp_path), step_us=LENGTH)
    assert found.predicted
    assert found.predicted.speedup.point > 2
    assert found.predicted.verdict == "uncertain"
    assert "fewer than two recorded steps" in found.predicted.basis


def test_results_that_are_read_between_pieces_of_work_go_with_it(tmp_path: Path) -> None:
    """Four results, each followed by 700 or 90 µs of Python: only the first of them is still read, and the kernel is left."""

    def body(recording: Recording, at: float) -> None:
        kernel(recording, at, 200)
        for number, (begin, size) in enumerate(((212, 1_000), (930, 1_000), (1_045, 1_000), (1_765, 1_000))):
            result(recording, at + (12 if number == 0 else begin - 2), at + begin, size=size)

    found = stalled(tmp_path, body)
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(225, rel=0.1)
    assert found.predicted.after_ns.high / 1e3 > 225 + 50  # where the results are still read


def test_what_is_read_before_the_next_launch_stays(tmp_path: Path) -> None:
    """A kernel between two readings: the second is of what it computes, and each has its own work."""

    def body(recording: Recording, at: float) -> None:
        kernel(recording, at, 200)
        result(recording, at + 12, at + 212, size=1_000)
        kernel(recording, at + 1_000, 200)
        result(recording, at + 1_012, at + 1_212, size=1_000)

    found = stalled(tmp_path, body)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(450, rel=0.1)
