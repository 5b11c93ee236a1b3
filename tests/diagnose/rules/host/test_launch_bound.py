"""launch-bound: steps that follow the host, and what a CUDA graph of them would be worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.host.launch_bound import launch_bound
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop


def test_small_kernels_behind_a_slow_host(tmp_path: Path) -> None:
    """100 kernels of 1 µs, launched every 10 µs; as a graph they take 1 µs and 0.15 µs between them."""
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    (found,) = findings(launch_bound, trace, step_us=1_000)
    assert found.evidence["launches_per_step_count"] == 100
    assert found.evidence["busy_ns"] == 100_000
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.speedup.point == pytest.approx(1_000 / 115, rel=0.03)
    assert found.where[0].function == "aten::add"


def test_its_fix_is_a_graph_by_hand_and_the_compilers_way_is_another_finding(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    (found,) = findings(launch_bound, trace, step_us=1_000)
    assert "torch.cuda.graph" in found.fix.code
    assert "make_graphed_callables" in found.fix.code
    assert "# check:" in found.fix.code
    assert "torch.compile" not in found.fix.code
    assert "unfused-elementwise" in found.fix.says


def test_a_graph_of_two_kernels_still_costs_its_launch(tmp_path: Path) -> None:
    trace = loop(tmp_path, 30, lambda recording, at: launches(recording, at, 2, every=15))
    (found,) = findings(launch_bound, trace, step_us=30)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(2, rel=0.05)


def test_a_busy_gpu_is_not_launch_bound(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100, dur=9.9))
    assert findings(launch_bound, trace, step_us=1_000) == []


def waits(recording: Recording, at: float, pieces: int, each: int, op: str = "aten::item") -> None:
    """Pieces of launches, 10 µs each, with a wait of 10 µs for a value between them."""
    for number in range(pieces):
        start = at + number * (each + 1) * 10
        launches(recording, start, each)
        if number + 1 < pieces:
            end = start + each * 10
            recording.op(op, end, end + 10).runtime("cudaStreamSynchronize", end + 5, end + 9)


def test_a_graph_for_each_piece_between_waits_is_not_promised(tmp_path: Path) -> None:
    """Two pieces of 49 kernels: 98 · 1.15 µs, of two launches of 15 µs one is not hidden; the wait stays."""
    trace = loop(tmp_path, 990, lambda recording, at: waits(recording, at, 2, 49))
    (found,) = findings(launch_bound, trace, step_us=990)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.speedup.point == pytest.approx(990 / (98 * 1.15 + 15 + 9), rel=0.05)
    assert found.predicted.speedup.low <= 1
    assert "Not promised: the host waits for the device within the step" in found.predicted.basis


def test_short_pieces_between_waits_stand_against_capturing(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_090, lambda recording, at: waits(recording, at, 10, 10))
    (found,) = findings(launch_bound, trace, step_us=1_090)
    assert found.change is None
    assert "waits for the device" in found.says


def test_a_wait_for_the_size_of_a_result_stands_against_capturing(tmp_path: Path) -> None:
    trace = loop(tmp_path, 990, lambda recording, at: waits(recording, at, 2, 49, "aten::nonzero"))
    (found,) = findings(launch_bound, trace, step_us=990)
    assert found.change is None
    assert "how large a result is" in found.says


def test_a_sync_behind_all_launches_stays_outside_the_graph(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 99)
        recording.runtime("cudaStreamSynchronize", at + 990, at + 995)

    (found,) = findings(launch_bound, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.predicted is not None
    # 99 · 1.15 µs on the device; the launch of 15 µs and the wait are no longer hidden
    assert found.predicted.speedup.point == pytest.approx(1_000 / (99 * 1.15 + 15 + 5), rel=0.05)


def test_of_changing_shapes_nothing_is_promised(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 100, grid=[1 + int(at), 1, 1])

    (found,) = findings(launch_bound, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert "same shapes" in found.predicted.basis


def test_one_step_that_does_more_does_not_stand_against_it(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 100 if at else 98)

    (found,) = findings(launch_bound, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"


def test_data_loading_is_not_captured(tmp_path: Path) -> None:
    """Half of the step is the loader's: only the other half can go."""

    def body(recording: Recording, at: float) -> None:
        recording.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 500)
        launches(recording, at + 500, 50)

    (found,) = findings(launch_bound, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.speedup.point < 2


def test_a_loop_before_training_is_captured_by_itself(tmp_path: Path) -> None:
    """500 µs of a loop become its 50 kernels, beside which the host goes on; forward and backward, 300 µs, stay."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 50)
        for number, name in enumerate(("aten::mm", "autograd::engine::evaluate_function: MmBackward0") * 15):
            start = at + 500 + number * 10
            recording.op(f"{name}", start, start + 10, **{"Fwd thread id": number % 2})
            recording.launch(start + 8, "gemm", start + 10, start + 11, call=1.5, grid=[132, 1, 1])

    (found,) = findings(launch_bound, loop(tmp_path, 800, body), step_us=800)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(800 / 315, rel=0.05)
    assert found.predicted.speedup.high > 800 / (80 * 1.15 + 15)
