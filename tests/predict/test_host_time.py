"""The host's own measured time: where the device hides the host, it tells what the step does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretrace.diagnose.case import Case
from foretrace.ingest.timed import HostTimes, LoaderTimes, Timed, read_timed
from foretrace.predict.builder import build
from foretrace.predict.calibrate import Calibration, calibrate
from foretrace.predict.changes import parse
from foretrace.predict.prediction import Prediction, predict
from foretrace.predict.steady import host_step_ns
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.loops import H200, launches, loop
from tests.predict.programs import Draft

COUNT, KERNEL_US = 200, 25
STEP_NS = COUNT * KERNEL_US * 1e3
# Operators of 10 µs: less 0.5 µs for recording each, and 1.9 times slower as recorded.
ESTIMATED_NS = COUNT * (8.5 - 0.5 + 1.5) / 1.9 * 1e3
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def hidden(folder: Path, *, python_us: float = 0, loading_us: float = 0) -> Trace:
    """Three steps of 200 operators, each of which launches a kernel of 25 µs: the host runs ahead of the device."""
    recording = Recording(deviceProperties=[H200])
    device, at = 0.0, 0.0
    for number in range(3):
        begin = at
        if loading_us:
            recording.op(LOADER, at, at + loading_us)
        at += python_us + loading_us
        for _ in range(COUNT):
            device = max(device, at + 10)
            recording.op("aten::add", at, at + 10)
            recording.launch(at + 8, "add_kernel", device, device + KERNEL_US, call=1.5)
            device, at = device + KERNEL_US, at + 10
        recording.step(number, begin, at)
    return recording.open(folder)


def ten_times_shorter(trace: Trace, fitted: Calibration) -> Prediction:
    """Kernels of 2.5 µs: 0.5 ms a step, and the host is no longer hidden."""
    return predict(fitted, (parse("scale kernel:~add 0.1", trace, fitted.program),))


# How far the host is from its estimate, and whether the range for a host that is not known allows for that.
@pytest.mark.parametrize(("factor", "held"), [(1.5, False), (1.3, True), (1 / 1.5, True)])
def test_a_change_that_uncovers_the_host_is_predicted_exactly(
    tmp_path: Path, factor: float, held: bool
) -> None:
    trace = hidden(tmp_path)
    host_ns = factor * ESTIMATED_NS
    truth = STEP_NS / host_ns
    told = calibrate(trace, build(trace), step_ns=STEP_NS, host_ns=host_ns)
    assert told.host_told
    assert not told.host_bound
    assert f"{factor:.2f} times the estimate" in told.basis
    exact = ten_times_shorter(trace, told)
    assert exact.speedup.point == pytest.approx(truth, rel=0.02)
    untold = calibrate(trace, build(trace), step_ns=STEP_NS)
    assert not untold.host_told
    guessed = ten_times_shorter(trace, untold)
    assert abs(guessed.speedup.point / truth - 1) > 0.2
    assert (guessed.speedup.low <= truth <= guessed.speedup.high) == held
    assert exact.speedup.low <= truth <= exact.speedup.high
    ranges = [found.speedup.high / found.speedup.low for found in (exact, guessed)]
    assert ranges == [pytest.approx(1.15 / 0.85, rel=0.02), pytest.approx(1.35 / 0.65, rel=0.02)]


def test_a_device_that_was_faster_while_it_was_recorded_is_scaled(tmp_path: Path) -> None:
    trace = hidden(tmp_path)
    found = calibrate(trace, build(trace), step_ns=1.1 * STEP_NS, host_ns=1.2e6)
    assert (found.representative, found.host_told) == (True, True)
    assert found.program.task_dur_ns.sum() == pytest.approx(3 * 1.1 * STEP_NS, rel=0.01)
    assert host_step_ns(found.program) == pytest.approx(1.2e6, rel=0.01)


@pytest.mark.parametrize("host_ns", [0.95 * STEP_NS, 0.1 * ESTIMATED_NS])
def test_a_time_that_is_not_the_hosts_own_changes_nothing(tmp_path: Path, host_ns: float) -> None:
    """Near the step it holds a wait; a tenth of the estimate no host takes."""
    trace = hidden(tmp_path)
    same(trace, STEP_NS, host_ns)


def same(trace: Trace, step_ns: float, host_ns: float, *, queue_calls: int = 1024) -> None:
    program = replace(build(trace), queue_calls=queue_calls)
    without, given = (calibrate(trace, program, step_ns=step_ns, host_ns=each) for each in (None, host_ns))
    assert not given.host_told
    assert given.basis == without.basis
    assert np.array_equal(given.program.gap_ns, without.program.gap_ns)
    assert np.array_equal(given.program.task_dur_ns, without.program.task_dur_ns)


def test_a_step_that_fills_the_launch_queue_does_not_tell_the_host(tmp_path: Path) -> None:
    same(hidden(tmp_path), STEP_NS, ESTIMATED_NS, queue_calls=COUNT)


def test_a_host_that_the_step_follows_stays_fitted_to_it(tmp_path: Path) -> None:
    trace = loop(tmp_path, 5_000, lambda recording, at: launches(recording, at, 500))
    same(trace, 2.5e6, 1.5e6)


def test_a_time_that_is_mostly_waiting_does_not_tell_the_host(tmp_path: Path) -> None:
    """A kernel of 3 ms that the host waits for, then one of 6 ms that it does not: the next step waits for both.

    With an idle device a step takes the host the 3 ms, whatever its own work takes.
    """
    recording = Recording(deviceProperties=[H200])
    at = device = 0.0
    for number in range(3):
        begin = at
        device = max(device, at + 10)
        recording.launch(at + 2, "waited_for", device, device + 3_000, call=4)
        at = recording.wait(at + 10)
        recording.launch(at + 2, "left_behind", at + 10, at + 6_010, call=4)
        at, device = at + 10, at + 6_010
        recording.step(number, begin, at)
    trace = recording.open(tmp_path)
    idle_ns = host_step_ns(calibrate(trace, build(trace), step_ns=9.02e6).program)
    assert idle_ns == pytest.approx(3.02e6, rel=0.01)
    same(trace, 9.02e6, idle_ns)


def test_a_host_that_is_mostly_python_is_fitted_but_its_operators_are_not_told(tmp_path: Path) -> None:
    """3 ms of Python and 1 ms of operators, of 5 ms: 3.9 ms of both leave the operators unsure."""
    trace = hidden(tmp_path, python_us=3_000)
    found = calibrate(trace, build(trace), step_ns=STEP_NS, host_ns=3.9e6)
    assert "its own measured time" in found.basis
    assert not found.host_told
    assert host_step_ns(found.program) == pytest.approx(3.9e6, rel=0.01)


def test_the_host_of_a_step_that_begins_with_an_idle_device() -> None:
    """Launches never wait; a wait is for this step's work only."""
    program = Draft().launch(10, 2, 100).launch(10, 2, 100).call(5, 1).program(tail=6)
    assert host_step_ns(program) == 10 + 2 + 10 + 2 + 5 + 1 + 6
    waiting = Draft().launch(10, 2, 100).sync(5, 1, wake=3).launch(10, 2, 500).program()
    assert host_step_ns(waiting) == 10 + 100 + 3 + 10 + 2
    begins = Draft().copy(10, 2, 50, wake=4).launch(10, 2, 500).program()
    assert host_step_ns(begins) == 10 + 50 + 4 + 10 + 2


