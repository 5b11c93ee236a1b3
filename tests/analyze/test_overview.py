"""The overview, against the numbers that the TensorBoard plugin and TraceLens published."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import foretrace
from foretrace import analyze
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

US = 1_000


def two_steps() -> Recording:
    properties = [{"id": 0, "name": "NVIDIA H200", "numSms": 132}]
    recording = Recording(deviceProperties=properties).kernel("gemm", 0, 4, correlation=99)
    for number in range(2):
        at = 10 + 100 * number
        recording.step(number, at, at + 90).op("aten::mm", at, at + 20)
        recording.launch(at + 1, "gemm", at + 10, at + 40).launch(at + 3, "relu", at + 40, at + 50)
        recording.launch(
            at + 5, "Memcpy DtoH (Device -> Pinned)", at + 45, at + 60, category="gpu_memcpy", stream=8
        )
    return recording


def test_by_hand(tmp_path: Path) -> None:
    result = analyze.run(two_steps().open(tmp_path), "overview")
    values = result.values
    assert values["step_count"] == 2
    assert values["step_host_ns"] == 90 * US
    assert values["step_gpu_ns"] == (60 + 100) / 2 * US
    assert values["launches_per_step_count"] == 3
    assert values["kernels_per_step_count"] == 2
    assert values["devices"] == "NVIDIA H200"
    # Of the steps, 10 to 200: kernels run for 40 in each.
    assert values["measured_ns"] == 190 * US
    assert values["gpu_busy_pct"] == pytest.approx(100 * 80 / 190)
    # The timeline is of launched work: 20 to 170.
    assert values["span_ns"] == 150 * US
    assert values["computation_ns"] == 80 * US
    assert values["exposed_copy_ns"] == 20 * US
    assert values["copy_ns"] == 30 * US
    assert values["idle_ns"] == 50 * US
    assert (values["orphan_count"], values["orphan_ns"]) == (1, 4 * US)
    assert any("1 GPU task" in note for note in result.notes)
    assert (values["sm_efficiency_pct"], values["occupancy_pct"]) == (None, None)


def test_every_share_says_what_it_is_a_share_of(tmp_path: Path) -> None:
    result = analyze.run(two_steps().open(tmp_path), "overview")
    shares = {name for name in (*result.values, *result.table.columns) if name.endswith("_pct")}
    assert shares <= set(result.denominators)


def test_several_devices_come_one_by_one_and_then_together(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 100)
    recording.launch(0, "gemm", 0, 50, device=0).launch(1, "gemm", 25, 100, device=1)
    result = analyze.run(recording.open(tmp_path), "overview")
    assert result.table["device"].to_list() == [0, 1, None]
    assert result.table["utilisation_pct"].to_list() == pytest.approx([50, 75, 62.5])
    assert result.table["computation_ns"].to_list() == [50 * US, 75 * US, 100 * US]
    assert result.table["kernel_count"].to_list() == [1, 1, 2]
    assert result.values["gpu_busy_pct"] == pytest.approx(62.5)


def test_without_gpu_work_the_host_is_described(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 10).op("aten::mm", 2, 6).op("aten::add", 2, 3, thread=7)
    result = analyze.run(recording.open(tmp_path), "overview")
    assert "no GPU work recorded" in result.says
    assert result.table.is_empty()
    assert result.values["step_host_ns"] == 10 * US
    assert result.values["step_gpu_ns"] is None
    assert (result.values["op_count"], result.values["thread_count"]) == (2, 2)
    assert "gpu_busy_pct" not in result.values


def test_an_empty_recording_is_described(tmp_path: Path) -> None:
    result = analyze.run(Recording().open(tmp_path), "overview")
    assert "no GPU work recorded" in result.says
    assert result.values["step_count"] == 0


def test_without_steps_the_recording_is_the_measure(tmp_path: Path) -> None:
    recording = Recording().op("aten::mm", 0, 20).launch(5, "gemm", 20, 40)
    result = analyze.run(recording.open(tmp_path), "overview")
    assert result.values["gpu_busy_pct"] == pytest.approx(50)
    assert "no steps" in result.says
    assert "recording" in result.denominators["gpu_busy_pct"]


def test_device_work_with_no_launch_at_all_is_counted(tmp_path: Path) -> None:
    result = analyze.run(Recording().kernel("gemm", 0, 10).kernel("gemm", 15, 20).open(tmp_path), "overview")
    assert result.values["computation_ns"] == 15 * US
    assert result.values["orphan_count"] == 0
    assert any("no GPU work is linked" in note for note in result.notes)


def test_only_copies_leave_the_gpu_not_busy(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 10)
    recording.launch(0, "Memcpy HtoD (Pinned -> Device)", 1, 9, category="gpu_memcpy")
    values = analyze.run(recording.open(tmp_path), "overview").values
    assert values["gpu_busy_pct"] == 0
    assert values["exposed_copy_pct"] == 100


def test_busy_and_idle_are_shares_of_the_same_time(tmp_path: Path) -> None:
    """A step of 100 us whose only work is a kernel of 30 us and a copy of 20 behind a start of 50."""
    recording = Recording().step(1, 0, 100)
    recording.launch(40, "gemm", 50, 80)
    recording.launch(45, "Memcpy HtoD (Pinned -> Device)", 80, 100, category="gpu_memcpy")
    values = analyze.run(recording.open(tmp_path), "overview").values
    assert values["gpu_busy_pct"] == pytest.approx(30)
    assert values["gpu_idle_pct"] == pytest.approx(50)
    assert values["gpu_exposed_copy_pct"] == pytest.approx(20)
    assert values["idle_pct"] == 0  # of the device's span, from its first start to its last end


@needs_corpus
@pytest.mark.parametrize(
    ("name", "busy", "efficiency", "occupancy"),
    [
        ("kineto/resnet50_workers0.pt.trace.json.gz", 55.51, 54.68, 49.13),
        ("kineto/resnet50_workers4.pt.trace.json.gz", 70.27, 69.22, 48.91),
        ("tutorial_h100/dc3b0e7228dd_851.1752215573993169006.pt.trace.json.gz", 13.16, 13.07, 30.42),
    ],
)
def test_agrees_with_the_tensorboard_plugin(
    name: str, busy: float, efficiency: float, occupancy: float
) -> None:
    values = analyze.run(foretrace.open(CORPUS / "peers" / name), "overview").values
    assert values["gpu_busy_pct"] == pytest.approx(busy, abs=0.006)
    assert values["sm_efficiency_pct"] == pytest.approx(efficiency, abs=0.006)
    assert values["occupancy_pct"] == pytest.approx(occupancy, abs=0.006)


@needs_corpus
def test_counts_the_tutorials_kernels() -> None:
    path = CORPUS / "peers" / "tutorial_h100" / "dc3b0e7228dd_851.1752215573993169006.pt.trace.json.gz"
    assert analyze.run(foretrace.open(path), "overview").table["kernel_count"].to_list() == [48]


@needs_corpus
@pytest.mark.parametrize(("name", "orphans"), [("h100_qwen", 509), ("mi300_qwen", 463)])
def test_agrees_with_tracelens(name: str, orphans: int) -> None:
    folder = CORPUS / "peers" / "tracelens"
    with (folder / f"{name}_golden" / "gpu_timeline.csv").open() as file:
        golden = {row["type"]: float(row["time ms"]) for row in csv.DictReader(file)}
    values = analyze.run(foretrace.open(folder / f"{name}.json.gz"), "overview").values
    names = {
        "computation_time": "computation_ns",
        "exposed_comm_time": "exposed_communication_ns",
        "exposed_memcpy_time": "exposed_copy_ns",
        "busy_time": "busy_ns",
        "idle_time": "idle_ns",
        "total_time": "span_ns",
        "total_comm_time": "communication_ns",
        "total_memcpy_time": "copy_ns",
    }
    for theirs, ours in names.items():
        # They add floats of microseconds since 1970, which are exact to a quarter of one at best.
        assert int(values[ours] or 0) / 1e6 == pytest.approx(golden[theirs], abs=1e-4), ours
    assert values["orphan_count"] == orphans
