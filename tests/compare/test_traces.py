"""Two recordings side by side: what differs, per step; a recording and itself do not."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from foretrace.compare.traces import compare
from foretrace.diagnose.case import Case
from foretrace.ingest import open_trace
from foretrace.present.web import payload
from foretrace.present.web.recording_view import RecordingView
from foretrace.trace import Trace
from tests.builders import Recording

GEMM, ADD = (
    "ampere_sgemm_128x64_tn",
    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)",
)


def recorded(path: Path, *, steps: int = 3, gemm: float = 100.0, adds: int = 2, device: str = "GPU") -> Trace:
    """Steps of 1 ms with one multiply and some additions, in microseconds."""
    recording = Recording(deviceProperties=[{"id": 0, "name": device}])
    for step in range(steps):
        at = 2_000.0 * step
        recording.step(step, at, at + 900)
        recording.launch(at + 10, GEMM, at + 20, at + 20 + gemm, call=5)
        for number in range(adds):
            begin = at + 300 + 20 * number
            recording.launch(begin - 20, ADD, begin, begin + 10, call=5)
    return open_trace(recording.write(path.parent, path.name), cache=False)


def test_a_recording_and_itself_do_not_differ(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "a.json")
    found = compare(trace, trace)
    assert found.steps.verdict == "same"
    assert "no difference" in found.says
    assert [cause.delta_ns for cause in found.steps.causes] == [0.0] * len(found.steps.causes)
    assert found.roles["difference_ns"].to_list() == [0.0] * found.roles.height
    assert found.kernels["difference_ns"].abs().sum() == 0
    assert found.notes == ()


@pytest.mark.slow
def test_times_are_per_step_whatever_the_number_of_steps(tmp_path: Path) -> None:
    short, long = recorded(tmp_path / "a.json", steps=2), recorded(tmp_path / "b.json", steps=6)
    found = compare(short, long)
    assert found.kernels["difference_ns"].abs().sum() == pytest.approx(0)
    assert found.kernels.filter(pl.col("name") == ADD)["a_count"].item() == 2


def test_the_largest_difference_comes_first(tmp_path: Path) -> None:
    found = compare(recorded(tmp_path / "a.json"), recorded(tmp_path / "b.json", gemm=40.0, adds=3))
    assert found.kernels["name"].to_list() == [GEMM, ADD]
    assert found.kernels["difference_ns"].to_list() == pytest.approx([-60_000, 10_000])
    assert dict(found.roles.select("role", "difference_ns").iter_rows()) == {
        "gemm": pytest.approx(-60_000), "elementwise": pytest.approx(10_000)
    }  # fmt: skip


def test_a_kernel_of_one_side_only_is_listed(tmp_path: Path) -> None:
    found = compare(recorded(tmp_path / "a.json"), recorded(tmp_path / "b.json", adds=0))
    row = found.kernels.filter(pl.col("name") == ADD).row(0, named=True)
    assert (row["b_count"], row["b_ns"]) == (0, 0)
    assert row["a_ns"] == pytest.approx(20_000)


def test_what_does_not_compare_is_said(tmp_path: Path) -> None:
    bare = open_trace(Recording().kernel(GEMM, 0, 10).write(tmp_path, "bare.json"), cache=False)
    found = compare(recorded(tmp_path / "a.json"), bare)
    assert found.steps.verdict == "inconclusive"
    assert "only one of the two has steps" in found.says
    assert any("different devices" in note for note in found.notes)
    assert any("no steps" in note for note in found.notes)


@pytest.mark.slow
def test_the_page_s_waterfall_sums_to_both_steps(tmp_path: Path) -> None:
    runs = [
        RecordingView(Case(recorded(tmp_path / f"{name}.json", gemm=gemm)), run_id=name)
        for name, gemm in (("a", 100.0), ("b", 40.0))
    ]
    found = payload.resource(runs[0], "compare/b", find={run.id: run for run in runs}.__getitem__)
    assert isinstance(found, dict)
    parts = {row["label"]: (row["a_ns"], row["b_ns"]) for row in found["rows"]}
    assert parts["matrix products"] == (pytest.approx(100_000), pytest.approx(40_000))
    for side, name in enumerate(("a", "b")):
        assert sum(part[side] for part in parts.values()) == pytest.approx(found[name]["step_ns"])
    same = payload.resource(runs[0], "compare/a", find={run.id: run for run in runs}.__getitem__)
    assert isinstance(same, dict)
    assert all(row["a_ns"] == row["b_ns"] for row in same["rows"])
