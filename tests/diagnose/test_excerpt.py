from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from foretrace.diagnose import RULES
from foretrace.diagnose import case as cases
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.excerpt import LEAST_STEPS, chosen_steps, excerpt
from foretrace.present.web.recording_view import RecordingView
from foretrace.schema import DEVICE_KINDS
from foretrace.trace import Trace
from tests.builders import Recording

STEPS, CALLS, STEP_US = 40, 6, 1000.0


def long_loop(folder: Path) -> Trace:
    """Steps whose device work runs half a step behind the host, inside one Python call around them all."""
    recording = Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200", "numSms": 132}])
    recording.python("train.py(1): main", 0, STEPS * STEP_US)
    for step in range(STEPS):
        begin = step * STEP_US
        recording.step(step, begin, begin + STEP_US - 20)
        for call in range(CALLS):
            at = begin + 10 + 150 * call
            recording.op("aten::add", at, at + 40)
            recording.launch(at + 10, "add_kernel", at + 500, at + 640)
    return recording.open(folder)


def half(trace: Trace) -> int:
    return trace.spans.height // 2 + 1


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return long_loop(tmp_path)


def test_a_short_recording_is_looked_at_whole(trace: Trace) -> None:
    case = Case(trace)
    assert case.trace is case.whole is trace
    assert case.looked_at is None
    assert case.whole_ids(np.array([3, 5])).tolist() == [3, 5]


def test_a_long_one_gives_enough_steps_from_its_middle(trace: Trace) -> None:
    chosen = chosen_steps(trace, most_spans=half(trace))
    assert [step.number for step in chosen] == list(range(10, 30))
    assert len(chosen_steps(trace, most_spans=1)) == LEAST_STEPS
    assert chosen_steps(trace, most_spans=trace.spans.height) == trace.steps


def test_one_of_many_short_steps_gives_so_many_from_its_middle(trace: Trace) -> None:
    assert [step.number for step in chosen_steps(trace, most_steps=10)] == list(range(15, 25))
    assert chosen_steps(trace, most_steps=STEPS) == trace.steps


def test_an_excerpt_is_the_recording_of_these_steps(trace: Trace) -> None:
    steps = chosen_steps(trace, most_spans=half(trace))
    cut = excerpt(trace, steps)
    spans, whole = cut.trace.spans, trace.spans[cut.span_ids]
    assert cut.trace.steps == steps
    assert spans["id"].to_list() == list(range(spans.height))
    same = ("track_id", "kind", "name", "start_ns", "dur_ns", "depth", "step")
    assert spans.select(same).equals(whole.select(same))
    for column in ("parent_id", "launch_id", "op_id"):
        moved = spans[column].drop_nulls()
        assert (
            cut.span_ids[moved.to_numpy()].tolist()
            == whole.filter(spans[column].is_not_null())[column].to_list()
        )
    work = spans.filter(pl.col("kind").is_in(DEVICE_KINDS))
    own = work.drop_nulls("launch_id")
    assert own.height == len(steps) * CALLS
    # What was launched before and still ran is as if it had been launched before the recording.
    before = work.filter(pl.col("launch_id").is_null())
    assert before.height == 3
    assert (before["start_ns"] + before["dur_ns"] > steps[0].start_ns).all()
    assert spans.filter(pl.col("kind") == "python").height == 1
    assert cut.trace.kernels.height == work.height
    assert set(cut.trace.kernels["span_id"]) == set(work["id"])


@pytest.mark.slow
def test_findings_of_a_long_recording_name_its_own_spans(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "chosen_steps", lambda each: chosen_steps(each, most_spans=half(each)))
    view = RecordingView(Case(trace))
    case = view.case
    assert case.looked_at == "steps 10 to 29, 20 of the 40 recorded"
    assert case.looked_at in case.calibration.basis
    assert case.step_count == 20
    found = view.diagnosis
    assert {each.rule for each in found.findings} == {
        each.rule for each in diagnose(Case(trace), RULES).findings
    }
    low, high = case.trace.steps[0].start_ns, case.trace.steps[-1].end_ns
    for finding, ids in zip(found.findings, view.finding_spans, strict=True):
        for span in [*finding.evidence.get("spans", ()), *ids.tolist()]:
            start = trace.spans["start_ns"][span]
            assert low <= start <= high + STEP_US * 1000, finding.rule
