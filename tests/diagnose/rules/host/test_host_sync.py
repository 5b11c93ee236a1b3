"""host-sync: waits for the device that pay when removed, and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording

from foretrace.diagnose.finding import Finding, Place
from foretrace.diagnose.rules.host.host_sync import host_sync
from tests.diagnose.loops import findings, launches, loop


def item(recording: Recording, at: float, end: float) -> None:
    recording.op("aten::item", at, end).op("aten::_local_scalar_dense", at, end)
    recording.runtime("cudaStreamSynchronize", at, end)


def test_a_wait_that_keeps_the_host_from_launching(tmp_path: Path) -> None:
    """A kernel of 1 ms is waited for, then 0.5 ms of launching follows, which could run beside it."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::mm", at, at + 10)
        recording.launch(at + 5, "gemm", at + 10, at + 1_000, call=2)
        item(recording, at + 10, at + 1_002)
        launches(recording, at + 1_002, 50)

    (found,) = findings(host_sync, loop(tmp_path, 1_504, body), step_us=1_504)
    assert found.evidence["op"] == "aten::item"
    assert found.evidence["calls_per_step_count"] == 1
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.speedup.point == pytest.approx(1_504 / 1_050, rel=0.05)
    assert found.where == (Place(None, None, "aten::item"),)


