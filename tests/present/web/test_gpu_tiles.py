"""The tiles of the Overview, and what a kernel costs in a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.present.web import payload
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.gpu_tiles import gpu_tiles
from tests.builders import Recording
from tests.present.web.contract import same_fields


def halves(folder: Path) -> RecordingView:
    """Three steps of 100 µs; the GPU is busy in 50 of each, in two calls of `a` and one of `b`."""
    recording = Recording()
    for number in range(3):
        at = 100.0 * number
        recording.step(number, at, at + 100)
        for place, (name, start, end) in enumerate((("a", 40, 50), ("a", 60, 80), ("b", 80, 100))):
            recording.launch(at + 2 + 2 * place, name, at + start, at + end, call=1)
    return RecordingView(Case(recording.open(folder)))


def test_tiles_are_the_values_of_the_analyses(tmp_path: Path) -> None:
    view = halves(tmp_path)
    tiles = gpu_tiles(view)
    for tile in tiles:
        same_fields(tile, "GpuTile")
    running, idle = tiles[:2]
    assert [running["label"], idle["label"]] == ["Kernels running", "GPU idle"]
    assert [running["value"], idle["value"]] == ["50.0 %", "50.0 %"]  # 150 of 300 µs
    assert running["says"] == view.result("overview").denominators["gpu_busy_pct"]


def test_without_a_gpu_there_are_no_tiles(tmp_path: Path) -> None:
    assert gpu_tiles(RecordingView(Case(Recording().op("aten::mm", 0, 10).open(tmp_path)))) == []


def test_a_kernel_has_its_time_and_calls_in_a_step(tmp_path: Path) -> None:
    table = payload.resource(halves(tmp_path), "table/kernels")
    assert isinstance(table, dict)
    columns = {column["name"]: cells for column, cells in zip(table["columns"], table["data"], strict=True)}
    rows = dict(
        zip(columns["name"], zip(columns["per_step_ns"], columns["per_step_count"], strict=True), strict=True)
    )
    assert rows == {"a": (pytest.approx(30_000), 2), "b": (pytest.approx(20_000), 1)}


def test_without_steps_there_is_no_time_per_step(tmp_path: Path) -> None:
    table = payload.resource(
        RecordingView(Case(Recording().launch(0, "a", 2, 5).open(tmp_path))), "table/kernels"
    )
    assert isinstance(table, dict)
    at = [column["name"] for column in table["columns"]].index("per_step_ns")
    assert table["data"][at] == [None]
