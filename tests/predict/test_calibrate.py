"""From the recorded host to the unprofiled one: what is fitted to a measured step, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.predict.builder import build
from foretrace.predict.calibrate import Calibration, calibrate, calibrate_pair, dense_ns
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.loops import H200, launches, loop

# 500 operators of 10 µs: less 0.5 µs for recording each, and 1.9 times slower as recorded.
DENSE_US = 500 * (8.5 - 0.5 + 1.5) / 1.9
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def program(folder: Path) -> Trace:
    """5 ms of Python that calls nothing, then 500 operators that launch."""
    return loop(folder, 10_000, lambda recording, at: launches(recording, at + 5_000, 500))


def fitted(trace: Trace, step_us: float) -> tuple[Calibration, float, float]:
    """The calibration, and the pure and the dense host time of a step, in microseconds."""
    found = calibrate(trace, build(trace), step_ns=step_us * 1_000)
    dense = dense_ns(found.program)
    pure = found.program.gap_ns - dense
    steps = len(trace.steps)
    return found, pure.sum() / steps / 1e3, (dense.sum() + found.program.base_ns.sum()) / steps / 1e3


@pytest.mark.parametrize(
    ("step_us", "python_us"), [(10_000, 7_035), (7_000, 4_602), (6_500, 4_207), (4_500, 2_672)]
)
def test_of_all_hosts_that_explain_a_step_the_likeliest_is_taken(
    tmp_path: Path, step_us: float, python_us: float
) -> None:
    """5 ms of Python, 2.5 of operators: at f times the operators, f squared times the Python."""
    factor = (python_us / 5_000) ** 0.5
    assert python_us + factor * DENSE_US == pytest.approx(step_us, rel=0.01)
    found, pure, dense = fitted(program(tmp_path), step_us)
    assert found.representative
    assert pure == pytest.approx(python_us, rel=0.03)
    assert dense == pytest.approx(factor * DENSE_US, rel=0.05)


@pytest.mark.parametrize(("memory", "scaled"), [("Pageable", True), ("Pinned", False)])
def test_the_host_that_moves_pageable_memory_is_fitted_too(tmp_path: Path, memory: str, scaled: bool) -> None:
    """A copy of 5 ms in the place of the 5 ms of Python above; from pinned memory the device moves it, and only that."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::copy_", at, at + 5_000)
        kind = f"Memcpy HtoD ({memory} -> Device)"
        recording.launch(
            at + 5, kind, at + 10, at + 4_990, category="gpu_memcpy", call=4_986, bytes=40_000_000
        )
        launches(recording, at + 5_000, 500)

    trace = loop(tmp_path, 10_000, body)
    found = calibrate(trace, build(trace), step_ns=10_000_000)
    assert found.representative
    copied_us = found.program.task_dur_ns.max() / 1e3
    assert copied_us == pytest.approx(7_035 if scaled else 4_980, rel=0.03)


def test_python_is_not_much_shorter_than_recorded(tmp_path: Path) -> None:
    """3 ms cannot be: half of the Python is left, 2.5 ms, and 0.8 of operators."""
    assert not fitted(program(tmp_path), 3_000)[0].representative


def test_a_step_of_python_says_little_about_the_dense_host(tmp_path: Path) -> None:
    """7.5 ms are as estimated; of a part of 2.5 ms they tell less than of the whole, and ranges are wider."""
    mostly = fitted(program(tmp_path), 5_000 + DENSE_US)[0]
    (tmp_path / "dense").mkdir()
    dense = fitted(
        loop(tmp_path / "dense", 5_000, lambda recording, at: launches(recording, at, 500)), DENSE_US
    )[0]
    assert not mostly.dense_told
    assert dense.dense_told


