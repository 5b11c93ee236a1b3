"""Programs that are still warming up when they are timed: noticed, timed anew, said. Others are left alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretrace.capture.recorder import Recorder
from foretrace.capture.run_folder import RunFolder
from foretrace.capture.settled import compare, fell
from foretrace.capture.timing import StepTimes, summarise
from foretrace.capture.timings import Timings
from foretrace.capture.watch import Watch
from tests.capture.programs import SOURCES, needs_torch
from tests.capture.test_recorder import fast, rank_facts

SLOW_STEPS = 128
# Its steps are told apart by what they sleep; it says what the last 300 took, which nothing disturbs any more: the
# shortest and the longest mean of 50 of them, since another program may take the processor meanwhile.
SLOW_START = f"""
import sys, time, torch
torch.set_num_threads(1)
slow_s, fast_s, steps = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ends = []
for step in range(steps):
    model(torch.ones(8, 16)).square().mean().backward()
    time.sleep(slow_s if step < {SLOW_STEPS} else fast_s)
    optimizer.step()
    ends.append(time.perf_counter())
means = [(ends[-at] - ends[-at - 50]) / 50 for at in range(1, 300, 50)]
print(min(means), max(means))
"""


def times(*blocks_ms: float) -> StepTimes:
    found = summarise([(round(block * 1e6), 10) for block in blocks_ms], "")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("first", "again", "light_ms", "verdict"),
    [
        ([80] * 5, [15] * 5, 23, "faster"),  # generate(), timed before it settled
        ([80, 81, 79, 80, 45, 15, 15, 15, 15], [15] * 5, 23, "faster"),  # the timing held both
        ([20] * 5, [20] * 5, 30, "steady"),  # recording costs time
        ([20] * 5, [28] * 5, 30, "slower"),  # the profiler may have left the host slower
        ([0.93, 1.01, 1.08], [0.9, 0.92, 0.88], 1.5, "steady"),  # a busy machine: they vary by more than that
        ([100, 80, 60], [20] * 5, 30, "faster"),
        ([20] * 5, [19] * 5, 30, "steady"),  # a host differs by a few percent from second to second
        ([60, 180, 70, 160, 65], [90, 62, 85], 110, "steady"),  # bursts
        ([60, 180, 70, 160, 75], [90, 62, 85], 15, "beaten"),  # the loader's buffer was still full
        ([75] * 5, None, 15, "beaten"),
        ([61, 82, 66, 79, 59], [48, 66, 52, 44, 60], 50, "calmer"),  # a busy machine, and less so later
        ([75] * 5, None, 90, "once"),
        ([75] * 5, [75] * 5, None, "steady"),
    ],
)
def test_what_two_timings_say_of_each_other(
    first: list[float], again: list[float] | None, light_ms: float | None, verdict: str
) -> None:
    found = compare(
        times(*first), times(*again) if again else None, light_ns=light_ms * 1e6 if light_ms else None
    )
    assert found.verdict == verdict
    assert bool(found.says) == (verdict in ("faster", "slower", "beaten", "calmer"))


def test_what_was_found_is_said_with_its_figures() -> None:
    found = compare(times(*[80.0] * 5), times(*[15.0] * 5), light_ns=23e6)
    assert found.says == (
        "steps took 80 ms without the profiler at first, 15 ms after the passes: the program was still warming up, "
        "and the later time is used"
    )
    found = compare(times(60, 180, 75, 160, 70), times(90, 62, 85), light_ns=15e6)
    assert found.says == (
        "steps took 75 ms without the profiler at first, 85 ms after the passes, 15 ms under it: the machine was "
        "busy, steps differ, or it had not settled; the first time is used"
    )


def test_the_later_time_is_used_where_the_machine_was_busier_at_first() -> None:
    timings = Timings()
    timings.begin(times(61, 82, 66, 79, 59))
    says = timings.judge(times(48, 66, 52, 44, 60), 50e6)
    assert says == (
        "steps took 66 ms without the profiler at first, 52 ms after the passes, 50 ms under it: the machine was busier "
        "at first, and the later time is used"
    )
    assert timings.to_dict()["unprofiled"]["median_ns"] == 52e6


def waiting(step_ms: float, wait_ms: float, *, workers: int = 2, waiting_steps: int = 20) -> StepTimes:
    """A timing of 50 steps, some of which wait for data; `wait_ms` is the mean of all."""
    loader = {
        "workers": workers, "steps": 50, "waiting_steps": waiting_steps,
        "step_ns": step_ms * 1e6, "mean_ns": wait_ms * 1e6,
    }  # fmt: skip
    return replace(times(*[step_ms] * 5), loader=loader)


@pytest.mark.parametrize(
    ("first", "again", "light_ms", "verdict"),
    [
        (
            waiting(80, 60),
            waiting(25, 5),
            30,
            "waited",
        ),  # workers filled their buffers while a pass was written
        (waiting(80, 60), times(*[20.0] * 5), 30, "waited"),  # all batches were there
        (waiting(80, 60, workers=0), waiting(25, 5, workers=0), 30, "waited"),  # bursts of the main process
        (waiting(80, 20), waiting(20, 5), 90, "faster"),  # its work took 60 ms, and takes 15 ms
        (waiting(80, 60, workers=0, waiting_steps=50), waiting(25, 5, workers=0), 90, "waited"),
        (
            waiting(80, 60, workers=0, waiting_steps=50),
            waiting(25, 5, workers=0, waiting_steps=50),
            90,
            "faster",  # the program makes each batch itself, and has become faster at it
        ),
        (waiting(25, 5), waiting(80, 60), 30, "waited"),
        (waiting(25, 5), waiting(80, 5), 90, "slower"),
        (waiting(80, 60), waiting(80, 60), 22, "waited"),  # recorded while there were enough batches
        (waiting(80, 60), waiting(80, 60), 15, "beaten"),  # shorter than what a step takes besides its wait
        (waiting(80, 60), None, 22, "waited"),
        (waiting(80, 60), waiting(78, 58), 85, "steady"),
    ],
)
def test_waits_for_data_are_no_warm_up(
    first: StepTimes, again: StepTimes | None, light_ms: float, verdict: str
) -> None:
    assert compare(first, again, light_ns=light_ms * 1e6).verdict == verdict


def test_waits_that_differ_are_said() -> None:
    found = compare(waiting(80, 60), waiting(25, 5), light_ns=30e6)
    assert found.says == (
        "steps took 80 ms without the profiler at first, 25 ms after the passes, 30 ms under it: waits for data "
        "differ (60 ms a step at first), and the first time is used"
    )


def test_one_slow_block_is_no_slow_start() -> None:
    assert not fell(times(90, 20, 24, 20, 24), times(20, 21, 20))
    assert not fell(times(30, 18, 31, 17, 32), times(19, 19, 19)), "long and short steps take turns"


def test_a_watch_wants_shorter_steps_for_a_while() -> None:
    watch = Watch(low_ns=20e6, began_ns=0, until_ns=10e9)
    at_ns, seen = 0, []
    lengths_ms = [20] * 100 + [10] * 60 + [30] * 20 + [10] * 400
    for number, length_ms in enumerate(lengths_ms):
        at_ns += length_ms * 1_000_000
        if watch.step(at_ns):
            seen.append(number)
    assert seen
    assert seen[0] == pytest.approx(180 + 150, abs=30), "three blocks of half a second after the long steps"
    assert not watch.over(10_000_000_000)
    assert watch.over(10_000_000_001)


# --- recorded -----------------------------------------------------------------------------------------------


def recorded(
    folder: Path, *options: str, slow_s: float, fast_s: float, steps: int
) -> tuple[dict[str, Any], tuple[float, float], str]:
    """What `foretrace run` says of a program with a slow start, what its last steps took, and what was printed."""
    (folder / "slow_start.py").write_text(SLOW_START)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORETRACE")}
    program = [sys.executable, "slow_start.py", str(slow_s), str(fast_s), str(steps)]
    done = subprocess.run(
        [sys.executable, "-m", "foretrace", "run", "-o", "run", *options, "--", *program],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**kept, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"},
        timeout=240,
        check=True,
    )
    facts: dict[str, Any] = json.loads((folder / "run" / "rank0" / "rank.json").read_text())
    shortest, longest = (float(word) * 1e9 for word in done.stdout.split()[:2])
    return facts, (shortest, longest), done.stdout + done.stderr


@needs_torch
def test_a_slow_start_of_128_steps_is_noticed_after_the_passes(tmp_path: Path) -> None:
    """Timed within its first 2.6 s, and settled when the passes are over.

    A machine that is busy in that time makes the recorder wait, and then it times settled steps at once: once more.
    """
    pytest.importorskip("polars")
    for _ in range(3):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        facts, (low_ns, high_ns), printed = recorded(tmp_path, slow_s=0.02, fast_s=0.004, steps=1800)
        if facts["timed_first"]["median_ns"] > 2 * high_ns:
            break
    assert facts["timed_first"]["median_ns"] > 2 * high_ns
    assert facts["unprofiled"] == facts["timed_again"]
    assert 0.9 * low_ns <= facts["unprofiled"]["median_ns"] <= 1.1 * high_ns
    assert facts["settling"]["verdict"] == "faster"
    assert facts["settling"]["light_settled"]
    light, rich = facts["passes"]
    assert (light["kind"], light["file"], rich["kind"]) == ("light", "light.json", "rich")
    assert light["first_step"] > SLOW_STEPS
    assert facts["status"] == "complete"
    names = sorted(file.name for file in (tmp_path / "run" / "rank0").iterdir())
    assert names == ["light.json", f"lines-{facts['lines']['pid']}.jsonl.gz", "rank.json", "rich.json"]
    assert facts["settling"]["says"] in facts["notes"]
    assert f"foretrace: {facts['settling']['says']}" in printed

    from foretrace.analyze.trust import judge
    from foretrace.diagnose.opening import open_case

    case = open_case(tmp_path / "run")
    assert case.measured_step_ns == facts["unprofiled"]["median_ns"]
    (note,) = [note for note in judge(case.whole).notes if note.code == "warming-up"]
    assert (note.severity, note.values["timed_again_ns"]) == ("info", facts["timed_again"]["median_ns"])


@needs_torch
def test_a_slow_start_that_outlasts_the_capture_is_noticed_while_the_program_goes_on(tmp_path: Path) -> None:
    """128 steps of 50 ms are 6.4 s, and all of the capture: the program is watched."""
    quick = ("--settle-s", "0.1", "--time-s", "0.5", "--warm-s", "0.05", "--quiet")
    facts, (low_ns, high_ns), _ = recorded(tmp_path, *quick, slow_s=0.05, fast_s=0.01, steps=900)
    assert facts["timed_first"]["median_ns"] > 2 * high_ns
    assert 0.9 * low_ns <= facts["unprofiled"]["median_ns"] <= 1.1 * high_ns
    light, rich = facts["passes"]
    assert light["first_step"] > SLOW_STEPS > rich["first_step"]
    assert (facts["status"], facts["settling"]["light_settled"]) == ("complete", True)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    return RunFolder(tmp_path / "run").create()


class Program:
    """Its steps take as long as it says by a clock of its own: a busy machine cannot make them differ."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000_000
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now_ns)

    def step(self, recorder: Recorder, step_ms: float, recorded_ms: float | None = None) -> None:
        import torch

        torch.ones(8, 8) @ torch.ones(8, 8)
        if recorded_ms is not None and torch.autograd._profiler_enabled():
            step_ms = recorded_ms
        self.now_ns += round(step_ms * 1e6)
        recorder.step()

    def drive(self, recorder: Recorder, step_ms: float, recorded_ms: float | None = None) -> None:
        for _ in range(20_000):
            if recorder.done:
                return
            self.step(recorder, step_ms, recorded_ms)
        raise AssertionError("it never ended")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(monkeypatch)


