"""The history of CUDA's allocator: when it is switched on and off, what is written, and what a failed allocation leaves."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capture.made_up_cuda import MIB, MadeUpCuda
from capture.programs import SOURCES, needs_torch

from foretrace.capture import out_of_memory
from foretrace.capture.options import CaptureOptions
from foretrace.capture.plan import make_plan
from foretrace.capture.run_folder import RunFolder
from foretrace.ingest.run_memory import DeviceMemory, FailedAllocation, MemoryStep, read_run_memory

pytestmark = needs_torch

RECORDED = ["peaks reset", "history all", "dump of 4 events", "history None"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr("foretrace.capture.environment.describe_process", dict)
    return RunFolder(tmp_path / "run").create()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> MadeUpCuda:
    monkeypatch.setattr(out_of_memory, "_attached", False)
    monkeypatch.setattr(out_of_memory, "_watching", [])
    return MadeUpCuda(lambda owner, name, value: monkeypatch.setattr(owner, name, value, raising=False))


def recorder_of(folder: RunFolder, *, oom: Any = None, **more: Any) -> Any:
    from foretrace.capture.recorder import Recorder

    chosen = {"wait": 2, "warmup": 0, "active": 4, "passes": (), "memory": True, **more}
    return Recorder(CaptureOptions(str(folder.path), **chosen), folder, 0, world_size=1, oom=oom)


def watch_of(folder: RunFolder, **more: Any) -> out_of_memory.OutOfMemory:
    watch = out_of_memory.OutOfMemory(CaptureOptions(str(folder.path), memory=True, **more), folder)
    watch.install()
    return watch


def run(recorder: Any, step: Callable[[], None], steps: int = 12) -> None:
    for _ in range(steps):
        step()
        recorder.step()


def facts_of(folder: RunFolder) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder.path / "rank0" / "rank.json").read_text())
    return facts


# --- the pass -----------------------------------------------------------------------------------------------


def test_history_is_on_for_whole_steps_then_dumped_then_off(
    folder: RunFolder, cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a made-up clock takes a second and allocates one block; steps 3 to 6 are recorded."""
    now = [1_790_000_000_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])

    def step() -> None:
        cuda.allocate()
        now[0] += 1_000_000_000

    run(recorder_of(folder), step)
    assert cuda.calls == RECORDED
    assert not cuda.recording
    assert cuda.settings == {"context": "alloc", "stacks": "python", "max_entries": 1_000_000}
    snapshot = folder.path / "rank0" / "memory.pickle"
    assert len(pickle.loads(snapshot.read_bytes())["device_traces"][0]) == 4
    facts = facts_of(folder)
    assert (facts["status"], facts["out_of_memory"]) == ("complete", None)
    read = read_run_memory(folder.path)
    assert read is not None
    assert read.snapshot == snapshot
    first = (
        1_790_000_000_000_000_000 + 3_000_000_000
    )  # step() is called at the end of each: the third one opens the pass
    second = 1_000_000_000
    assert read.steps == tuple(
        MemoryStep(3 + number, first + number * second, first + (number + 1) * second) for number in range(4)
    )
    (device,) = read.devices
    assert device == DeviceMemory(
        device=0, peak_allocated_bytes=500 * MIB, peak_reserved_bytes=800 * MIB, driver_free_bytes=200 * MIB,
        driver_total_bytes=1024 * MIB, before=device.before, after=device.after,
    )  # fmt: skip
    assert device.before["allocated_bytes.all.peak"] == 700 * MIB, "what the program's own peak was"
    assert device.after["allocation.all.allocated"] - device.before["allocation.all.allocated"] == 4
    assert read_run_memory(snapshot) == read_run_memory(folder.path / "rank0") == read


