"""Findings as the page has them: where one occurs, where to look first, and what its times are of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace.diagnose.case import Case
from foretrace.errors import UsageError
from foretrace.ingest import open_trace
from foretrace.present.web import payload
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.finding import finding as shown_finding
from foretrace.present.web.resources.occurrences import in_middle_step, occurring
from tests.builders import Recording
from tests.present.web.contract import SAMPLES, same_fields


def test_kernels_that_follow_each_other_occur_once(tmp_path: Path) -> None:
    """Two steps of a, a, b, a, and one a on another stream: three occurrences in a step, the longest of each named."""
    recording = Recording()
    for number, at in enumerate((0.0, 100.0)):
        recording.step(number, at, at + 100)
        for place, (name, length) in enumerate((("a", 4.0), ("a", 9.0), ("b", 5.0), ("a", 5.0))):
            recording.launch(
                at + 1 + place, name, at + 10 + 10 * place, at + 10 + 10 * place + length, call=0.5
            )
        recording.launch(at + 8, "a", at + 60, at + 65, call=0.5, stream=9)
    trace = recording.open(tmp_path)
    names = trace.spans["name"].cast(str)
    ids = trace.spans.filter(names == "a")["id"].cast(int).to_numpy().astype(np.int64)
    found = occurring(trace, ids)
    assert [(start / 1e3, end / 1e3) for start, end in found.select("from_ns", "to_ns").iter_rows()] == [
        (10, 29), (40, 45), (60, 65), (110, 129), (140, 145), (160, 165),
    ]  # fmt: skip
    assert found["step"].to_list() == [0, 0, 0, 1, 1, 1]
    lengths = trace.spans["dur_ns"].gather(found["span"]).to_list()
    assert [length / 1e3 for length in lengths] == [9, 5, 5, 9, 5, 5]
    assert in_middle_step(found)["step"].unique().to_list() == [1]


def test_a_call_and_what_it_calls_occur_once(tmp_path: Path) -> None:
    trace = (
        Recording()
        .op("aten::item", 0, 10)
        .op("aten::_local_scalar_dense", 1, 9)
        .op("aten::item", 20, 30)
        .open(tmp_path)
    )
    found = occurring(trace, np.arange(trace.spans.height))
    assert found["from_ns"].to_list() == [0, 20_000]
    assert trace.spans["name"].cast(str).gather(found["span"]).to_list() == ["aten::item", "aten::item"]


@pytest.fixture(scope="module")
def attention() -> RecordingView:
    (path,) = (path for path in SAMPLES if path.name == "naive_attention.json.gz")
    return RecordingView(Case(open_trace(path, cache=False)))


@pytest.mark.slow
def test_attention_occurs_once_per_layer_and_step(attention: RecordingView) -> None:
    """The sample has twelve layers and three steps."""
    found = payload.resource(attention, "finding/1")
    assert isinstance(found, dict)
    same_fields(found, "Occurrences")
    assert found["rows_count"] == 36
    assert found["step"] == [10] * 12 + [11] * 12 + [12] * 12
    assert found["from_ns"] == sorted(found["from_ns"])
    assert set(found["span"]) <= set(found["spans"])


@pytest.mark.slow
def test_what_is_shown_first_lies_in_a_middle_step_and_in_view(attention: RecordingView) -> None:
    overview = payload.resource(attention, "overview")
    assert isinstance(overview, dict)
    spans = attention.trace.spans
    for finding in overview["findings"]:
        row = spans.row(finding["span"], named=True)
        assert row["step"] == 11
        assert finding["from_ns"] <= row["start_ns"] < finding["to_ns"]


def test_a_kernel_is_shown_in_a_middle_step(attention: RecordingView) -> None:
    table = payload.resource(attention, "table/kernels")
    assert isinstance(table, dict)
    names = [column["name"] for column in table["columns"]]
    steps = attention.trace.spans["step"].gather(table["data"][names.index("span")])
    assert steps[0] == 11


def test_a_finding_that_is_not_there_is_refused(attention: RecordingView) -> None:
    for number in ("0", "99", "x"):
        with pytest.raises(UsageError, match="no finding"):
            payload.resource(attention, f"finding/{number}")


@pytest.mark.slow
def test_times_of_a_finding_are_of_a_step_only_where_steps_are_marked(tmp_path: Path) -> None:
    """Ten times a wait behind a short kernel, with and without marks around them."""
    views = []
    for marked in (True, False):
        recording = Recording()
        for number in range(10):
            at = 1_000.0 * number
            if marked:
                recording.step(number, at, at + 1_000)
            recording.launch(at + 100, "a", at + 110, at + 400, call=5)
            recording.runtime("cudaDeviceSynchronize", at + 120, at + 405)
            recording.op("aten::add", at + 90, at + 110)
        folder = tmp_path / str(marked)
        folder.mkdir()
        views.append(RecordingView(Case(recording.open(folder))))
    for view, of in zip(views, ("per step", "for the recording"), strict=True):
        assert view.diagnosis.findings
        shown = shown_finding(view, 1)
        same_fields(shown, "Finding")
        assert shown["of"] == of
