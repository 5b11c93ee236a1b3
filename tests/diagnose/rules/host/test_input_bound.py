"""input-bound: waits for a DataLoader, and what workers would be worth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace.diagnose.rules.host.input_bound import input_bound
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def waiting(name: str, wait: float) -> Callable[[Recording, float], None]:
    def body(recording: Recording, at: float) -> None:
        recording.annotation(name, at, at + wait)
        launches(recording, at + wait, 20)

    return body


def test_loading_in_the_main_process_hides_behind_the_rest(tmp_path: Path) -> None:
    """8 ms of loading before 0.2 ms of work: six workers deliver every 1.33 ms."""
    trace = loop(tmp_path, 8_200, waiting(SINGLE, 8_000))
    (found,) = findings(input_bound, trace, step_us=8_200)
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.speedup.point == pytest.approx(6, rel=0.06)
    assert found.predicted.speedup.low < 4.1
    assert found.predicted.speedup.high > 11
    assert found.evidence["loader"] == "in the main process"
    assert "6 workers (4 to 12)" in found.predicted.basis


def test_operators_of_the_loader_have_one_core_in_a_worker(tmp_path: Path) -> None:
    """All of the loading is in torch's operators: taken to be twice as slow in a worker."""

    def body(recording: Recording, at: float) -> None:
        recording.annotation(SINGLE, at, at + 8_000)
        recording.op("aten::avg_pool2d", at, at + 8_000)
        launches(recording, at + 8_000, 20)

    (found,) = findings(input_bound, loop(tmp_path, 8_200, body), step_us=8_200)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(3, rel=0.06)


def test_more_workers_are_never_promised(tmp_path: Path) -> None:
    (found,) = findings(input_bound, loop(tmp_path, 1_200, waiting(WORKERS, 1_000)), step_us=1_200)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert found.evidence["loader"] == "by workers"


def test_a_quick_loader_is_no_finding(tmp_path: Path) -> None:
    assert findings(input_bound, loop(tmp_path, 208, waiting(WORKERS, 8)), step_us=208) == []


def test_workers_of_another_loader_are_workers(tmp_path: Path) -> None:
    """torchdata's StatefulDataLoader names its iterators in its own way."""
    name = "enumerate(DataLoader)#_StatefulMultiProcessingDataLoaderIter.__next__"
    (found,) = findings(input_bound, loop(tmp_path, 1_200, waiting(name, 1_000)), step_us=1_200)
    assert found.evidence["loader"] == "by workers"


def test_workers_that_are_waited_for_set_the_pace(tmp_path: Path) -> None:
    """A batch comes every 1,200 µs, and 200 µs of that are work: twice the workers bring one every 600 µs."""
    (found,) = findings(input_bound, loop(tmp_path, 1_200, waiting(WORKERS, 1_000)), step_us=1_200)
    assert found.predicted is not None
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(600, rel=0.02)


def copied(recording: Recording, at: float, size: int = 1 << 20) -> None:
    recording.op("aten::to", at, at + 10)
    name = "Memcpy HtoD (Pinned -> Device)"
    recording.launch(at + 2, name, at + 6, at + 10, category="gpu_memcpy", call=3, bytes=size)


def augmented(recording: Recording, at: float) -> None:
    """Forty operators of 190 µs on the host, a copy, and 20 launches."""
    for number in range(40):
        recording.op("aten::flip", at + 200 * number, at + 190 + 200 * number)
    copied(recording, at + 7_990)
    launches(recording, at + 8_000, 20)


def test_operators_right_before_a_copy_are_loading(tmp_path: Path) -> None:
    """8 ms of augmentation without a loader: twice as slow in a worker, six of them bring a batch every 2.6 ms."""
    (found,) = findings(input_bound, loop(tmp_path, 8_200, augmented), step_us=8_200)
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(7_990 * 1.95 / 6, rel=0.05)
    assert found.evidence["loader"] == "in the step"
    assert found.evidence["operators_pct"] == pytest.approx(95, rel=0.02)


def test_input_that_may_depend_on_results_is_not_promised(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        augmented(recording, at)
        name = "Memcpy DtoH (Device -> Pinned)"
        recording.launch(at + 8_210, name, at + 8_215, at + 8_220, category="gpu_memcpy", call=3, bytes=4096)

    (found,) = findings(input_bound, loop(tmp_path, 8_250, body), step_us=8_250)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"


def test_python_in_a_thread_runs_only_while_the_host_waits(tmp_path: Path) -> None:
    """3 ms of Python, then a kernel of 2 ms that is waited for: workers leave the kernel, a thread 3 ms and the launches."""

    def body(recording: Recording, at: float) -> None:
        copied(recording, at + 3_000)
        recording.op("aten::mm", at + 3_010, at + 3_020)
        recording.launch(at + 3_012, "gemm", at + 3_020, at + 5_020, call=3)
        recording.runtime("cudaStreamSynchronize", at + 3_030, at + 5_025)

    (found,) = findings(input_bound, loop(tmp_path, 5_030, body), step_us=5_030)
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(2_030, rel=0.03)
    assert found.predicted.after_ns.high / 1e3 > 3_000


def test_python_of_a_host_that_never_waits_gains_nothing_in_a_thread(tmp_path: Path) -> None:
    """3 ms of Python and 200 launches of 10 µs: workers bring an input every 0.5 ms, a thread is no faster than the step."""

    def body(recording: Recording, at: float) -> None:
        copied(recording, at + 3_000)
        launches(recording, at + 3_010, 200)

    (found,) = findings(input_bound, loop(tmp_path, 5_030, body), step_us=5_030)
    assert found.predicted is not None
    assert found.predicted.after_ns.point < 2_010_000
    assert found.predicted.speedup.low < 1
    assert found.predicted.verdict == "uncertain"


def test_work_on_results_of_the_step_is_no_input(tmp_path: Path) -> None:
    """Gradients come to the host, are applied there, and weights go back: that cannot be done ahead."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::to", at, at + 20)
        name = "Memcpy DtoH (Device -> Pinned)"
        recording.launch(at + 2, name, at + 6, at + 12, category="gpu_memcpy", call=3, bytes=1 << 20)
        for number in range(10):
            recording.op("aten::addcdiv_", at + 30 + 200 * number, at + 220 + 200 * number)
        copied(recording, at + 2_050)
        launches(recording, at + 2_070, 20)

    assert findings(input_bound, loop(tmp_path, 2_300, body), step_us=2_300) == []
