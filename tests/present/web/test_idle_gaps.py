"""Idle gaps on the timeline: where they are, why the GPU was idle there, and what it waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace.analyze.concepts.host.idle_causes import CAUSES
from foretrace.diagnose.case import Case
from foretrace.errors import MissingDataError, UsageError
from foretrace.present.export import report
from foretrace.present.web import idle_gaps, kinds, payload
from foretrace.present.web.recording_view import RecordingView
from tests.builders import Recording
from tests.present.web.test_payload_timeline import decoded

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def view_of(recording: Recording, folder: Path) -> RecordingView:
    return RecordingView(Case(recording.open(folder)))


def plain(view: RecordingView, name: str) -> dict[str, Any]:
    found = payload.resource(view, name)
    assert isinstance(found, dict)
    return found


def waits() -> Recording:
    """The GPU runs to 10, waits for an operator to 60, runs to 70, and waits for data to 200 (all in µs)."""
    recording = Recording().launch(0, "first", 1, 10, call=0.5)
    recording.op("aten::nonzero", 5, 58).launch(50, "second", 60, 70, call=2)
    recording.annotation(LOADER, 71, 190).op("aten::stack", 80, 180)
    return recording.launch(192, "third", 200, 210, call=3)


def facts(detail: dict[str, Any]) -> dict[str, str]:
    return {fact["label"]: fact["value"] for fact in detail["facts"]}


@pytest.mark.slow
def test_each_gap_stands_in_a_lane_below_the_streams(tmp_path: Path) -> None:
    view = view_of(waits(), tmp_path)
    header, columns = decoded(payload.resource(view, "timeline"))
    groups = [track["group"] for track in header["tracks"]]
    assert groups.index("idle") == groups.index("gpu") + 1
    (lane,) = (track for track in header["tracks"] if track["group"] == "idle")
    (row,) = lane["rows"]
    here = slice(row["offset"], row["offset"] + row["count"])
    assert lane["title"] == "GPU 0 idle"
    assert columns["start"][here].tolist() == [10_000, 70_000]
    assert columns["dur"][here].tolist() == [50_000, 130_000]
    assert [header["names"][name] for name in columns["name"][here]] == ["host: operator", "input"]
    assert [(*kinds.KINDS, *kinds.HOST_KINDS)[kind] for kind in columns["kind"][here]] == ["op", "wait"]
    first = view.trace.spans.height
    assert columns["id"][here].tolist() == [first, first + 1]


def test_a_gap_says_why_and_what_was_waited_for(tmp_path: Path) -> None:
    view = view_of(waits(), tmp_path)
    first = view.trace.spans.height
    detail = plain(view, f"span/{first}")
    assert detail["title"] == "Idle: host: operator"
    assert (detail["from_ns"], detail["to_ns"]) == (10_000, 60_000)
    told = facts(detail)
    assert told["Why"] == idle_gaps.WHY["host: operator"]
    assert told["Waited for"] == "nonzero"
    assert (
        told["Made of"]
        == "host: operator 40.0 µs (80 %); launch latency 8.00 µs (16 %); launch call 2.00 µs (4 %)"
    )
    assert (told["Before"], told["Next work"], told["Launched by"]) == ("first", "second", "cudaLaunchKernel")
    waited = next(link for link in detail["links"] if link["label"] == "waited for: nonzero")
    assert view.trace.spans["name"][waited["id"]] == "aten::nonzero"


def test_a_gap_for_data_waits_for_the_loader_not_for_what_it_does(tmp_path: Path) -> None:
    view = view_of(waits(), tmp_path)
    told = facts(plain(view, f"span/{view.trace.spans.height + 1}"))
    assert told["Waited for"] == LOADER
    assert told["Why"] == "The program was waiting for its next batch of data"


def test_waiting_lists_gaps_with_what_the_timeline_selects(tmp_path: Path) -> None:
    view = view_of(waits(), tmp_path)
    found = plain(view, "waiting")
    names = [column["name"] for column in found["gaps"]["columns"]]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*found["gaps"]["data"], strict=True)]
    assert [(row["start_ns"], row["idle_ns"], row["cause"], row["waited_for"]) for row in rows] == [
        (70_000, 130_000, "input", LOADER), (10_000, 50_000, "host: operator", "nonzero"),
    ]  # fmt: skip
    assert [plain(view, f"span/{row['span']}")["from_ns"] for row in rows] == [70_000, 10_000]
    assert [other["name"] for other in found["others"]] == ["syncs", "launches", "critical-path"]
    assert sum(found["idle"]["data"][2]) == 180_000, "the causes sum to the gaps"


def test_every_cause_has_words() -> None:
    assert set(idle_gaps.WHY) == set(CAUSES)
    assert set(idle_gaps.KINDS) <= set(CAUSES)


def test_ids_beyond_the_gaps_are_refused(tmp_path: Path) -> None:
    view = view_of(waits(), tmp_path)
    with pytest.raises(UsageError, match="no span"):
        payload.resource(view, f"span/{view.trace.spans.height + 2}")


def test_without_a_gpu_there_is_no_lane_and_the_page_says_why(tmp_path: Path) -> None:
    view = view_of(Recording().op("aten::mm", 0, 10), tmp_path)
    header, _ = decoded(payload.resource(view, "timeline"))
    assert [track["group"] for track in header["tracks"]] == ["host"]
    assert "GPU" in plain(view, "overview")["missing"]["waiting"]
    with pytest.raises(MissingDataError):
        payload.resource(view, "waiting")


@pytest.mark.slow
def test_a_report_holds_the_details_of_gaps(tmp_path: Path) -> None:
    view = view_of(waits(), tmp_path)
    assert view.trace.spans.height in report._detailed(view)
