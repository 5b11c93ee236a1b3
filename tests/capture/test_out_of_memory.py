"""An allocation that fails leaves a snapshot, once, and the program's error goes on."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from foretrace.capture import out_of_memory
from foretrace.capture.options import CaptureOptions
from foretrace.capture.run_folder import RunFolder
from foretrace.ingest.run_memory import FailedAllocation, read_run_memory
from tests.capture.made_up_cuda import MIB, MadeUpCuda, facts_of, recorder_of, take_steps
from tests.capture.programs import SOURCES, needs_torch

pytestmark = needs_torch


def watch_of(new_run: RunFolder, **more: Any) -> out_of_memory.OutOfMemory:
    watch = out_of_memory.OutOfMemory(CaptureOptions(str(new_run.path), memory=True, **more), new_run)
    watch.install()
    return watch


def failing(cuda: MadeUpCuda) -> None:
    import torch

    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 900\.00 MiB"):
        cuda.fail()


def test_a_failed_allocation_leaves_one_snapshot(new_run: RunFolder, cuda: MadeUpCuda) -> None:
    """In step 4, with the history of step 3 and its own; the second failure is only counted."""
    recorder = recorder_of(new_run, oom=watch_of(new_run))
    take_steps(recorder, cuda.allocate, steps=4)
    cuda.allocate()
    failing(cuda)
    written = (new_run.path / "rank0" / "oom.pickle").stat().st_mtime_ns
    failing(cuda)
    take_steps(recorder, cuda.allocate, steps=6)
    assert (new_run.path / "rank0" / "oom.pickle").stat().st_mtime_ns == written
    assert not cuda.recording
    read = read_run_memory(new_run.path)
    assert read is not None
    failed = read.failed
    assert failed is not None
    assert failed == FailedAllocation(
        snapshot=new_run.path / "rank0" / "oom.pickle", why_no_snapshot=None, at_ns=failed.at_ns, step=4, device=0,
        asked_bytes=900 * MIB, limit_bytes=1024 * MIB, driver_free_bytes=200 * MIB, history=True, stack=failed.stack,
        count=2,
    )  # fmt: skip
    assert abs((failed.at_ns or 0) - time.time_ns()) < 60e9
    assert [function for _, _, function in failed.stack[:2]] == ["fail", "failing"]
    assert Path(failed.stack[1][0]) == Path(__file__)
    assert len(pickle.loads((new_run.path / "rank0" / "oom.pickle").read_bytes())["device_traces"][0]) == 2
    assert len(read.steps) == 4, "the program went on, and so did the pass"


@pytest.mark.parametrize(("steps", "failed_in"), [(2, 2), (12, None)])
def test_before_and_after_the_pass_there_is_no_history(
    new_run: RunFolder, cuda: MadeUpCuda, steps: int, failed_in: int | None
) -> None:
    """Once everything is recorded, steps are no longer counted."""
    recorder = recorder_of(new_run, oom=watch_of(new_run))
    take_steps(recorder, cuda.allocate, steps=steps)
    failing(cuda)
    failed = facts_of(new_run)["out_of_memory"]
    assert (failed["file"], failed["history"], failed["step"]) == ("oom.pickle", False, failed_in)
    assert pickle.loads((new_run.path / "rank0" / "oom.pickle").read_bytes())["segments"]


def test_before_any_step_the_run_says_so(new_run: RunFolder, cuda: MadeUpCuda) -> None:
    watch_of(new_run)
    failing(cuda)
    facts = facts_of(new_run)
    assert (facts["status"], facts["passes"]) == ("partial", [])
    assert "ran out of memory before a step was found" in facts["reason"]
    read = read_run_memory(new_run.path)
    assert read is not None
    assert read.failed is not None
    assert (read.snapshot, read.steps, read.failed.asked_bytes) == (None, (), 900 * MIB)


def test_a_snapshot_at_a_failure_is_small(
    new_run: RunFolder, cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long history the last events are kept; where that is still too much, none."""
    cuda.recording = True
    for _ in range(1000):
        cuda.allocate()
    path = new_run.path / "x.pickle"
    monkeypatch.setattr(out_of_memory, "_MOST_ENTRIES", 10)
    assert out_of_memory.write_snapshot(path)
    (kept,) = pickle.loads(path.read_bytes())["device_traces"]
    assert [each["addr"] for each in kept] == list(range(991, 1001))
    monkeypatch.setattr(out_of_memory, "_MOST_BYTES", 200)
    assert not out_of_memory.write_snapshot(path)
    assert pickle.loads(path.read_bytes())["device_traces"] == [[]]
    monkeypatch.setattr(out_of_memory, "_MOST_BYTES", 10)
    with pytest.raises(Exception, match="larger than"):
        out_of_memory.write_snapshot(new_run.path / "y.pickle")
    assert os.listdir(new_run.path) == ["x.pickle"]