def test_a_wait_of_a_host_that_is_slower_anyway_gains_nothing(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        for part in range(10):
            launches(recording, at + part * 100, 9)
            item(recording, at + part * 100 + 90, at + part * 100 + 96)

    (found,) = findings(host_sync, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.verdict != "gain"
    assert found.evidence["calls_per_step_count"] == 10


def test_the_line_is_the_programs_own(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.python("train.py(12): step", at, at + 1_000)
        recording.python("torch/_tensor.py(40): wrapped", at + 900, at + 1_000)
        recording.launch(at, "gemm", at + 5, at + 998)
        item(recording, at + 900, at + 1_000)

    (found,) = findings(host_sync, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.where[0] == Place("train.py", 12, "step")
    (tmp_path / "train.py").write_text("\n" * 11 + "def step(loss):\n    x = loss * 2\n    return x.item()\n")
    (found,) = findings(host_sync, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.where[0] == Place("train.py", 14, "step")


def test_no_wait_no_finding(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(host_sync, trace, step_us=1_000) == []


def test_waits_for_the_size_of_a_result_promise_nothing(tmp_path: Path) -> None:
    """The same loop as the first, but the wait is inside nonzero: what follows may have more rows without it."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::mm", at, at + 10)
        recording.launch(at + 5, "gemm", at + 10, at + 1_000, call=2)
        recording.op("aten::index", at + 10, at + 1_002).op("aten::nonzero", at + 10, at + 1_002)
        recording.runtime("cudaStreamSynchronize", at + 10, at + 1_002)
        launches(recording, at + 1_002, 50)

    (found,) = findings(host_sync, loop(tmp_path, 1_504, body), step_us=1_504)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.speedup.low <= 1.0
    assert "Not promised: what follows has as many rows as the values decide" in found.predicted.basis


def test_the_work_around_a_wait_stays(tmp_path: Path) -> None:
    """A check inside torch.linalg.inv waits for its 1 ms of kernels; without the check these still run.

    Unrecorded, the ten launches after it take 50 us, not 100.
    """

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::linalg_inv", at, at + 1_010)
        recording.launch(at + 5, "lu", at + 10, at + 1_000, call=2)
        recording.op("aten::_linalg_check_errors", at + 10, at + 1_004)
        item(recording, at + 10, at + 1_004)
        launches(recording, at + 1_010, 10)

    (found,) = findings(host_sync, loop(tmp_path, 1_112, body), step_us=1_062)
    assert found.evidence["op"] == "aten::item"
    assert found.predicted is not None
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_000, rel=0.05)


def test_a_bare_synchronize_needs_nothing_in_its_place(tmp_path: Path) -> None:
    """Ten times 90 µs of launches and a wait of 10: 900 µs are left."""

    def body(recording: Recording, at: float) -> None:
        for part in range(10):
            launches(recording, at + part * 100, 9)
            recording.runtime("cudaDeviceSynchronize", at + part * 100 + 90, at + part * 100 + 100)

    (found,) = findings(host_sync, loop(tmp_path, 1_000, body), step_us=1_000)
    assert found.predicted is not None
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(900, rel=0.03)
    assert found.predicted.speedup.low > 0.9


def to_host(recording: Recording, at: float, rows: int) -> None:
    """A tensor of 1,000 elements copied to the host, sorted there for 5 ms with so many rows, and copied back."""
    recording.op("aten::to", at, at + 30, **{"Input Dims": [[1000], []]})
    name = "Memcpy DtoH (Device -> Pageable)"
    recording.launch(at + 10, name, at + 15, at + 20, category="gpu_memcpy", call=12, bytes=4000)
    recording.op("aten::sort", at + 40, at + 5_040, **{"Input Dims": [[rows], []]})
    recording.op("aten::to", at + 5_050, at + 5_080, **{"Input Dims": [[1000], []]})
    name = "Memcpy HtoD (Pageable -> Device)"
    recording.launch(at + 5_060, name, at + 5_065, at + 5_066, category="gpu_memcpy", call=4, bytes=4000)


def sorting(folder: Path, rows: int) -> list[Finding]:
    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 90)
        to_host(recording, at + 900, rows)
        recording.op("aten::add", at + 5_990, at + 6_000)

    return findings(host_sync, loop(folder, 6_000, body), step_us=6_000)


def test_work_on_the_host_with_what_was_copied_goes_too(tmp_path: Path) -> None:
    """5 of 6 ms go with the sort of what was copied; the rest, 1 ms of launching as recorded, is 1.8 times as fast without."""
    (found,) = sorting(tmp_path, 1_000)
    assert found.evidence["host_work_ns"] == 5_000_000
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert 500 < found.predicted.after_ns.point / 1e3 < 700


def test_other_work_of_the_host_behind_a_copy_stays(tmp_path: Path) -> None:
    assert sorting(tmp_path, 77) == []  # the copy alone is nothing


def test_a_check_for_nan_goes_with_the_operators_that_make_it(tmp_path: Path) -> None:
    """Of 300 µs, isnan, any and the read take 120; one launch of 10 takes their place."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 18)
        for number, name in enumerate(("aten::isnan", "aten::any")):
            start = at + 180 + 40 * number
            recording.op(name, start, start + 40)
            recording.launch(start + 30, name, start + 40, start + 78, call=2)
        item(recording, at + 260, at + 300)

    (found,) = findings(host_sync, loop(tmp_path, 300, body), step_us=300)
    assert found.predicted is not None
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(190, rel=0.05)


def passes(recording: Recording, at: float, first: str) -> None:
    """20 passes of 50 µs: a kernel, a wait of 30 µs for it, another kernel; then 50 launches of 10 µs."""
    for number in range(20):
        start = at + number * 50
        for name, begin, dur in ((first, start, 28), ("aten::sum", start + 40, 1)):
            recording.op(name, begin, begin + 10, **{"Input Dims": [[100, 16]], "Input type": ["float"]})
            few = {"blocks per SM": 0.01, "warps per SM": 0.1}
            recording.launch(begin + 8, name, begin + 10, begin + 10 + dur, call=1.5, **few)
        item(recording, start + 10, start + 40)
    launches(recording, at + 1_000, 50)


def test_a_loop_over_pieces_is_done_at_once(tmp_path: Path) -> None:
    """One pass of two kernels and a launch in the place of the wait stays of twenty: 30 µs before the 500."""
    trace = loop(tmp_path, 1_500, lambda recording, at: passes(recording, at, "aten::eq"))
    (found,) = findings(host_sync, trace, step_us=1_500)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(1_500 / 530, rel=0.05)
    assert found.predicted.speedup.low < 1_500 / 1_100  # one launch of 10 µs for each wait
    assert "loops that wait in each pass done for all at once" in found.predicted.basis


def test_a_loop_that_goes_on_with_what_it_made_keeps_its_passes(tmp_path: Path) -> None:
    """Nothing is picked and all passes have the same shapes: only the waits go, 20 µs each."""
    trace = loop(tmp_path, 1_500, lambda recording, at: passes(recording, at, "aten::mul"))
    (found,) = findings(host_sync, trace, step_us=1_500)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(1_500 / 1_100, rel=0.05)


def test_a_loop_with_products_keeps_its_passes(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        for number in range(20):
            recording.op("aten::select", at + number * 50, at + number * 50 + 1)
        passes(recording, at, "aten::mm")

    (found,) = findings(host_sync, loop(tmp_path, 1_500, body), step_us=1_500)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(1_500 / 1_100, rel=0.05)


def experts(recording: Recording, at: float, stacked: int) -> None:
    """Two layers of eight experts: nonzero with a wait of 20 µs, rows, a product with a slice, index_add_; 100 launches."""
    few = {"blocks per SM": 0.01, "warps per SM": 0.1}
    for number in range(16):
        start = at + number * 50 + (100 if number >= 8 else 0)
        recording.op("aten::nonzero", start, start + 20, **{"Input Dims": [[64]], "Input type": ["float"]})
        recording.launch(start + 2, "nonzero", start + 4, start + 18, call=1.5, **few)
        recording.runtime("cudaStreamSynchronize", start + 5, start + 20)
        recording.op("aten::select", start + 20, start + 22, **{"Input Dims": [[stacked, 16, 32], [], []]})
        for name, begin, dims in (
            ("index", start + 22, [[64, 16], [4]]),
            ("mm", start + 31, [[4, 16], [16, 32]]),
            ("index_add_", start + 40, [[64, 32], [], [4], [4, 32], []]),
        ):
            recording.op(
                f"aten::{name}",
                begin,
                begin + 9,
                **{"Input Dims": dims, "Input type": ["float"] * len(dims)},
            )
            recording.launch(begin + 7, name, begin + 9, begin + 10, call=1.5, **few)
    launches(recording, at + 400, 10)
    launches(recording, at + 900, 90)


@pytest.mark.parametrize(("stacked", "left"), [(8, 2 * (10 + 30)), (5, 16 * (10 + 30))])
def test_experts_whose_weights_lie_together_are_a_batched_product(
    tmp_path: Path, stacked: int, left: float
) -> None:
    """Of 800 µs of experts one pass a layer stays, with a launch of 10 µs for the wait; else each, with as much."""
    trace = loop(tmp_path, 1_800, lambda recording, at: experts(recording, at, stacked))
    (found,) = findings(host_sync, trace, step_us=1_800)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"  # the values decide how many rows there are
    assert found.predicted.speedup.point == pytest.approx(1_800 / (1_000 + left), rel=0.05)
    assert ("batched products" in found.predicted.basis) == (stacked == 8)
    assert found.predicted.speedup.low <= 1.0


def anomalies(recording: Recording, at: float) -> None:
    """Ten operators that take 100 µs, 90 of them before they launch; ten functions of 20 µs, each checked for 60 µs."""
    for number in range(10):
        start, told = at + number * 100, {"Sequence number": 10_000 * round(at) + number}
        recording.op("aten::gelu", start, start + 100, **told, **{"Fwd thread id": 0})
        recording.launch(start + 95, "gelu", start + 100, start + 101, call=4)
    for number in reversed(range(10)):
        start, told = at + 1_000 + (9 - number) * 80, {"Sequence number": 10_000 * round(at) + number}
        function = "autograd::engine::evaluate_function: GeluBackward0"
        recording.op(function, start, start + 80, **told, **{"Fwd thread id": 1})
        recording.op("GeluBackward0", start, start + 20, **told, **{"Fwd thread id": 1})
        recording.launch(start + 12, "gelu_backward", start + 20, start + 21, call=4)
        for name, begin, end in (("isnan", 20, 40), ("_is_any_true", 40, 60), ("item", 60, 80)):
            recording.op(f"aten::{name}", start + begin, start + end)
            if name != "item":
                recording.launch(start + begin + 10, name, start + end, start + end + 1, call=4)
        recording.runtime("cudaStreamSynchronize", start + 65, start + 78)


def test_anomaly_detection_left_on(tmp_path: Path) -> None:
    """Without checks the backward takes 200 µs; forward operators begin as soon as others: 10 and not 95 µs."""
    (found,) = findings(host_sync, loop(tmp_path, 1_800, anomalies), step_us=1_800)
    assert "anomaly detection is on" in found.says
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.speedup.point == pytest.approx(1_800 / (10 * 15 + 10 * 20), rel=0.1)
