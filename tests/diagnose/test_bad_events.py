"""Events that a reader lets through and that an analysis, a rule or a view once failed on: each is one recording here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from foretrace import analyze
from foretrace.commands import main
from foretrace.diagnose.case import Case
from foretrace.errors import MissingDataError
from foretrace.ingest import kineto_native, open_trace
from foretrace.present.web import payload
from foretrace.present.web.recording_view import RecordingView
from tests.builders import Recording
from tests.ingest.comparison import assert_same_trace

H200 = {"id": 0, "name": "NVIDIA H200", "numSms": 132}


def loop() -> Recording:
    """Three steps of four operators with a kernel each."""
    recording = Recording(deviceProperties=[H200])
    for number in range(3):
        at = 1000.0 * number
        recording.step(number, at, at + 950)
        for begin in (at, at + 200, at + 400, at + 600):
            recording.op("aten::add", begin, begin + 60, **{"Input Dims": [[4, 4]], "Input type": ["float"]})
            recording.launch(begin + 5, "add", begin + 20, begin + 50)
    return recording


def of(recording: Recording, *categories: str) -> list[dict[str, Any]]:
    return [event for event in recording.events if event["cat"] in categories]


HOST = ("cpu_op", "cuda_runtime", "user_annotation")


def string_pid(recording: Recording) -> None:
    for event in of(recording, *HOST):
        event["pid"] = "python"


def string_pid_everywhere(recording: Recording) -> None:
    for event in recording.events:
        event["pid"] = "python"


def no_duration_on_the_host(recording: Recording) -> None:
    for event in of(recording, *HOST):
        del event["dur"]


def one_call_without_duration(recording: Recording) -> None:
    del of(recording, "cuda_runtime")[-1]["dur"]


def annotation_on_another_thread(recording: Recording) -> None:
    recording.annotation("validate", 100, 2500, thread=777)


def sections_of_zero_length_kernels(recording: Recording) -> None:
    recording.annotation("forward", 0, 2900)
    for event in of(recording, "kernel"):
        event["dur"] = 0


def some_unreadable_devices(recording: Recording) -> None:
    for event in of(recording, "kernel")[::2]:
        del event["args"]["device"]
        event["pid"] = "?"


def unreadable_devices(recording: Recording) -> None:
    for event in of(recording, "kernel"):
        event["args"].update(device="?", stream="?")
        event.update(pid="?", tid="?")


def long_names(recording: Recording) -> None:
    for event in of(recording, "cpu_op", "kernel"):
        event["name"] = event["name"] * 2_000
    recording.python("d" * 300 + "/" + "f" * 300 + ".py(3): " + "g" * 300, 0, 2900)


def absurd_totals_of_memory(recording: Recording) -> None:
    for at, total in ((5, 512), (10, 2**63 - 1), (15, 10**25), (20, 512)):
        told = {
            "Bytes": 512,
            "Addr": at,
            "Device Type": 1,
            "Device Id": 0,
            "Total Allocated": total,
            "Total Reserved": total,
        }
        event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": 100}
        recording.events.append({**event, "ts": at, "args": told})


def shapes_beyond_any_memory(recording: Recording) -> None:
    for event in of(recording, "cpu_op"):
        event["name"] = "aten::copy_"
        event["args"].update({"Input Dims": [[10**12, 10**12]] * 2, "Input type": ["float", "float"]})


def no_time_at_all(recording: Recording) -> None:
    for event in recording.events:
        event.update(ts=5, dur=0)


DAMAGES = (
    no_time_at_all,
    shapes_beyond_any_memory,
    absurd_totals_of_memory,
    string_pid, string_pid_everywhere, no_duration_on_the_host, one_call_without_duration, annotation_on_another_thread,
    sections_of_zero_length_kernels, some_unreadable_devices, unreadable_devices, long_names,
)  # fmt: skip
VIEWS = ("timeline", "modules", "memory", "roofline", "ranks", "overview")


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_every_analysis_and_view_is_made_or_says_why_not(
    tmp_path: Path, damage: Callable[[Recording], None]
) -> None:
    recording = loop()
    damage(recording)
    path = recording.write(tmp_path)
    trace = open_trace(path)
    if kineto_native.missing is None:
        assert_same_trace(trace, open_trace(path, reader="python"))
    for analysis in analyze.ANALYSES:
        with suppress(MissingDataError):
            assert analysis(trace).says
    view = RecordingView(Case(trace))
    for name in VIEWS:
        with suppress(MissingDataError):
            assert payload.resource(view, name)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_it_is_diagnosed(
    tmp_path: Path, damage: Callable[[Recording], None], capsys: pytest.CaptureFixture[str]
) -> None:
    recording = loop()
    damage(recording)
    assert main(["diagnose", str(recording.write(tmp_path)), "--no-cache"]) == 0
    said = capsys.readouterr().out
    assert "findings" in said
    assert "internal error" not in said


def test_a_step_without_time_is_not_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One call and what it started, on a device and on one that is not readable: nothing is left of a step."""
    recording = Recording()
    recording.runtime("cudaLaunchKernel", 4, 7, correlation=8)
    recording.kernel("gemm", 11, 16, correlation=8)
    recording.add("kernel", "gemm", 7, 4, "[TP01] 0", 7, stream=7, correlation=8)
    path = str(recording.write(tmp_path))
    assert main(["diagnose", path, "--no-cache"]) == 0
    assert "to replay" in " ".join(capsys.readouterr().out.split())


def test_work_of_another_thread_is_in_no_section_of_a_thread_that_marks_none(tmp_path: Path) -> None:
    recording = loop()
    annotation_on_another_thread(recording)
    table = analyze.run(recording.open(tmp_path), "sections").table
    assert "validate" in str(table.to_dicts())
    assert table["device_ns"].sum() == 0


def test_shares_of_no_time_are_none(tmp_path: Path) -> None:
    recording = loop()
    sections_of_zero_length_kernels(recording)
    row = analyze.run(recording.open(tmp_path), "sections").table.row(0, named=True)
    assert row["device_ns"] == 0
    assert "0 %" in row["roles"]


def test_calls_of_a_process_without_a_number_are_of_one_process(tmp_path: Path) -> None:
    """The same operators with the same times, whatever their process is called."""
    named, numbered = loop(), loop()
    string_pid(named)
    one, other = (
        analyze.run(each.open(tmp_path, f"{place}.json"), "operators").table
        for place, each in enumerate((named, numbered))
    )
    assert one.equals(other)
