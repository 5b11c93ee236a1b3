"""What the Recorder does with the steps it is told of: timing, the plan, passes, and every way of ending."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretrace.capture.device_pass import DeviceTime, device_time
from foretrace.capture.options import CaptureOptions, Switches
from foretrace.capture.plan import Plan, PlannedPass, make_plan, read_plan, write_plan
from foretrace.capture.recorder import Recorder
from foretrace.capture.run_folder import RunFolder
from foretrace.capture.timing import BlockTimer, Pace, StepTimes, summarise


def fast(path: Path, **more: Any) -> CaptureOptions:
    return CaptureOptions(**{"output": str(path), "settle_s": 0.05, "time_s": 0.2, "warm_s": 0.02, **more})


def test_options_go_through_the_environment() -> None:
    options = CaptureOptions("out", passes=("light",), ranks=(0, 7), rich=Switches(with_stack=True), wait=3)
    assert CaptureOptions.from_json(options.to_json()) == options
    assert CaptureOptions.from_json('{"output": "x", "of another version": 1}') == CaptureOptions("x")
    assert options.wants_rank(7)
    assert not options.wants_rank(1)
    assert CaptureOptions("out").wants_rank(123)


# --- timing -------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.at_ns, self.synchronised = 0, 0

    def now(self) -> int:
        return self.at_ns

    def synchronize(self) -> None:
        self.synchronised += 1

    def run(self, timer: BlockTimer, step_ns: Callable[[int], int], limit: int = 1_000_000) -> int:
        for number in range(limit):
            if timer.step(self.now):
                return number
            self.at_ns += step_ns(number)
        raise AssertionError("it never ended")


@pytest.mark.parametrize("step_ns", [50_000, 1_000_000, 20_000_000, 400_000_000, 12_000_000_000])
def test_steady_steps_are_timed_in_few_blocks(step_ns: int) -> None:
    clock = Clock()
    timer = BlockTimer(expected_ns=step_ns, limit_s=3, synchronize=clock.synchronize)
    steps = clock.run(timer, lambda _: step_ns)
    times = timer.result()
    assert times is not None
    assert (times.median_ns, times.low_ns, times.high_ns, times.steps) == (step_ns, step_ns, step_ns, steps)
    assert ("agree" if step_ns < 3e9 else "limit") in times.stopped_because
    assert clock.synchronised == len(times.blocks_ns) + 1, "never once a step"
    assert steps * step_ns <= max(3e9, 5 * step_ns)


def test_a_wrong_guess_of_the_length_is_corrected() -> None:
    clock = Clock()
    timer = BlockTimer(expected_ns=1e9, limit_s=3, synchronize=clock.synchronize)
    clock.run(timer, lambda _: 1_000_000)
    times = timer.result()
    assert times is not None
    assert times.steps == 5 * 200


def opens_after(step_us: Callable[[int], int], *, measured_us: int = 20_000) -> int:
    """The step after which a window opens."""
    pace, at_ns = Pace(step_ns=measured_us * 1_000, limit_s=2.5), 0
    for number in range(10_000):
        if pace.step(at_ns):
            return number
        at_ns += step_us(number) * 1_000
    raise AssertionError("it never opened")


def test_a_window_opens_while_steps_take_what_was_measured() -> None:
    """8 steps of 20 ms are compared; a clock that falls for 0.4 s in each second makes the first 20 steps 5 % longer."""
    assert opens_after(lambda _: 20_000) == 8
    assert opens_after(lambda number: 21_000 if number < 20 else 20_000) in (26, 27, 28)
    assert opens_after(lambda _: 30_000) == 8  # the profiler slows the host down: that does not pass
    assert opens_after(lambda _: 21_000) == 120  # 2.5 s
    assert opens_after(lambda _: 1_000_000, measured_us=1_000_000) == 1


def test_a_noisy_program_ends_at_the_limit() -> None:
    clock = Clock()
    timer = BlockTimer(expected_ns=20e6, limit_s=3, synchronize=clock.synchronize)
    clock.run(timer, lambda number: 10_000_000 if number // 15 % 2 else 30_000_000)
    times = timer.result()
    assert times is not None
    assert "limit" in times.stopped_because
    assert times.low_ns < times.median_ns < times.high_ns
    assert clock.at_ns < 4e9


def test_blocks_before_it_settled_do_not_count() -> None:
    times = summarise([(90, 1), (50, 1), *[(20, 1)] * 5], "")
    assert times is not None
    assert (times.median_ns, times.high_ns, times.steps) == (20, 20, 7)
    assert summarise([], "") is None


# --- plan ---------------------------------------------------------------------------------------------------


def test_the_warm_up_is_by_time_and_the_window_by_steps() -> None:
    short = make_plan(CaptureOptions("x"), at=100, step_ns=20e6, ranks=1).passes
    assert [(each.kind, each.start, each.warm, each.active) for each in short] == [
        ("light", 100, 25, 10),
        ("rich", 136, 25, 3),
        ("again", 164, 2, 50),
    ]
    long = make_plan(CaptureOptions("x"), at=3, step_ns=10e9, ranks=1).passes
    assert [(each.warm, each.active) for each in long] == [(1, 1), (1, 1), (0, 1)]
    tiny = make_plan(CaptureOptions("x"), at=3, step_ns=100e3, ranks=1).passes
    assert [(each.warm, each.active) for each in tiny] == [(5000, 10), (5000, 3), (2, 10_000)]


def test_ranks_get_the_plan_ahead_of_time(tmp_path: Path) -> None:
    plan = make_plan(CaptureOptions("x"), at=100, step_ns=20e6, ranks=8)
    assert plan.passes[0].start == 150, "a second"
    assert read_plan(tmp_path) is None
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    assert plan.end == plan.passes[-1].closes


def test_a_given_schedule_is_kept() -> None:
    options = CaptureOptions("x", wait=2, warmup=1, active=3, repeat=2, passes=("light",))
    passes = make_plan(options, at=2, step_ns=None, ranks=8).passes
    assert [(each.number, each.start, each.opens, each.closes) for each in passes] == [
        (0, 2, 3, 6),
        (1, 8, 9, 12),
    ]


def test_a_device_is_timed_alone_first() -> None:
    passes = make_plan(CaptureOptions("x"), at=0, step_ns=20e6, ranks=1, device=True).passes
    assert [(each.kind, each.warm, each.active) for each in passes] == [
        ("device", 25, 50),
        ("light", 25, 10),
        ("rich", 25, 3),
        ("again", 2, 50),
    ]
    given = make_plan(CaptureOptions("x", warmup=1), at=0, step_ns=20e6, ranks=1, device=True)
    assert [each.kind for each in given.passes] == ["light", "rich", "again"]


def test_how_long_a_device_works_in_a_step(tmp_path: Path) -> None:
    """Two steps of 100 us: kernels at 0-40 and 30-60, a copy at 100-110, a kernel at 150-200; the host does not count."""

    def event(category: str, begin: float, end: float) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": "x", "ts": 1000 + begin, "dur": end - begin}

    events = [
        event("kernel", 150, 200),
        event("kernel", 0, 40),
        event("kernel", 30, 60),
        event("cuda_runtime", -500, 900),
        event("gpu_memcpy", 100, 110),
    ]
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert device_time(path, 2) == DeviceTime(step_ns=100_000, busy_ns=60_000, steps=2)
    path.write_text(json.dumps({"traceEvents": events[3:4]}))
    assert device_time(path, 2) is None


# --- recording ----------------------------------------------------------------------------------------------


class MadeUpPass:
    """A light pass of one step that takes what it is told."""

    device_time = None
    note = None
    recording = False
    recorded_s = 0.0

    def __init__(self, planned: PlannedPass, path: Path, step_ns: int) -> None:
        self.planned, self.path, self._step_ns = planned, path, step_ns

    def warmed(self, count: int) -> bool:
        return True

    def open(self, count: int) -> None:
        self.recording = True

    def step(self, count: int) -> bool:
        return True

    def close(self) -> bool:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(str(self._step_ns))
        return True

    def facts(self) -> dict[str, Any]:
        return {
            "kind": "light", "file": self.path.name, "step_ns": self._step_ns, "steps": 1, "warmup_steps": 0,
            "warmup_s": 0, "record_s": 0, "file_bytes": 1,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("low_ms", "windows_ms", "recorded", "kept_ms"),
    [
        (19.0, [20.3], 1, 20.3),  # as measured
        (19.0, [22.0, 20.1], 2, 20.1),  # the clock had fallen, and rose again
        (19.0, [21.0, 22.0, 21.5], 3, 21.0),  # it does not: the nearest stays
        (19.9, [21.0], 1, 21.0),  # a steady device: this is what recording costs
        (19.0, [40.0], 1, 40.0),  # the profiler slows the host down
    ],
)
def test_a_light_pass_of_another_clock_is_recorded_anew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    low_ms: float,
    windows_ms: list[float],
    recorded: int,
    kept_ms: float,
) -> None:
    lengths = iter(windows_ms)
    made: list[MadeUpPass] = []

    def open_pass(
        planned: PlannedPass, options: CaptureOptions, path: Path, *_: object, **__: object
    ) -> MadeUpPass:
        made.append(MadeUpPass(planned, path, round(next(lengths) * 1e6)))
        return made[-1]

    monkeypatch.setattr("foretrace.capture.recording.open_pass", open_pass)
    monkeypatch.setattr("foretrace.capture.recording.has_cuda", lambda: True)
    monkeypatch.setattr("foretrace.capture.environment.describe_process", dict)
    folder = RunFolder(tmp_path / "run").create()
    recorder = Recorder(fast(folder.path), folder, 0, world_size=1)
    recorder._timings.used = StepTimes(20_000_000, round(low_ms * 1e6), 20_100_000, 10, (20_000_000,), "")
    recorder._recording.plan = Plan((PlannedPass("light", 0, 0, 0, 1),))
    recorder._phase = recorder._record
    for _ in range(20):
        recorder.step()
    assert len(made) == recorded
    assert recorder.status == "complete"
    kept = rank_facts(folder)["passes"]
    assert [(each["file"], each["step_ns"]) for each in kept] == [("light.json", round(kept_ms * 1e6))]
    files = sorted(each.name for each in (folder.path / "rank0").iterdir())
    assert files == ["light.json", "rank.json"]
    assert (folder.path / "rank0" / "light.json").read_text() == str(round(kept_ms * 1e6))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    return RunFolder(tmp_path / "run").create()


def work(pause_s: float = 0.001) -> None:
    import torch

    torch.ones(8, 8) @ torch.ones(8, 8)
    time.sleep(pause_s)


def drive(recorder: Recorder, steps: int = 20_000, pause_s: float = 0.001) -> None:
    for _ in range(steps):
        if recorder.finished:
            return
        work(pause_s)
        recorder.step()


def rank_facts(folder: RunFolder) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder.path / "rank0" / "rank.json").read_text())
    return facts


def test_short_steps(folder: RunFolder) -> None:
    recorder = Recorder(fast(folder.path), folder, 0)
    drive(recorder, 200_000, pause_s=0)
    facts = rank_facts(folder)
    assert (recorder.status, facts["status"], facts["step_source"]) == ("complete", "complete", "p.step()")
    assert facts["unprofiled"]["median_ns"] < 1_000_000
    assert [each["steps"] for each in facts["passes"]] == [10, 3]
    recorder.close("later")
    assert rank_facts(folder)["status"] == "complete", "closing again changes nothing"


def test_a_window_that_the_program_leaves_is_kept(folder: RunFolder) -> None:
    recorder = Recorder(fast(folder.path, wait=2, warmup=1, active=5), folder, 0)
    drive(recorder, 7)
    recorder.close("the program ended")
    facts = rank_facts(folder)
    assert facts["status"] == "partial"
    assert [(each["kind"], each["steps"]) for each in facts["passes"]] == [("light", 3)]
    assert "light pass cut to 3 steps" in facts["notes"][0]
    assert (folder.path / "rank0" / "light.json").is_file()


def test_too_short_a_program_is_told_what_to_do(folder: RunFolder) -> None:
    recorder = Recorder(fast(folder.path), folder, 0)
    drive(recorder, 3)
    assert "without notice" in rank_facts(folder)["reason"], "what stays if it is killed now"
    recorder.close("the program ended")
    assert "--wait 2 --warmup 1 --active 3" in rank_facts(folder)["reason"]
    assert rank_facts(folder)["unprofiled"] is None


def test_a_fault_of_ours_never_reaches_the_program(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("no CUPTI")

    monkeypatch.delenv("FORETRACE_DEBUG", raising=False)
    monkeypatch.setattr("foretrace.capture.recording.open_pass", breaks)
    recorder = Recorder(fast(folder.path), folder, 0)
    drive(recorder)
    facts = rank_facts(folder)
    assert facts["status"] == "partial"
    assert "no CUPTI" in facts["reason"]
    assert facts["unprofiled"]["median_ns"] > 0, "what was measured before stays"


def test_no_pass_begins_after_the_limit(folder: RunFolder) -> None:
    recorder = Recorder(fast(folder.path, total_s=0.3), folder, 0)
    drive(recorder)
    facts = rank_facts(folder)
    assert "rich" not in [each["kind"] for each in facts["passes"]]
    assert "the limit of 0.3 s" in facts["reason"]
    assert (facts["status"], facts["timed_again"]) == ("partial", None)


def test_other_threads_do_not_count(folder: RunFolder) -> None:
    recorder = Recorder(fast(folder.path, wait=2, warmup=0, active=1, passes=("light",)), folder, 0)
    work()
    recorder.step()

    def steps() -> None:
        for _ in range(100):
            recorder.step()

    other = threading.Thread(target=steps)
    other.start()
    other.join()
    assert not recorder.finished
    drive(recorder, 3)
    assert recorder.status == "complete"


def test_it_can_end_the_program(folder: RunFolder) -> None:
    options = fast(folder.path, wait=1, warmup=0, active=1, passes=("light",), stop_after_capture=True)
    recorder = Recorder(options, folder, 0)
    with pytest.raises(SystemExit) as leaving:
        drive(recorder)
    assert leaving.value.code == 0
    assert rank_facts(folder)["status"] == "complete"


def test_labels_name_the_modules(folder: RunFolder) -> None:
    import torch

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.first_layer = torch.nn.Linear(4, 4)

        def forward(self, value: Any) -> Any:
            return self.first_layer(value)

    net = Net()
    options = fast(folder.path, wait=2, warmup=1, active=2, passes=("rich",), labels=True)
    recorder = Recorder(options, folder, 0)
    while not recorder.finished:
        net(torch.ones(2, 4))
        recorder.step()
    events = json.loads((folder.path / "rank0" / "rich.json").read_text())["traceEvents"]
    labelled = [each["name"] for each in events if each.get("cat") == "user_annotation"]
    assert labelled.count("first_layer") == labelled.count("Net") == 2
    assert not torch.nn.modules.module._global_forward_hooks


def test_followers_wait_for_the_first_rank(folder: RunFolder) -> None:
    leader = Recorder(fast(folder.path, passes=("light",)), folder, 0, world_size=2)
    follower = Recorder(fast(folder.path, passes=("light",)), folder, 1, world_size=2)
    for _ in range(20_000):
        if leader.finished and follower.finished:
            break
        work()
        leader.step()
        if leader._recording.open_kind is None:  # one process has one profiler: here they take turns
            follower.step()
        else:
            follower._count += 1
    assert leader.status == "complete"
    plan = read_plan(folder.path)
    assert plan is not None
    assert leader._kept.passes[0]["first_step"] == plan.passes[0].opens + 1
    assert follower.status == "complete"
    assert follower._timings.used is not None
