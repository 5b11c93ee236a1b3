"""Cold start: the tutorial's own numbers rebuilt as traces, hand-made signs, and recordings with a cold step."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace.analyze.cold_start import SIGNS, cold_start
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

TRACES = Path(__file__).parents[1] / "traces" / "operators"


@pytest.mark.parametrize(
    ("host", "device", "share", "bound"),
    [(2314.0, 23.104, 1.0, "overhead"), (4908.0, 4495.0, 91.6, "compute"), (716.0, 272.0, 38.0, "neither")],
)
def test_the_tutorials_two_cases(
    tmp_path: Path, host: float, device: float, share: float, bound: str
) -> None:
    # Self CPU and Self CUDA totals that "Profiling in PyTorch", part 1, prints for 64 x 64 and for 4096 x 4096.
    recording = (
        Recording().step(0, 0, host).op("aten::matmul", 1, host - 1).launch(5, "gemm", 10, 10 + device)
    )
    values = cold_start(recording.open(tmp_path)).values
    assert values["busy_pct"] == pytest.approx(share, abs=0.05)
    assert values["bound"] == bound


def test_the_tutorials_mean_hides_a_cold_first_step(tmp_path: Path) -> None:
    # 1084 us on average, 580 us typically: one cold step among three.
    recording = Recording().step(2, 0, 2092).step(3, 3000, 3580).step(4, 4000, 4580)
    recording.op("aten::mm", 0, 1).runtime("cudaMalloc", 100, 1500)
    values = cold_start(recording.open(tmp_path)).values
    assert values["mean_host_ns"] == 1_084_000
    assert values["typical_host_ns"] == 580_000
    assert (values["first_host_ns"], values["others_host_ns"]) == (2_092_000, 580_000)
    assert values["excess_ns"] == 1_512_000
    assert values["explained_pct"] == pytest.approx(100 * 1400 / 1512)
    assert values["verdict"] == "cold"


def test_the_tutorials_gaps_from_label_to_operator(tmp_path: Path) -> None:
    recording = Recording()
    rows = ((2, 138.736, 366.493), (3, 517.926, 523.447), (4, 610.039, 614.527))
    for number, label, first in rows:
        recording.step(number, label - 1, first + 60).annotation("matmul_add", label, first + 50)
        recording.op("aten::matmul", first, first + 40)
    table = cold_start(recording.open(tmp_path)).table
    assert table["label_gap_ns"].to_list() == [227_757, 5_521, 4_488]


def test_each_moment_has_one_sign(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 1000).step(1, 1000, 1100)
    recording.add("overhead", "Activity Buffer Request", 10, 100, -1, 0)
    recording.op("dynamo", 200, 400).runtime("cuModuleLoadData", 350, 500)
    recording.runtime("cudaFuncGetAttributes", 450, 600).runtime("cudaMalloc", 590, 700)
    recording.runtime("cudaFuncGetAttributes", 1010, 1012)
    row = cold_start(recording.open(tmp_path)).table.row(0, named=True)
    found = {sign: row[f"{sign}_ns"] // 1000 for sign in SIGNS}
    assert found == {
        "profiler": 100, "compiling": 200, "loading": 100, "initialisation": 100, "allocation": 100, "label_gap": 0
    }  # fmt: skip
    later = cold_start(recording.open(tmp_path, "again.json")).table.row(1, named=True)
    assert later["initialisation_ns"] == 0  # a query of 2 us is a warm one


def test_a_long_first_launch_is_loading_but_not_behind_a_full_queue(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 1000)
    recording.launch(10, "a", 215, 300, call=200).launch(400, "a", 620, 640, call=200)
    recording.launch(650, "b", 5000, 5010, call=200)
    assert cold_start(recording.open(tmp_path)).table["loading_ns"].to_list() == [200_000]


def test_a_slow_first_step_without_a_sign_is_not_called_cold(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 300).step(1, 300, 400).step(2, 400, 500).op("a", 0, 1)
    assert cold_start(recording.open(tmp_path)).values["verdict"] == "slow"


def test_without_steps_the_signs_are_of_the_recording(tmp_path: Path) -> None:
    result = cold_start(Recording().op("a", 0, 100).runtime("cudaMalloc", 10, 30).open(tmp_path))
    assert result.table["allocation_ns"].to_list() == [20_000]
    assert result.values["verdict"] is None
    assert result.table["step"].to_list() == [None]


def test_trial_runs_of_the_first_step_are_noted(tmp_path: Path) -> None:
    recording = Recording()
    for step, count in ((0, 6), (1, 3), (2, 3)):
        recording.step(step, 100 * step, 100 * step + 90)
        for place in range(count):
            at = 100 * step + 10 * place
            recording.launch(at, "k", at + 5, at + 8)
    assert any("launched 3 more GPU tasks" in note for note in cold_start(recording.open(tmp_path)).notes)


def test_a_process_that_just_started_loads_its_modules() -> None:
    # torch's table of this recording: 26.758 ms "Runtime Triggered Module Loading", 0.204 ms lazy loading.
    result = cold_start(foretrace.open(TRACES / "cold.json.gz", cache=False))
    assert result.values["verdict"] == "cold"
    assert result.table["loading_ns"][0] >= 26_758_004
    assert result.table["profiler_ns"].to_list() == [1_896_622, 0, 0]
    assert result.table["allocation_ns"][0] == 218_669


@needs_corpus
def test_the_recorded_cold_matmul() -> None:
    # torch's table for wait=0: Activity Buffer Request 1.995 ms, within a first step of 2.296 ms.
    first = cold_start(foretrace.open(CORPUS / "other" / "cold_start" / "matmul_cold_wait0.json"))
    assert first.table["profiler_ns"].to_list() == [1_995_321, 0, 0]
    assert first.values["verdict"] == "profiler"
    later = cold_start(foretrace.open(CORPUS / "other" / "cold_start" / "matmul_cold_wait1.json"))
    assert later.table["profiler_ns"].to_list() == [0, 0, 0]
    assert later.values["bound"] == "overhead"


@needs_corpus
@pytest.mark.parametrize("path", sorted((CORPUS / "h200").glob("*.lite.json.gz")), ids=lambda path: path.name)
def test_programs_warmed_up_for_many_steps_are_not_cold(path: Path) -> None:
    result = cold_start(foretrace.open(path))
    assert result.values["verdict"] in ("warm", "slow", "profiler")
    parts = [f"{sign}_ns" for sign in SIGNS]
    for row in result.table.iter_rows(named=True):
        assert all(row[part] >= 0 for part in parts)
        assert sum(row[part] for part in parts) <= row["host_ns"]