def test_every_recorded_step_begins_with_an_idle_device() -> None:
    """Three equal ones, each with a wait behind its first launch: the work of the step before is done."""
    draft = Draft()
    for _ in range(3):
        draft.launch(10, 2, 100).sync(5, 1).launch(10, 2, 900)
    program = replace(
        draft.program(), step_calls=np.array([0, 3, 6], np.int32), between_ns=np.zeros(3, np.int64)
    )
    assert host_step_ns(program) == 10 + 100 + 10 + 2


def times(host: HostTimes | None, loader: LoaderTimes | None = None) -> Timed:
    return Timed((STEP_NS,), loader, host=host)


def test_a_run_tells_its_host(tmp_path: Path) -> None:
    trace = hidden(tmp_path)
    told = Case(trace, step_ns=STEP_NS, timed=times(HostTimes(1.5e6, 1.45e6, 2e6, 5)))
    assert told.calibration.host_told
    assert host_step_ns(told.program) == pytest.approx(1.5e6, rel=0.01)
    for host in (None, HostTimes(1.5e6, 1.45e6, 2e6, 2), HostTimes(1.5e6, 1.2e6, 2e6, 5)):
        assert not Case(trace, step_ns=STEP_NS, timed=times(host)).calibration.host_told


@pytest.mark.parametrize("loading_us", [500, 40])
def test_waits_for_data_come_on_top_of_the_host(tmp_path: Path, loading_us: int) -> None:
    """Half a millisecond a step is looked at for itself; less than a hundredth of the step stays in the host."""
    trace = hidden(tmp_path, loading_us=loading_us)
    loader = LoaderTimes(4, 100, STEP_NS, loading_us * 1e3, (loading_us * 1e3,), 0, 0.0)
    case = Case(trace, step_ns=STEP_NS, timed=times(HostTimes(1.5e6, 1.5e6, 1.5e6, 5), loader))
    assert (case.loaded is not None) == (loading_us == 500)
    assert case.calibration.host_told
    assert host_step_ns(case.program) == pytest.approx(1.5e6 + loading_us * 1e3, rel=0.01)


def test_rank_json_tells_the_host() -> None:
    facts = {"median_ns": 5, "host_ns": 1_500, "host_low_ns": 1_400, "host_high_ns": 1_900, "host_blocks": 5}
    timed = read_timed({"unprofiled": facts}, {})
    assert timed.host == HostTimes(1_500, 1_400, 1_900, 5)
    assert timed.host_ns == timed.loading_host_ns == 1_500
    for other in ({"host_ns": None}, {"host_ns": "much"}, {"host_ns": 0}, {"host_blocks": None}):
        assert read_timed({"unprofiled": {**facts, **other}}, {}).host is None
    assert read_timed({"unprofiled": {"median_ns": 5}}, {}).host_ns is None