def test_steps_that_only_the_profiler_slows_down_are_left_alone(folder: RunFolder, program: Program) -> None:
    recorder = Recorder(fast(folder.path, time_s=0.5), folder, 0)
    program.drive(recorder, 1, recorded_ms=3)
    facts = rank_facts(folder)
    assert facts["passes"][0]["step_ns"] == pytest.approx(3_000_000, rel=0.01)
    assert facts["unprofiled"] == facts["timed_first"]
    assert facts["unprofiled"]["median_ns"] == facts["timed_again"]["median_ns"] == 1_000_000
    assert facts["settling"]["verdict"] == "steady"
    assert [each["kind"] for each in facts["passes"]] == ["light", "rich"]
    assert facts["status"] == "complete"


def test_a_program_that_ends_before_it_is_timed_again_is_complete(
    folder: RunFolder, program: Program
) -> None:
    recorder = Recorder(fast(folder.path), folder, 0)
    while len(recorder._kept.passes) < 2:
        program.step(recorder, 1, recorded_ms=3)
    recorder.close("the program ended")
    facts = rank_facts(folder)
    assert (facts["status"], facts["reason"], facts["timed_again"]) == ("complete", "", None)
    assert facts["settling"]["verdict"] == "once"
    assert facts["unprofiled"] == facts["timed_first"]