def test_a_snapshot_that_cannot_be_made_changes_nothing(
    new_run: RunFolder, cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def broken() -> None:
        raise RuntimeError("no snapshot here")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", broken)
    watch_of(new_run)
    failing(cuda)
    failed = facts_of(new_run)["out_of_memory"]
    assert (failed["file"], failed["why_no_file"]) == (None, "RuntimeError: no snapshot here")


def test_a_copy_of_the_process_leaves_the_facts_of_the_recorded_one(
    new_run: RunFolder, cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recorder_of(new_run, oom=watch_of(new_run))
    take_steps(recorder, cuda.allocate)
    before = facts_of(new_run)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    failing(cuda)
    assert facts_of(new_run) == before
    assert (new_run.path / "rank0" / "oom.pickle").is_file()


def test_another_process_of_the_rank_writes_no_second_one(new_run: RunFolder, cuda: MadeUpCuda) -> None:
    first = new_run.rank_folder(0) / "oom.pickle"
    first.write_bytes(b"of the other one")
    watch_of(new_run)
    failing(cuda)
    assert first.read_bytes() == b"of the other one"
    assert "another process" in facts_of(new_run)["out_of_memory"]["why_no_file"]


def test_ranks_that_were_not_chosen_write_nothing(new_run: RunFolder, cuda: MadeUpCuda) -> None:
    watch_of(new_run, ranks=(7,))
    failing(cuda)
    assert os.listdir(new_run.path) == []


def test_a_closed_watch_writes_nothing(new_run: RunFolder, cuda: MadeUpCuda) -> None:
    watch_of(new_run).close()
    failing(cuda)
    assert os.listdir(new_run.path) == []


# --- the command --------------------------------------------------------------------------------------------

PROGRAM = """
import sys
sys.path.insert(0, {root!r})
import foretrace
import torch
from tests.capture.made_up_cuda import MadeUpCuda
torch.set_num_threads(1)
cuda = MadeUpCuda()
for call, _ in torch.cuda._queued_calls[-2:]:  # CUDA begins: what Foretrace left to do then
    call()
for step in range(9):
    cuda.allocate()
    foretrace.step()
print(cuda.calls)
cuda.fail()
"""


def recorded(tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(program)
    options = ["-o", "run", "--wait", "1", "--warmup", "0", "--active", "1", "--passes", "light", "--memory"]
    return subprocess.run(
        [sys.executable, "-m", "foretrace", "run", *options, "--", sys.executable, "program.py"],
        capture_output=True, text=True, cwd=tmp_path, check=False, timeout=240,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_run_says_where_the_snapshot_lies(tmp_path: Path) -> None:
    done = recorded(tmp_path, PROGRAM.format(root=str(Path(__file__).parents[2])))
    assert done.returncode == 1
    calls = [
        "history state",
        "history None",
        "peaks reset",
        "history all",
        "dump of 1 events",
        "history None",
    ]
    assert done.stdout.splitlines()[0] == str(calls)
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