def test_a_disk_that_is_full_leaves_nothing_on(
    folder: RunFolder, cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def full(filename: str) -> None:
        Path(filename).write_bytes(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", full)
    run(recorder_of(folder), cuda.allocate)
    assert cuda.calls == ["peaks reset", "history all", "history None"]
    assert "No space left" in facts_of(folder)["reason"]
    assert os.listdir(folder.path / "rank0") == ["rank.json"]


def test_a_program_that_ends_within_the_pass_keeps_its_whole_steps(
    folder: RunFolder, cuda: MadeUpCuda
) -> None:
    recorder = recorder_of(folder)
    run(recorder, cuda.allocate, steps=5)
    cuda.allocate()  # the step that raises
    recorder.close("the program raised ValueError")
    assert cuda.calls == ["peaks reset", "history all", "dump of 3 events", "history None"]
    read = read_run_memory(folder.path)
    assert read is not None
    assert [each.step for each in read.steps] == [3, 4]
    assert "memory pass cut to 2 steps: the program raised ValueError" in facts_of(folder)["notes"]


def test_a_program_that_ends_in_its_first_step_leaves_nothing_on(folder: RunFolder, cuda: MadeUpCuda) -> None:
    recorder = recorder_of(folder)
    run(recorder, cuda.allocate, steps=3)
    assert cuda.recording
    recorder.close("the program raised ValueError")
    assert cuda.calls == ["peaks reset", "history all", "history None"]
    assert read_run_memory(folder.path) is None


def test_a_program_that_stops_after_the_capture_leaves_nothing_on(
    folder: RunFolder, cuda: MadeUpCuda
) -> None:
    with pytest.raises(SystemExit):
        run(recorder_of(folder, stop_after_capture=True), cuda.allocate)
    assert cuda.calls == RECORDED


def test_a_program_that_records_itself_is_left_alone(folder: RunFolder, cuda: MadeUpCuda) -> None:
    cuda.recording = True
    run(recorder_of(folder), cuda.allocate)
    assert cuda.calls == []
    assert cuda.recording
    assert "the program records the allocator's history itself" in facts_of(folder)["reason"]


def test_a_program_that_begins_to_record_within_the_pass_goes_on(folder: RunFolder, cuda: MadeUpCuda) -> None:
    import torch

    recorder = recorder_of(folder)
    run(recorder, cuda.allocate, steps=4)
    torch.cuda.memory._record_memory_history(max_entries=10)
    run(recorder, cuda.allocate, steps=4)
    assert cuda.calls == ["peaks reset", "history all", "history all", "dump of 4 events"]
    assert cuda.recording
    assert cuda.settings == {"max_entries": 10}


def test_a_program_that_ends_the_history_within_the_pass_is_told(folder: RunFolder, cuda: MadeUpCuda) -> None:
    import torch

    recorder = recorder_of(folder)
    run(recorder, cuda.allocate, steps=4)
    torch.cuda.memory._record_memory_history(enabled=None)
    run(recorder, cuda.allocate, steps=4)
    assert cuda.calls == ["peaks reset", "history all", "history None"]
    assert "the program switched the allocator's history off" in facts_of(folder)["reason"]


def test_many_allocations_make_fewer_steps(folder: RunFolder, cuda: MadeUpCuda) -> None:
    """20,000 blocks a step are 60,000 events: a fifth step would go beyond 250,000; 200,000 blocks end it before four."""
    run(recorder_of(folder, active=8), lambda: cuda.allocate(20_000), steps=20)
    read = read_run_memory(folder.path)
    assert read is not None
    assert len(read.steps) == 4


def test_history_that_torch_would_forget_is_not_made(folder: RunFolder, cuda: MadeUpCuda) -> None:
    run(recorder_of(folder, active=8), lambda: cuda.allocate(200_000), steps=20)
    read = read_run_memory(folder.path)
    assert read is not None
    assert len(read.steps) == 1, "two would be 1.2 million events"


def test_at_least_four_steps_are_planned() -> None:
    for step_s, steps in ((0.001, 8), (0.5, 4), (3.0, 4)):
        plan = make_plan(CaptureOptions("x", memory=True), at=0, step_ns=step_s * 1e9, ranks=1)
        assert [each.active for each in plan.passes if each.kind == "memory"] == [steps]


def test_without_a_gpu_one_line_says_so(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from foretrace.commands import run as command

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    run(recorder_of(folder), lambda: None)
    command._say_what_was_recorded(RunFolder.read(folder.path), 1.0, command._say)
    assert [line for line in capsys.readouterr().err.splitlines() if "CUDA" in line] == [
        "foretrace: rank 0: partial (memory pass left out: there is no CUDA allocator in this program, which has used "
        "no GPU so far)"
    ]


# --- a failed allocation ------------------------------------------------------------------------------------


def failing(cuda: MadeUpCuda) -> None:
    import torch

    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 900\.00 MiB"):
        cuda.fail()


def test_a_failed_allocation_leaves_one_snapshot(folder: RunFolder, cuda: MadeUpCuda) -> None:
    """In step 4, with the history of step 3 and its own; the second failure is only counted."""
    recorder = recorder_of(folder, oom=watch_of(folder))
    run(recorder, cuda.allocate, steps=4)
    cuda.allocate()
    failing(cuda)
    written = (folder.path / "rank0" / "oom.pickle").stat().st_mtime_ns
    failing(cuda)
    run(recorder, cuda.allocate, steps=6)
    assert (folder.path / "rank0" / "oom.pickle").stat().st_mtime_ns == written
    assert not cuda.recording
    read = read_run_memory(folder.path)
    assert read is not None
    failed = read.failed
    assert failed is not None
    assert failed == FailedAllocation(
        snapshot=folder.path / "rank0" / "oom.pickle", why_no_snapshot=None, at_ns=failed.at_ns, step=4, device=0,
        asked_bytes=900 * MIB, limit_bytes=1024 * MIB, driver_free_bytes=200 * MIB, history=True, stack=failed.stack,
        count=2,
    )  # fmt: skip
    assert abs((failed.at_ns or 0) - time.time_ns()) < 60e9
    assert [function for _, _, function in failed.stack[:2]] == ["fail", "failing"]
    assert Path(failed.stack[1][0]) == Path(__file__)
    assert len(pickle.loads((folder.path / "rank0" / "oom.pickle").read_bytes())["device_traces"][0]) == 2
    assert len(read.steps) == 4, "the program went on, and so did the pass"


@pytest.mark.parametrize(("steps", "failed_in"), [(2, 2), (12, None)])
def test_before_and_after_the_pass_there_is_no_history(
    folder: RunFolder, cuda: MadeUpCuda, steps: int, failed_in: int | None
) -> None:
    """Once everything is recorded, steps are no longer counted."""
    recorder = recorder_of(folder, oom=watch_of(folder))
    run(recorder, cuda.allocate, steps=steps)
    failing(cuda)
    failed = facts_of(folder)["out_of_memory"]
    assert (failed["file"], failed["history"], failed["step"]) == ("oom.pickle", False, failed_in)
    assert pickle.loads((folder.path / "rank0" / "oom.pickle").read_bytes())["segments"]


def test_before_any_step_the_run_says_so(folder: RunFolder, cuda: MadeUpCuda) -> None:
    watch_of(folder)
    failing(cuda)
    facts = facts_of(folder)
    assert (facts["status"], facts["passes"]) == ("partial", [])
    assert "ran out of memory before a step was found" in facts["reason"]
    read = read_run_memory(folder.path)
    assert read is not None
    assert read.failed is not None
    assert (read.snapshot, read.steps, read.failed.asked_bytes) == (None, (), 900 * MIB)


def test_a_snapshot_at_a_failure_is_small(
    folder: RunFolder, cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long history the last events are kept; where that is still too much, none."""
    cuda.recording = True
    for _ in range(1000):
        cuda.allocate()
    path = folder.path / "x.pickle"
    monkeypatch.setattr(out_of_memory, "_MOST_ENTRIES", 10)
    assert out_of_memory.write_snapshot(path)
    (kept,) = pickle.loads(path.read_bytes())["device_traces"]
    assert [each["addr"] for each in kept] == list(range(991, 1001))
    monkeypatch.setattr(out_of_memory, "_MOST_BYTES", 200)
    assert not out_of_memory.write_snapshot(path)
    assert pickle.loads(path.read_bytes())["device_traces"] == [[]]
    monkeypatch.setattr(out_of_memory, "_MOST_BYTES", 10)
    with pytest.raises(Exception, match="larger than"):
        out_of_memory.write_snapshot(folder.path / "y.pickle")
    assert os.listdir(folder.path) == ["x.pickle"]


def test_a_snapshot_that_cannot_be_made_changes_nothing(
    folder: RunFolder, cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def broken() -> None:
        raise RuntimeError("no snapshot here")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", broken)
    watch_of(folder)
    failing(cuda)
    failed = facts_of(folder)["out_of_memory"]
    assert (failed["file"], failed["why_no_file"]) == (None, "RuntimeError: no snapshot here")


def test_ranks_that_were_not_chosen_write_nothing(folder: RunFolder, cuda: MadeUpCuda) -> None:
    watch_of(folder, ranks=(7,))
    failing(cuda)
    assert os.listdir(folder.path) == []


def test_a_closed_watch_writes_nothing(folder: RunFolder, cuda: MadeUpCuda) -> None:
    watch_of(folder).close()
    failing(cuda)
    assert os.listdir(folder.path) == []


# --- the command --------------------------------------------------------------------------------------------

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import foretrace
import torch
from capture.made_up_cuda import MadeUpCuda
torch.set_num_threads(1)
cuda = MadeUpCuda()
torch.cuda._queued_calls[-1][0]()  # CUDA begins: what was left to do then, Foretrace's last
for step in range(9):
    cuda.allocate()
    foretrace.step()
if len(sys.argv) > 1:
    cuda.fail()
print("recording" if cuda.recording else "off", cuda.calls)
"""


def recorded(tmp_path: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(program)
    options = ["-o", "run", "--wait", "1", "--warmup", "0", "--active", "1", "--passes", "light", "--memory"]
    return subprocess.run(
        [sys.executable, "-m", "foretrace", "run", *options, "--", sys.executable, "program.py", *arguments],
        capture_output=True, text=True, cwd=tmp_path, check=False, timeout=240,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_run_says_where_the_snapshot_lies(tmp_path: Path) -> None:
    done = recorded(tmp_path, PROGRAM.format(tests=str(Path(__file__).parents[1])), "fail")
    assert done.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 900.00 MiB" in done.stderr
    says = (
        "foretrace: rank 0: device 0 ran out of memory: 900.0 MiB asked for, 200.0 MiB free beside what torch holds; "
        "snapshot: run/rank0/oom.pickle"
    )
    assert [line for line in done.stderr.splitlines() if "ran out of memory" in line] == [says]
    read = read_run_memory(tmp_path / "run")
    assert read is not None
    assert read.failed is not None
    assert (len(read.steps), read.failed.step, read.failed.stack[1][2]) == (1, None, "<module>")