def test_a_step_longer_than_the_same_step_under_the_profiler_is_noticed(
    folder: RunFolder, program: Program
) -> None:
    recorder = Recorder(fast(folder.path), folder, 0)
    while len(recorder._kept.passes) < 2:
        program.step(recorder, 10, recorded_ms=4)
    recorder.close("the program ended")
    assert rank_facts(folder)["settling"]["verdict"] == "beaten"


def test_a_program_that_ends_while_it_is_timed_again_keeps_what_was_timed(
    folder: RunFolder, program: Program
) -> None:
    recorder = Recorder(fast(folder.path, time_s=1.0), folder, 0)
    while len(recorder._kept.passes) < 2:
        program.step(recorder, 20)
    for _ in range(150):
        program.step(recorder, 4)
    recorder.close("the program ended")
    facts = rank_facts(folder)
    assert facts["status"] == "complete"
    assert facts["timed_again"]["stopped_because"] == "the program ended"
    assert facts["unprofiled"] == facts["timed_again"]
    assert facts["unprofiled"]["median_ns"] == 4_000_000
    assert not facts["settling"]["light_settled"], "there was no time to record it again"


def test_ranks_time_again_by_counted_steps_and_record_nothing_anew(
    folder: RunFolder, program: Program
) -> None:
    recorder = Recorder(fast(folder.path, time_s=0.4, passes=("light",)), folder, 0, world_size=2)
    while not recorder._kept.passes:
        program.step(recorder, 20)
    program.drive(recorder, 4)
    facts = rank_facts(folder)
    assert recorder._plan is not None
    assert facts["steps_seen"] == recorder._plan.end, "every rank ends at the same step"
    assert facts["timed_again"]["steps"] == recorder._plan.passes[-1].active
    assert facts["timed_again"]["host_blocks"] >= 1
    assert facts["timed_again"]["host_low_ns"] == 4_000_000, "a whole step: there is no device"
    assert facts["settling"]["verdict"] == "faster"
    assert not facts["settling"]["light_settled"]
    assert facts["unprofiled"] == facts["timed_again"]
    assert len(facts["passes"]) == 1


def test_the_program_is_ended_after_it_was_timed_again(folder: RunFolder, program: Program) -> None:
    options = fast(folder.path, stop_after_capture=True, passes=("light",), time_s=3.0)
    recorder = Recorder(options, folder, 0, watch=True)
    while not recorder._kept.passes:
        program.step(recorder, 10)
    began = program.now_ns
    with pytest.raises(SystemExit):
        program.drive(recorder, 10)
    assert program.now_ns - began == pytest.approx(1e9, rel=0.2), "about a second"
    facts = rank_facts(folder)
    assert facts["timed_again"]["steps"] > 20
    assert facts["status"] == "complete"


def test_a_schedule_in_steps_is_kept_to(folder: RunFolder, program: Program) -> None:
    recorder = Recorder(
        fast(folder.path, wait=4, warmup=1, active=2, passes=("light",)), folder, 0, watch=True
    )
    program.drive(recorder, 1)
    facts = rank_facts(folder)
    assert facts["steps_seen"] == 4 + 1 + 2
    assert facts["timed_again"] is None
