"""Forward and backward apart, and how full the GPU was over time, as the page gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.analyze.overview import overview
from foretrace.diagnose.case import Case
from foretrace.present.web import binary
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.modules import modules
from foretrace.present.web.resources.timeline import timeline
from foretrace.trace import Trace
from tests.analyze.training import training_step
from tests.builders import Recording


def view(trace: Trace) -> RecordingView:
    return RecordingView(Case(trace))


def trees(recording: Recording, folder: Path) -> dict[str, dict[str, tuple[int, int]]]:
    """By title and module: its total and self time, in microseconds."""
    found = modules(view(recording.open(folder)))["trees"]
    return {
        tree["title"]: {
            name: (total // 1000, own // 1000)
            for name, total, own in zip(tree["name"], tree["total"], tree["self"], strict=True)
        }
        for tree in found
    }


def test_forward_and_backward_are_trees_of_their_own(tmp_path: Path) -> None:
    found = trees(training_step(), tmp_path)
    forward = found["Modules, forward only, by GPU time"]
    backward = found["Modules, backward only, by GPU time"]
    both = found["Modules, by GPU time"]
    assert (forward["Net_0"], backward["Net_0"]) == ((27, 2), (20, 0))
    assert (forward["Linear_0"], backward["Linear_0"]) == ((20, 20), (12, 12))
    for name, (total, own) in both.items():
        assert (forward[name][0] + backward[name][0], forward[name][1] + backward[name][1]) == (total, own)


def test_without_a_backward_there_is_one_tree(tmp_path: Path) -> None:
    recording = Recording().python("nn.Module: Net_0", 0, 50)
    recording.op("aten::mm", 5, 20).launch(6, "gemm", 10, 40)
    assert not any("only" in title for title in trees(recording, tmp_path))


def curves(trace: Trace) -> dict[str, tuple[dict[str, Any], np.ndarray, np.ndarray]]:
    header, columns = binary.unpack(timeline(view(trace), {"findings": "no"}))
    return {
        about["title"]: (about, columns[f"counter:{number}:at"], columns[f"counter:{number}:value"])
        for number, about in enumerate(header["counters"])
    }


def filled(folder: Path, **more: Any) -> Trace:
    """1 ms: a kernel on half of the multiprocessors for 250 µs, one on all for 250, then nothing."""
    recording = Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200", "numSms": 132}])
    recording.step(0, 0, 1_000)
    recording.launch(1, "half", 0, 250, **{"grid": [66, 1, 1], "blocks per SM": 0.5, **more})
    recording.launch(2, "full", 250, 500, **{"grid": [264, 1, 1], "blocks per SM": 2.0, **more})
    return recording.open(folder)


def test_sm_efficiency_over_time(tmp_path: Path) -> None:
    trace = filled(tmp_path)
    about, at, value = curves(trace)["SM efficiency"]
    assert about["unit"] == "pct"
    edges = np.append(at, trace.duration_ns)
    held = value[np.searchsorted(at, [100_000, 400_000], side="right") - 1]
    assert held == pytest.approx([50, 100], abs=0.1)
    assert value[-1] == 0
    mean = (value * np.diff(edges)).sum() / trace.duration_ns
    assert mean == pytest.approx(overview(trace).values["sm_efficiency_pct"], rel=0.01)
    assert about["says"].startswith(f"{mean:.1f} % of the recording")


def test_without_grids_there_is_no_such_curve(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 100).launch(1, "k", 5, 50)
    assert list(curves(recording.open(tmp_path))) == ["GPU busy", "Launch queue"]


def test_each_device_has_its_own(tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[{"id": number, "numSms": 132} for number in range(2)])
    recording.step(0, 0, 100)
    for device in range(2):
        recording.launch(device, "k", 5, 50, device=device, grid=[132, 1, 1], **{"blocks per SM": 1.0})
    found = curves(recording.open(tmp_path))
    assert {"GPU 0 SM efficiency", "GPU 1 SM efficiency"} <= set(found)
