"""Recordings that cannot have happened: each breaks one rule of a whole recording, and the note of that rule says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace.analyze.concepts.trust.evidence import Note
from foretrace.analyze.trust import judge
from tests.builders import Recording

STEP = 1_000.0


def sound(count: int = 3) -> Recording:
    """Steps of ten operators, each of which launches a kernel of 50 µs that runs at once."""
    recording = Recording().add("Trace", "PyTorch Profiler (0)", 0, count * STEP, "Spans", "PyTorch Profiler")
    for number in range(count):
        begin = number * STEP
        recording.step(number, begin, begin + STEP)
        for call in range(10):
            at, number_of_op = begin + 100 * call, 10 * number + call
            recording.op("aten::mm", at + 1, at + 30, **{"External id": number_of_op + 1})
            recording.launch(at + 10, "gemm", at + 20, at + 70, call=5, **{"External id": number_of_op + 1})
    return recording


def changed(recording: Recording, category: str, **times: Callable[[float], float]) -> Recording:
    for event in recording.events:
        if event["cat"] == category:
            event.update({name: change(event[name]) for name, change in times.items()})
    return recording


def without_half(recording: Recording) -> Recording:
    """Every other launch call was filtered out."""
    calls = [event for event in recording.events if event["cat"] == "cuda_runtime"][::2]
    recording.events = [event for event in recording.events if event not in calls]
    return recording


def copied(recording: Recording) -> Recording:
    """Three copy calls, one of which has its copy."""
    for number in range(3):
        recording.runtime("cudaMemcpyAsync", 2_975 + 5 * number, 2_979 + 5 * number, correlation=900 + number)
    return recording.copy("Memcpy DtoH (Device -> Pinned)", 2_980, 2_990, correlation=900)


def late(recording: Recording) -> Recording:
    """The clock jumps by a minute before the last step."""
    for event in recording.events:
        if event["ts"] >= 2 * STEP:
            event["ts"] += 60e6
    return recording


def short_wait(recording: Recording) -> Recording:
    return recording.runtime("cudaDeviceSynchronize", 2_916, 2_918).launch(
        2_912, "long", 2_975, 2_999, call=2
    )


def spread_out(recording: Recording) -> Recording:
    """Kernels of one microsecond, launched long ago, 100 µs apart."""
    changed(recording, "kernel", dur=lambda _: 1.0)
    for place, event in enumerate(event for event in recording.events if event["cat"] == "cuda_runtime"):
        event.update(ts=2.0 + place / 4, dur=0.2)
    recording.events = [event for event in recording.events if event["cat"] != "cpu_op"]
    return recording


def delayed(recording: Recording, by: float) -> Recording:
    """The fourth kernel of the second step begins later."""
    [event for event in recording.events if event["cat"] == "kernel"][13]["ts"] += by
    return recording


def notes(recording: Recording, folder: Path) -> dict[str, Note]:
    return {note.code: note for note in judge(recording.open(folder)).notes}


CODES = {
    "launches-missing", "copies-lost", "events-outside", "calls-overlap", "waits-too-short", "idle-while-queued", "steps-apart",
    "impossible-durations", "work-out-of-order",
}  # fmt: skip


def test_a_sound_recording_breaks_no_rule(tmp_path: Path) -> None:
    assert not CODES & set(notes(sound(), tmp_path))


@pytest.mark.parametrize(
    ("damaged", "code", "share_pct"),
    [
        pytest.param(lambda: without_half(sound()), "launches-missing", 50, id="half of the launches gone"),
        pytest.param(lambda: copied(sound()), "copies-lost", 100 * 2 / 3, id="two of three copies gone"),
        pytest.param(lambda: changed(sound(), "kernel", dur=lambda _: 0.0), "impossible-durations", 100, id="kernels of zero"),
        pytest.param(lambda: changed(sound(), "kernel", dur=lambda dur: -dur), "impossible-durations", 100, id="negative kernels"),
        pytest.param(lambda: changed(sound(), "cuda_runtime", dur=lambda _: 0.0), "impossible-durations", 100, id="calls of zero"),
        pytest.param(lambda: changed(sound(), "cpu_op", dur=lambda _: 0.0), "impossible-durations", 100, id="operators of zero"),
        # Of 60 operators and calls, 30 outlast the recording.
        pytest.param(lambda: changed(sound(), "cpu_op", dur=lambda dur: 1e5 * dur), "events-outside", 50, id="operators times 1e5"),
        # The last step, which begins late and ends behind the recording.
        pytest.param(lambda: late(sound()), "steps-apart", 200 / 3, id="the clock jumps between steps"),
        # Of 61 operators and calls one begins in an operator, behind its launch, and lasts for half a millisecond of three.
        pytest.param(
            lambda: sound().runtime("cudaEventRecord", 1_020, 1_520), "calls-overlap", 100 / 6, id="a call that outlasts its operator"
        ),
        # Every launch begins behind its operator, which ends after 0.29 µs.
        pytest.param(
            lambda: changed(sound(), "cpu_op", dur=lambda dur: dur / 100), "calls-overlap", 100, id="operators too short"
        ),
        pytest.param(lambda: short_wait(sound()), "waits-too-short", 100, id="a wait that ends before the work"),
        # The 14th of 30 kernels begins at 2,970 µs, when all of the 16 that were launched after it have begun.
        pytest.param(lambda: delayed(sound(), 1_650), "work-out-of-order", 100 * 16 / 30, id="a kernel begins last"),
        # 99 of 100 µs, less 8 for the way to the GPU.
        pytest.param(lambda: spread_out(sound()), "idle-while-queued", 96, id="queued kernels do not run"),
    ],
)  # fmt: skip
def test_what_cannot_have_happened_is_named(
    tmp_path: Path, damaged: Callable[[], Recording], code: str, share_pct: float
) -> None:
    found = notes(damaged(), tmp_path)
    assert found[code].severity in ("care", "no")
    assert found[code].values["share_pct"] == pytest.approx(share_pct, abs=4)


def test_a_clock_that_jumps_leaves_events_outside(tmp_path: Path) -> None:
    """A third of the events lie a minute behind a recording of 3 ms."""
    found = notes(late(sound()), tmp_path)["events-outside"]
    assert "60.0 s" in found.says
    assert found.values["share_pct"] == pytest.approx(100 / 3)


def test_launches_of_two_threads_at_once_have_no_order(tmp_path: Path) -> None:
    """Both calls take 50 µs at the same time: either may reach the stream first."""
    recording = sound()
    recording.launch(2_910, "second", 2_985, 2_990, call=50)
    recording.launch(2_915, "first", 2_975, 2_980, call=50, thread=101)
    assert "work-out-of-order" not in notes(recording, tmp_path)


def test_memory_filled_with_zero_bytes_is_no_lost_copy(tmp_path: Path) -> None:
    recording = sound().runtime("cudaMemsetAsync", 2_975, 2_978, correlation=900)
    assert "copies-lost" not in notes(recording, tmp_path)


def test_requested_stacks_that_are_missing_limit_conclusions(tmp_path: Path) -> None:
    recording = sound()
    assert notes(recording, tmp_path)["no-stacks"].severity == "info"
    recording.header["with_stack"] = 1
    assert notes(recording, tmp_path)["no-stacks"].severity == "care"
