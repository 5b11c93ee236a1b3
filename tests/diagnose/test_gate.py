"""One gate for predictions: damage to one category of a recording never makes it promise more."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import damage
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.promises import damaged
from foretrace.diagnose.rules.host.input_bound import input_bound
from tests.builders import Recording
from tests.diagnose.loops import H200, launches

# Small recordings of the frozen set: one that follows the host, one that follows its copies.
RECORDINGS = ("card_payments", "inflow_ensemble")
FROZEN = Path(__file__).parents[1] / "accuracy" / "j"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

ONE_CATEGORY = {
    **damage.NAMED,
    **{f"{category} gone": damage.deleted(category) for category in ("gpu_memcpy", "overhead", "ac2g")},
    **{
        f"{category} x {factor:g}": damage.scaled(category, factor)
        for category in ("cpu_op", "cuda_runtime", "kernel", "user_annotation", "gpu_memcpy")
        for factor in (-1.0, 0.0, 0.01, 100.0)
    },
    **{
        f"{category} {by_us:+g} us": damage.shifted(category, by_us)
        for category in ("cpu_op", "cuda_runtime", "kernel", "user_annotation", "gpu_memcpy")
        for by_us in (-1e4, 1e4, 1e8)
    },
}
# What leaves only events behind that nothing was made of, or what other notes tell: no operators, no steps.
NOT_DAMAGE = {"overhead gone", "ac2g gone"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RECORDINGS)
def test_no_damage_promises_more_than_the_undamaged_recording(name: str, tmp_path: Path) -> None:
    (recording,) = FROZEN.glob(f"{name}.slow.lite.json.*")
    header, events = damage.read(recording)
    whole = damage.answer(recording)
    path = tmp_path / "damaged.json"
    unnamed, broken = set(), []
    for says, made in ONE_CATEGORY.items():
        changed = made([dict(event) for event in events])
        if changed == events:  # it has nothing of that category
            continue
        damage.write(path, header, changed)
        answer = damage.answer(path)
        broken += [f"{says}: {why}" for why in damage.violations(whole, answer)]
        promising = any(prediction.verdict == "gain" for prediction in answer.predictions.values())
        if promising and answer.notes == whole.notes:
            unnamed.add(says)
    assert broken == []
    assert unnamed <= NOT_DAMAGE | ONE_CATEGORY.keys() - damage.NAMED.keys()


def input_bound_steps(waits_us: list[float]) -> Recording:
    """Steps of 10 ms of work after waits for the DataLoader, which loads in the main process."""
    recording, at = Recording(deviceProperties=[H200]), 0.0
    for number, wait in enumerate(waits_us):
        recording.step(number, at, at + wait + 10_000)
        if wait:
            recording.annotation(LOADER, at, at + wait)
        launches(recording, at + wait, 1_000)
        at += wait + 10_000
    return recording


@pytest.mark.slow
def test_steps_that_differ_by_their_waits_carry_the_promise_to_remove_them(tmp_path: Path) -> None:
    """Waits as in a real recording (ms): their mean is 200, the work 10. Six workers bring a batch every 200 / 6 = 33.3 ms."""
    waits = [0, 0, 0, 0, 209_000, 748_000, 460_000, 5_000, 0, 578_000]
    case = Case(input_bound_steps([float(wait) for wait in waits]).open(tmp_path), step_ns=None)
    assert case.recorded_ns == pytest.approx(210e6, rel=0.01)
    (found,) = diagnose(case, (input_bound,)).findings
    assert found.predicted
    assert (found.predicted.verdict, found.predicted.not_promised) == ("gain", "")
    # The host's 10 ms are shorter without the profiler, so a step takes between the batch and the batch with them.
    assert found.predicted.speedup.low <= 210 / 33.3 <= found.predicted.speedup.high


def test_damage_outside_of_the_steps_that_are_looked_at_counts(tmp_path: Path) -> None:
    """A second of warm-up is left out; that its mark overlaps the next one is not forgotten."""
    recording = Recording(deviceProperties=[H200]).step(0, 0, 1e6)
    for number in (1, 2, 3):
        begin = 1e6 + 10_000.0 * number
        recording.step(number, begin - 10_000, begin)
        launches(recording, begin - 10_000, 100)
    case = Case(recording.open(tmp_path))
    assert (case.looked_at, damaged(case)) == ("steps 1 to 3, 3 of the 4 recorded", "")
    recording.events[0]["dur"] += 4_000
    assert "do not follow one another" in damaged(Case(recording.open(tmp_path)))


def test_a_kernel_whose_launch_is_lost_delays_no_other(tmp_path: Path) -> None:
    """Of 30 kernels, the last but one loses its launch: no kernel begins before the one in front of it has ended."""
    recording = Recording(deviceProperties=[H200])
    for number in range(3):
        recording.step(number, 1_000.0 * number, 1_000.0 * (number + 1))
        launches(recording, 1_000.0 * number, 10)
    calls = [event for event in recording.events if event["cat"] == "cuda_runtime"]
    recording.events.remove(calls[-2])
    program = Case(recording.open(tmp_path)).program
    assert len(program.task_span) == 29
    assert program.task_gap_ns.min() >= 0
    assert program.stream_free_ns.max() == 0


def test_a_kernel_that_others_overtake_delays_none_of_them(tmp_path: Path) -> None:
    """A launch every 10 µs, each of a kernel of 1 µs that runs after 2 µs: no kernel ever waits for the one before it.

    That one of them is recorded 15 µs late, behind the next, tells nothing of how closely kernels follow one another.
    """
    recording = Recording(deviceProperties=[H200])
    for number in range(3):
        recording.step(number, 1_000.0 * number, 1_000.0 * (number + 1))
        launches(recording, 1_000.0 * number, 100)
    whole = Case(recording.open(tmp_path))
    next(event for event in recording.events if event["ts"] == 1_060 and event["cat"] == "kernel")["ts"] += 15
    late = Case(recording.open(tmp_path))
    assert late.program.task_gap_ns.tolist() == whole.program.task_gap_ns.tolist()
    assert (late.step_ns, late.recorded_ns) == (whole.step_ns, whole.recorded_ns)
    assert (damaged(whole), "another order than it was launched in" in damaged(late)) == ("", True)
