"""open_case: what a path brings along, whoever opens it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.diagnose.opening import open_case
from foretrace.errors import UsageError
from foretrace.ingest import open_trace
from foretrace.ingest.reading import Reading
from foretrace.trace import Trace
from tests.builders import Recording


def recording(**header: object) -> Recording:
    made = Recording(**header)
    for step in range(3):
        at = step * 1_000.0
        made.step(step, at, at + 900).launch(at + 10, "gemm", at + 50, at + 850, call=10)
    return made


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A Run whose step took 0.8 ms without a profiler."""
    rank = tmp_path / "run" / "rank0"
    rank.mkdir(parents=True)
    for name in ("light.json", "rich.json"):
        recording().write(rank, name)
    passes = [{"kind": kind, "file": f"{kind}.json"} for kind in ("light", "rich")]
    facts = {"passes": passes, "status": "complete", "unprofiled": {"median_ns": 800_000}}
    (rank / "rank.json").write_text(json.dumps(facts))
    return rank.parent


@pytest.mark.parametrize("named", [".", "rank0", "rank0/light.json"])
def test_a_run_brings_its_step_time_and_its_rich_pass(run_folder: Path, named: str) -> None:
    case = open_case(run_folder / named)
    assert (case.whole.path.name, case.measured_step_ns) == ("light.json", 800_000)
    assert case.rich is not None
    assert case.rich.whole.path.name == "rich.json"


def test_a_run_brings_the_waits_for_its_loader_and_its_cores(run_folder: Path) -> None:
    """Waits in bursts: the step is the mean of all, not the median of blocks."""
    rank = run_folder / "rank0" / "rank.json"
    loader = {
        "workers": 2, "steps": 100, "calls": 200, "step_ns": 900_000, "mean_ns": 300_000, "waits_ns": [0, 600_000],
        "waiting_steps": 50, "waiting_mean_ns": 600_000, "made": {"mean_ns": 850_000, "mean_cpu_ns": 800_000},
    }  # fmt: skip
    rank.write_text(json.dumps({**json.loads(rank.read_text()), "loader": loader, "world_size": 2}))
    limits = {"usable_cpu_count": 16, "quota_cpu_count": 12.0}
    (run_folder / "run.json").write_text(json.dumps({"limits": limits}))
    case = open_case(run_folder)
    assert case.measured_step_ns == 900_000
    assert case.timed is not None
    assert case.timed.cores == 6
    assert case.timed.loader is not None
    assert (case.timed.loader.batches, case.timed.loader.made_ns) == (2, 850_000)


def test_damaged_waits_are_not_known(run_folder: Path) -> None:
    rank = run_folder / "rank0" / "rank.json"
    loader = {"workers": "two", "steps": -1, "waits_ns": "none"}
    rank.write_text(json.dumps({**json.loads(rank.read_text()), "loader": loader, "command": 3}))
    (run_folder / "run.json").write_text("{")
    case = open_case(run_folder / "rank0")
    assert case.measured_step_ns == 800_000
    assert case.timed is not None
    assert (case.timed.loader, case.timed.cores, case.timed.named_workers) == (None, None, None)


def test_the_rich_pass_named_itself_is_not_its_own_rich_pass(run_folder: Path) -> None:
    case = open_case(run_folder / "rank0" / "rich.json")
    assert (case.measured_step_ns, case.rich) == (800_000, None)


def test_what_the_caller_names_comes_first(run_folder: Path, tmp_path: Path) -> None:
    other = recording().write(tmp_path, "other.json")
    case = open_case(run_folder, step_ms=0.7, rich=other)
    assert case.measured_step_ns == 700_000
    assert case.rich is not None
    assert case.rich.whole.path == other


def test_a_recording_opens_beside_a_damaged_rich_pass(run_folder: Path) -> None:
    rank = run_folder / "rank0"
    (rank / "rich.json").write_text("no")
    case = open_case(rank / "light.json")
    assert (case.whole.path.name, case.rich) == ("light.json", None)


def test_a_recording_opens_beside_damaged_facts(run_folder: Path) -> None:
    """Both passes have their usual names; the measured step is not known."""
    rank = run_folder / "rank0"
    (rank / "rank.json").write_text("no")
    case = open_case(rank / "light.json")
    assert (case.whole.path.name, case.measured_step_ns) == ("light.json", None)
    assert case.rich is not None
    assert case.rich.whole.path.name == "rich.json"


def test_the_other_ranks_come_along(tmp_path: Path) -> None:
    for rank in range(2):
        about = {"backend": "nccl", "rank": rank, "world_size": 2}
        recording(distributedInfo=about).write(tmp_path, f"{rank}.json")
    case = open_case(tmp_path)
    assert case.whole.path.name == "0.json"
    assert [other.whole.path.name for other in case.other_ranks()] == ["1.json"]


def test_the_caller_reads(run_folder: Path) -> None:
    opened: list[str] = []

    def read(path: Path, _: Reading) -> Trace:
        opened.append(path.name)
        return open_trace(path, cache=False)

    case = open_case(run_folder, read=read)
    assert opened == ["light.json"]
    assert case.rich is not None
    assert opened == ["light.json", "rich.json"]


def test_steps_that_the_user_names_are_not_those_that_the_run_timed(run_folder: Path) -> None:
    case = open_case(run_folder, reading=Reading(step="ProfilerStep"))
    assert case.whole.meta["step_marks"]["source"] == "chosen"
    assert case.measured_step_ns is None
    assert case.timed is None


def test_several_recordings_must_be_told_apart(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        recording().write(tmp_path, name)
    with pytest.raises(UsageError, match=r"2 recordings in this folder, name one: a\.json, b\.json"):
        open_case(tmp_path)


def test_predict_takes_the_step_time_that_a_run_measured(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(run_folder), "--change", "scale kernel:gemm 0.5", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_ms"] == 0.8


def test_predict_of_a_named_gpu_that_was_given_no_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of 80 operators of 10 µs each and nothing else: half the host is half the step."""
    made = Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200", "numSms": 132}])
    for start in (0, 800, 1_600):
        made.step(start // 800, start, start + 800)
        for operator in range(80):
            made.op("aten::add", start + 10 * operator, start + 10 * operator + 10)
        made.runtime("cudaGetDevice", start + 798, start + 799)
    path = made.write(tmp_path)
    assert main(["predict", str(path), "--change", "scale host 0.5", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["speedup"]["point"] == pytest.approx(2, rel=0.05)
