"""From the recorded host to the unprofiled one: what is fitted to a measured step, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import Recording
from diagnose.loops import launches, loop

from foretrace.predict.calibrate import Calibration, calibrate, calibrate_pair, dense_ns
from foretrace.predict.program import build
from foretrace.trace import Trace

# 500 operators of 10 µs: less 0.5 µs for recording each, and at least 1.2 times slower as recorded, 7.92 µs at most.
DENSE_US = 500 * (8.5 - 0.5 + 1.5) / 1.2
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


def test_a_longer_step_is_longer_in_what_recording_does_not_touch(tmp_path: Path) -> None:
    """10 ms measured: the dense host is no slower than recorded, so that the rest is Python's."""
    found, pure, dense = fitted(program(tmp_path), 10_000)
    assert found.representative
    assert dense == pytest.approx(DENSE_US, rel=0.02)
    assert pure == pytest.approx(10_000 - DENSE_US, rel=0.02)


def test_a_shorter_step_is_shorter_in_its_dense_part(tmp_path: Path) -> None:
    found, pure, dense = fitted(program(tmp_path), 7_000)
    assert found.representative
    assert pure == pytest.approx(5_000, rel=0.03)  # 40 µs an event count as dense
    assert dense == pytest.approx(2_000, rel=0.1)


def test_python_may_take_a_tenth_less_where_the_dense_part_cannot_tell(tmp_path: Path) -> None:
    """At a fifth, the dense part still takes 0.8 ms: 5.5 ms need less than 5 of Python, 3 ms less than there can be."""
    found, pure, _ = fitted(program(tmp_path), 5_500)
    assert found.representative
    assert pure == pytest.approx(4_500, rel=0.04)
    assert not fitted(program(tmp_path), 3_000)[0].representative


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
    assert dense == pytest.approx(DENSE_US, rel=0.02)


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
