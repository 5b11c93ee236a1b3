"""host-sync: waits for the device that pay when removed, and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.finding import Finding, Place
from foretrace.diagnose.rules.host.host_sync import host_sync
from tests.builders import Recording
from tests.diagnose.loops import findings, item, launches, loop


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
    assert found.where[0] == Place("train.py", None, "step", lines=(12, None))
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


def test_a_value_that_is_logged_is_kept_on_the_device(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.launch(at, "gemm", at + 5, at + 998)
        item(recording, at + 900, at + 1_000)

    (found,) = findings(host_sync, loop(tmp_path, 1_000, body), step_us=1_000)
    assert "total += loss.detach()" in found.fix.code


def test_a_bare_synchronize_is_left_out(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.launch(at, "gemm", at + 5, at + 990)
        recording.runtime("cudaDeviceSynchronize", at + 100, at + 992)

    (found,) = findings(host_sync, loop(tmp_path, 1_000, body), step_us=1_000)
    assert ".item()" not in found.fix.code
    assert "synchronize" in found.fix.code


def hidden_wait(folder: Path, steps: int) -> list[Finding]:
    """90 launches in 900 µs whose kernels take 9.5 µs each; so many of the three steps then wait, for 10 µs."""

    def body(recording: Recording, at: float) -> None:
        for number in range(90):
            start = at + 10 * number
            recording.op("aten::add", start, start + 10)
            recording.launch(start + 5, "add_kernel", start + 8, start + 17.5, call=2)
        if at < 1_000 * steps:
            item(recording, at + 900, at + 910)

    return findings(host_sync, loop(folder, 1_000, body))


def test_a_wait_that_recording_hides_is_found(tmp_path: Path) -> None:
    """The slow host of the recording waits 10 of 1,000 µs, 1 %. Without a profiler it has launched all after about half of
    that, while the device still takes its 900: it waits for hundreds."""
    (found,) = hidden_wait(tmp_path, 3)
    assert found.evidence["wait_pct"] == pytest.approx(1, rel=0.05)
    assert "without a profiler" in found.says


def test_a_short_wait_now_and_then_is_no_fault(tmp_path: Path) -> None:
    assert hidden_wait(tmp_path, 1) == []


def reading(
    recording: Recording, at: float, end: float, *, op: str = "aten::to", dtype: str = "long int"
) -> None:
    """An operator that brings values of some type to the host, and waits all the time."""
    recording.op(op, at, end, **{"Input type": [dtype, ""]}).runtime("cudaStreamSynchronize", at + 1, end - 1)


def exchange(recording: Recording, at: float) -> None:
    """all_to_all_single with sizes of its own for each rank."""
    inputs = ["", "", "", "", "[3, 5]", "[4, 4]", "-1"]
    recording.op("c10d::alltoall_base_", at, at + 10, **{"Concrete Inputs": inputs})
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    recording.launch(at + 2, name, at + 5, at + 8, stream=20)


@pytest.mark.slow
def test_split_sizes_of_a_collective_are_not_promised_away(tmp_path: Path) -> None:
    """The same wait with and without an exchange behind it: only without one is its worth promised."""

    def body(recording: Recording, at: float, *, exchanges: bool) -> None:
        recording.launch(at + 5, "gemm", at + 10, at + 1_000, call=2)
        reading(recording, at + 10, at + 1_002)
        if exchanges:
            exchange(recording, at + 1_003)
        launches(recording, at + 1_020, 48)

    verdicts = {}
    for exchanges in (False, True):
        trace = loop(tmp_path, 1_504, lambda recording, at, on=exchanges: body(recording, at, exchanges=on))  # type: ignore[misc]
        (found,) = findings(host_sync, trace, step_us=1_504)
        assert found.predicted is not None
        verdicts[exchanges] = found.predicted.verdict
    assert verdicts == {False: "gain", True: "uncertain"}
    assert (
        "1 of the waits a step are needed: the host reads how a collective (all_to_all) splits" in found.why
    )
    assert found.predicted
    assert "Not promised: the host reads how a collective" in found.predicted.basis


def test_other_waits_of_a_program_that_exchanges_are_promised(tmp_path: Path) -> None:
    """A loss is read as well: that wait goes, the one for the split sizes stays.

    Then the 49 launches run beside the second product, and their kernels of 1 µs, 1 µs apart, follow it at 1,000 µs.
    """

    def body(recording: Recording, at: float) -> None:
        recording.launch(at + 5, "gemm", at + 10, at + 400, call=2)
        reading(recording, at + 10, at + 402)
        exchange(recording, at + 403)
        recording.launch(at + 415, "gemm", at + 420, at + 1_000, call=2)
        reading(recording, at + 420, at + 1_002, op="aten::item", dtype="float")
        launches(recording, at + 1_010, 49)

    (found,) = findings(host_sync, loop(tmp_path, 1_504, body), step_us=1_504)
    assert found.evidence["calls_per_step_count"] == 2
    assert "1 of the waits a step are needed" in found.why
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_098, rel=0.02)


@pytest.mark.parametrize(
    ("op", "dtype", "trains", "verdict"),
    [
        ("aten::to", "float", False, "uncertain"),  # .cpu() of the result
        ("aten::item", "long int", False, "uncertain"),  # the class that was found
        ("aten::item", "float", False, "gain"),  # a measure, which can be summed on the device
        ("aten::to", "float", True, "gain"),
    ],
)
def test_the_result_of_inference_is_not_promised_away(
    tmp_path: Path, op: str, dtype: str, trains: bool, verdict: str
) -> None:
    """The step ends with the wait; without it the host would launch the next one beside the kernel."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 50)
        if trains:
            recording.op("AddBackward0", at + 500, at + 505, **{"Fwd thread id": 1, "Sequence number": 1})
        recording.launch(at + 505, "gemm", at + 510, at + 1_490, call=2)
        reading(recording, at + 510, at + 1_492, op=op, dtype=dtype)

    (found,) = findings(host_sync, loop(tmp_path, 1_504, body), step_us=1_504)
    assert found.predicted is not None
    assert found.predicted.speedup.point > 1.2
    assert found.predicted.verdict == verdict
    assert ("brings the result, which the program returns" in found.why) == (verdict == "uncertain")


@pytest.mark.slow
def test_tokens_that_a_loop_reads_are_not_promised_away(tmp_path: Path) -> None:
    """Four tokens a step, each chosen by argmax and read; what is read otherwise could go."""

    def body(recording: Recording, at: float, *, chooses: bool) -> None:
        for token in range(4):
            begin = at + 400 * token
            recording.launch(begin + 5, "gemm", begin + 10, begin + 200, call=2)
            recording.op("aten::argmax" if chooses else "aten::sum", begin + 20, begin + 30)
            reading(recording, begin + 30, begin + 202, op="aten::item")
            launches(recording, begin + 210, 18)

    for chooses, verdict in ((True, "uncertain"), (False, "gain")):
        trace = loop(tmp_path, 1_600, lambda recording, at, on=chooses: body(recording, at, chooses=on))  # type: ignore[misc]
        (found,) = findings(host_sync, trace, step_us=1_600)
        assert found.predicted is not None
        assert found.predicted.verdict == verdict
        assert ("chosen right before by argmax" in found.why) == chooses
