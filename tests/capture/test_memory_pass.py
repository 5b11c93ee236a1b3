"""The history of CUDA's allocator: when it is switched on and off, and what is written of it."""

from __future__ import annotations

import argparse
import os
import pickle
import time
from pathlib import Path

import pytest

from foretrace.capture import arguments
from foretrace.capture.api import profile
from foretrace.capture.memory_pass import SetUpStacks
from foretrace.capture.options import CaptureOptions
from foretrace.capture.plan import make_plan
from foretrace.capture.run_folder import RunFolder
from foretrace.errors import InputError
from foretrace.ingest.run import find_recorded
from foretrace.ingest.run_memory import DeviceMemory, MemoryStep, read_run_memory
from tests.capture.made_up_cuda import MIB, MadeUpCuda, facts_of, recorder_of, take_steps
from tests.capture.programs import needs_torch

pytestmark = needs_torch

RECORDED = ["peaks reset", "history all", "dump of 4 events", "history None"]


def test_history_is_on_for_whole_steps_then_dumped_then_off(
    new_run: RunFolder, cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a made-up clock takes a second and allocates one block; steps 3 to 6 are recorded."""
    now = [1_790_000_000_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])

    def step() -> None:
        cuda.allocate()
        now[0] += 1_000_000_000

    take_steps(recorder_of(new_run), step)
    assert cuda.calls == RECORDED
    assert not cuda.recording
    assert cuda.settings == {"context": "alloc", "stacks": "python", "max_entries": 1_000_000}
    snapshot = new_run.path / "rank0" / "memory.pickle"
    assert len(pickle.loads(snapshot.read_bytes())["device_traces"][0]) == 4
    facts = facts_of(new_run)
    assert (facts["status"], facts["out_of_memory"]) == ("complete", None)
    read = read_run_memory(new_run.path)
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
    assert read_run_memory(snapshot) == read_run_memory(new_run.path / "rank0") == read


def test_a_disk_that_is_full_leaves_nothing_on(
    new_run: RunFolder, cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def full(filename: str) -> None:
        Path(filename).write_bytes(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", full)
    take_steps(recorder_of(new_run), cuda.allocate)
    assert cuda.calls == ["peaks reset", "history all", "history None"]
    assert "No space left" in facts_of(new_run)["reason"]
    assert os.listdir(new_run.path / "rank0") == ["rank.json"]


def test_a_program_that_ends_within_the_pass_keeps_its_whole_steps(
    new_run: RunFolder, cuda: MadeUpCuda
) -> None:
    recorder = recorder_of(new_run)
    take_steps(recorder, cuda.allocate, steps=5)
    cuda.allocate()  # the step that raises
    recorder.close("the program raised ValueError")
    assert cuda.calls == ["peaks reset", "history all", "dump of 3 events", "history None"]
    read = read_run_memory(new_run.path)
    assert read is not None
    assert [each.step for each in read.steps] == [3, 4]
    assert "memory pass cut to 2 steps: the program raised ValueError" in facts_of(new_run)["notes"]


def test_a_program_that_ends_in_its_first_step_leaves_nothing_on(
    new_run: RunFolder, cuda: MadeUpCuda
) -> None:
    recorder = recorder_of(new_run)
    take_steps(recorder, cuda.allocate, steps=3)
    assert cuda.recording
    recorder.close("the program raised ValueError")
    assert cuda.calls == ["peaks reset", "history all", "history None"]
    assert read_run_memory(new_run.path) is None


def test_a_program_that_stops_after_the_capture_leaves_nothing_on(
    new_run: RunFolder, cuda: MadeUpCuda
) -> None:
    with pytest.raises(SystemExit):
        take_steps(recorder_of(new_run, stop_after_capture=True), cuda.allocate)
    assert cuda.calls == RECORDED


def test_a_program_that_records_itself_is_left_alone(new_run: RunFolder, cuda: MadeUpCuda) -> None:
    cuda.recording = True
    take_steps(recorder_of(new_run), cuda.allocate)
    assert cuda.calls == []
    assert cuda.recording
    assert "the program records the allocator's history itself" in facts_of(new_run)["reason"]


def test_a_program_that_begins_to_record_within_the_pass_goes_on(
    new_run: RunFolder, cuda: MadeUpCuda
) -> None:
    import torch

    recorder = recorder_of(new_run)
    take_steps(recorder, cuda.allocate, steps=4)
    torch.cuda.memory._record_memory_history(max_entries=10)
    take_steps(recorder, cuda.allocate, steps=4)
    assert cuda.calls == ["peaks reset", "history all", "history all", "dump of 4 events"]
    assert cuda.recording
    assert cuda.settings == {"max_entries": 10}


def test_a_program_that_ends_the_history_within_the_pass_is_told(
    new_run: RunFolder, cuda: MadeUpCuda
) -> None:
    import torch

    recorder = recorder_of(new_run)
    take_steps(recorder, cuda.allocate, steps=4)
    torch.cuda.memory._record_memory_history(enabled=None)
    take_steps(recorder, cuda.allocate, steps=4)
    assert cuda.calls == ["peaks reset", "history all", "history None"]
    assert "the program switched the allocator's history off" in facts_of(new_run)["reason"]


def test_many_allocations_make_fewer_steps(new_run: RunFolder, cuda: MadeUpCuda) -> None:
    """20,000 blocks a step are 60,000 events: a fifth step would go beyond 250,000; 200,000 blocks end it before four."""
    take_steps(recorder_of(new_run, active=8), lambda: cuda.allocate(20_000), steps=20)
    read = read_run_memory(new_run.path)
    assert read is not None
    assert len(read.steps) == 4


def test_history_that_torch_would_forget_is_not_made(new_run: RunFolder, cuda: MadeUpCuda) -> None:
    take_steps(recorder_of(new_run, active=8), lambda: cuda.allocate(200_000), steps=20)
    read = read_run_memory(new_run.path)
    assert read is not None
    assert len(read.steps) == 1, "two would be 1.2 million events"


def test_at_least_four_steps_are_planned() -> None:
    for step_s, steps in ((0.001, 8), (0.5, 4), (3.0, 4)):
        plan = make_plan(CaptureOptions("x", memory=True), at=0, step_ns=step_s * 1e9, ranks=1)
        assert [each.active for each in plan.passes if each.kind == "memory"] == [steps]


def test_without_a_gpu_one_line_says_so(
    new_run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from foretrace.commands import run as command

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    take_steps(recorder_of(new_run), lambda: None)
    command._say_what_was_recorded(RunFolder.read(new_run.path), 1.0, command._say)
    assert [line for line in capsys.readouterr().err.splitlines() if "CUDA" in line] == [
        "foretrace: rank 0: partial (memory pass left out: there is no CUDA allocator in this program, which has used "
        "no GPU so far)"
    ]


def test_what_is_allocated_before_the_first_step_has_stacks(cuda: MadeUpCuda) -> None:
    stacks = SetUpStacks()
    stacks.install()
    assert (cuda.recording, cuda.settings) == (True, {"context": "state", "stacks": "python"})
    stacks.end()
    stacks.end()
    assert cuda.calls == ["history state", "history None"]


def test_a_worker_switches_nothing_off(cuda: MadeUpCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the process, as workers of a DataLoader are, has no CUDA: torch would raise."""
    stacks = SetUpStacks()
    stacks.install()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    stacks.end()
    assert cuda.calls == ["history state"]


def test_a_program_that_records_from_its_start_is_left_alone(cuda: MadeUpCuda) -> None:
    """Whether it begins before CUDA does, or after."""
    import torch

    cuda.recording = True
    earlier = SetUpStacks()
    earlier.install()
    earlier.end()
    assert (cuda.recording, cuda.calls) == (True, [])
    cuda.recording = False
    later = SetUpStacks()
    later.install()
    torch.cuda.memory._record_memory_history(max_entries=10)
    later.end()
    assert (cuda.recording, cuda.calls) == (True, ["history state", "history all"])


def test_memory_can_be_the_only_pass() -> None:
    parser = argparse.ArgumentParser()
    arguments.add(parser)

    def asked(*words: str) -> tuple[tuple[str, ...], bool]:
        options = arguments.options(parser.parse_args(words), output="x")
        return options.passes, options.memory

    assert asked("--passes", "memory") == ((), True)
    assert asked("--memory") == asked("--passes", "light,rich,memory") == (("light", "rich"), True)
    assert asked() == (("light", "rich"), False)
    options = profile(passes="memory")._options
    assert (options.passes, options.memory) == ((), True)


def test_a_run_of_memory_alone_says_so(new_run: RunFolder, cuda: MadeUpCuda) -> None:
    take_steps(recorder_of(new_run), cuda.allocate)
    with pytest.raises(InputError, match=r"only memory was recorded: foretrace memory .*memory\.pickle"):
        find_recorded(new_run.path)
