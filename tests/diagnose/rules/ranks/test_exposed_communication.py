"""exposed-communication: collectives that no computation hides."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.finding import Alternative, Finding
from foretrace.diagnose.rules.ranks.exposed_communication import exposed_communication
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.loops import H200, findings, launches, loop

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def offers(finding: Finding) -> tuple[Finding | Alternative, ...]:
    """A finding and its other fixes."""
    return (finding, *finding.alternatives)


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


MESSAGE = {"Collective name": "allreduce", "dtype": "Float", "Group size": 2, "Process Group Name": "0"}


def ahead(folder: Path, computing: float, sending: float, *, pause: float = 1) -> Trace:
    """A host far ahead of a GPU that computes, then sends 32 MiB on another stream, and computes on when they are sent."""
    recording = Recording(deviceProperties=[H200])
    step = computing + sending + pause
    for number in range(20):  # the first of them waits for no message
        recording.step(number, 20 * number, 20 * number + 20)
        at, begin = 20 * number, 20 + step * number
        for part in range(10):
            start = begin + part * computing / 10
            recording.launch(at + part / 4, "gemm", start, start + computing / 10 - 0.1, call=0.1)
        sent = {**MESSAGE, "In msg nelems": 8 << 20, "Out msg nelems": 8 << 20}
        start = begin + computing
        recording.launch(at + 5, NCCL, start, start + sending, stream=20, **sent)
    return recording.open(folder)


def first(trace: Trace, step_us: float) -> Finding:
    return diagnose(Case(trace, step_ns=step_us * 1_000), RULES).findings[0]


@pytest.mark.slow
def test_most_of_a_step_exposed_comes_first(tmp_path: Path) -> None:
    """62 % is communication: the 380 µs of computation could hide as much of it, half of which is likely."""
    found = first(ahead(tmp_path, 380, 619), 1_000)
    assert found.rule == "exposed-communication"
    assert found.severity == "medium"
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert "a bound" in found.predicted.basis
    overlap = next(other.predicted for other in offers(found) if other.label == "overlap")
    assert overlap is not None
    assert overlap.speedup.point == pytest.approx(1_000 / 810, rel=0.02)
    assert overlap.speedup.high == pytest.approx(1_000 / 620, rel=0.2)
    assert "hide at most 38 % of the step, an upper bound" in found.says


@pytest.mark.slow
def test_what_could_be_hidden_is_ranked_where_nothing_can_be_replayed(tmp_path: Path) -> None:
    """The computation follows 40 µs after the message: whether it waited for it is not recorded."""
    found = first(ahead(tmp_path, 380, 580, pause=40), 1_000)
    assert found.rule == "exposed-communication"
    assert found.predicted is None
    assert found.severity == "medium"
    assert found.at_best == pytest.approx(0.38, rel=0.01)


def test_gradients_in_bf16_and_faster_links_are_alternatives(tmp_path: Path) -> None:
    """32 MiB in 2 ms are 16.8 GB/s: NVLink at 80 % takes 0.093. Half of what would be saved is likely, of half the bytes too."""
    (found,) = findings(exposed_communication, ahead(tmp_path, 500, 1_999), step_us=2_500)
    fixes = {other.label: other.predicted for other in offers(found)}
    assert set(fixes) == {"overlap", "bf16", "link"}
    speedups = {label: prediction.speedup for label, prediction in fixes.items() if prediction}
    assert speedups["bf16"].point == pytest.approx(2_500 / 2_000, rel=0.02)
    assert speedups["link"].point == pytest.approx(2_500 / (2_500 - 0.5 * 1_906), rel=0.02)
    assert {prediction.verdict for prediction in fixes.values() if prediction} == {"uncertain"}
    assert found.label != "link"  # nobody can just take a faster link


@pytest.mark.slow
def test_many_small_messages_as_a_few_large_ones(tmp_path: Path) -> None:
    """Of 1,600 µs, 1,000 are 100 messages of 4 KiB. As one, they take 10 µs as each did, and 10 more at the large one's speed."""
    recording = Recording(deviceProperties=[H200])
    for number in range(20):
        recording.step(number, 40 * number, 40 * number + 40)
        at, begin = 40 * number, 100 + 1_601 * number
        for part in range(10):
            begin_part = begin + 50 * part
            recording.launch(at + part / 4, "gemm", begin_part, begin_part + 49.9, call=0.1)
        sizes = [(4 << 20, 100.0)] + [(4 << 10, 10.0)] * 100
        start = begin + 500.0
        for part, (size, dur) in enumerate(sizes):
            sent = {**MESSAGE, "In msg nelems": size // 4, "Out msg nelems": size // 4}
            recording.launch(at + 5 + part / 5, NCCL, start, start + dur, call=0.05, stream=20, **sent)
            start += dur
    (found,) = findings(exposed_communication, recording.open(tmp_path), step_us=1_601)
    buckets = next(other for other in offers(found) if other.label == "buckets")
    assert buckets.predicted is not None
    assert "100 small messages a step sent as 1" in buckets.predicted.basis
    assert buckets.predicted.verdict == "uncertain"
    assert buckets.predicted.after_ns.point / 1e3 == pytest.approx(601 + 20, rel=0.03)


def test_collectives_on_threads_of_the_host_are_another_rules(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 10)
        recording.add("user_annotation", "gloo:all_reduce", at + 150, 800, 100, 200)

    assert findings(exposed_communication, loop(tmp_path, 1_000, body), step_us=1_000) == []


def test_messages_on_several_streams(tmp_path: Path) -> None:
    """Of two streams only one is waited for: its 700 of 1,000 µs of messages are most of them."""
    recording = Recording(deviceProperties=[H200])
    for number in range(20):
        recording.step(number, 20 * number, 20 * number + 20)
        at, begin = 20 * number, 20 + 1_201 * number
        for part in range(10):
            recording.launch(at + part / 4, "gemm", begin + 50 * part, begin + 50 * part + 49.9, call=0.1)
        recording.launch(at + 5, NCCL, begin + 500, begin + 800, stream=21)
        recording.launch(at + 7, NCCL, begin + 500, begin + 1_200, stream=20)
    (found,) = findings(exposed_communication, recording.open(tmp_path), step_us=1_201)
    assert found.evidence["exposed_ns"] == pytest.approx(700_000, rel=0.01)
    assert found.predicted is not None
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1_201 - 250, rel=0.05)