def test_long_quiet_within_a_gap_of_operators_is_pure(tmp_path: Path) -> None:
    """Ten operators of 10 µs and 900 µs of Python before each launch: 40 µs an operator would make half of it dense."""

    def body(recording: Recording, at: float) -> None:
        for number in range(5):
            start = at + number * 1_000
            for each in range(10):
                recording.op("aten::view", start + 10 * each, start + 10 * each + 9)
            launches(recording, start + 990, 1)

    recorded = build(loop(tmp_path, 5_000, body))
    pure = recorded.gap_ns - dense_ns(recorded)
    assert pure.sum() / 3e3 == pytest.approx(5 * (900 - 40), rel=0.02)


def test_a_thread_is_made_ready_once(tmp_path: Path) -> None:
    """The first call of autograd's thread comes 3 ms late, in the first step only: the profiler's doing."""

    def made(name: str, late: float) -> float:
        recording = Recording(deviceProperties=[H200])
        at = 0.0
        for number in range(3):
            begin, extra = at, late if number == 0 else 0.0
            launches(recording, at, 20)
            at += 200 + extra
            for _ in range(20):
                recording.op("aten::mul", at, at + 10, thread=2)
                recording.launch(at + 8, "mul_kernel", at + 10, at + 11, call=1.5, thread=2)
                at += 10
            recording.step(number, begin, at)
        (tmp_path / name).mkdir()
        trace = recording.open(tmp_path / name)
        return calibrate(trace, build(trace)).step_ns

    assert made("late", 3_000) == pytest.approx(made("at once", 0), rel=0.01)


def test_operators_of_a_loader_are_no_sign_of_launches(tmp_path: Path) -> None:
    """100 operators in 5 ms of loading: it is pure, as it would be without them."""

    def body(recording: Recording, at: float) -> None:
        recording.op(LOADER, at, at + 5_000)
        for number in range(100):
            recording.op("aten::stack", at + number * 50, at + number * 50 + 10)
        launches(recording, at + 5_000, 500)

    found, pure, dense = fitted(loop(tmp_path, 10_000, body), 5_000 + DENSE_US)
    assert found.representative
    assert pure == pytest.approx(5_000, rel=0.02)
    assert dense == pytest.approx(DENSE_US, rel=0.05)


def test_of_two_recordings_the_shorter_step_is_taken(tmp_path: Path) -> None:
    """500 operators of 10 µs in the one, of 20 µs in the other: by the longer one alone the step would be twice as long."""
    made = []
    for name, every in (("short", 10.0), ("long", 20.0)):
        (tmp_path / name).mkdir()

        def body(recording: Recording, at: float, every: float = every) -> None:
            launches(recording, at, 500, every=every)

        trace = loop(tmp_path / name, 500 * every, body)
        made.append((trace, build(trace)))
    short, long = (calibrate(*each).step_ns for each in made)
    assert long > 1.5 * short
    pair = calibrate_pair(made[1], made[0])
    assert pair.step_ns == pytest.approx(short, rel=0.02)
    assert calibrate_pair(made[0], made[1]).step_ns == pytest.approx(short, rel=1e-6)
    assert not pair.known
    assert "light and a rich" in pair.basis


def waited_for(folder: Path) -> Trace:
    """250 operators, then a kernel of 10 ms that the host waits for: the device rests while the operators are called."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 250)
        recording.op("aten::mm", at + 2_500, at + 2_510)
        recording.launch(at + 2_502, "gemm", at + 2_512, at + 12_512, call=4)
        recording.wait(at + 2_515)

    return loop(folder, 12_700, body)


def test_a_step_that_the_estimate_meets_and_that_hardly_follows_the_host_says_nothing_about_it(
    tmp_path: Path,
) -> None:
    """1 % more is no sign of a host that is a tenth slower; 4 % more is no longer met."""
    trace = waited_for(tmp_path)
    estimated = calibrate(trace, build(trace))
    host_us = estimated.step_ns / 1e3 - 10_000
    assert 1_000 < host_us < 1_500
    met = calibrate(trace, build(trace), step_ns=estimated.step_ns * 1.01)
    assert met.representative
    assert not met.host_bound
    assert "the device's work is scaled by 1.01" in met.basis
    further = calibrate(trace, build(trace), step_ns=estimated.step_ns * 1.04)
    assert "the host is fitted" in further.basis
