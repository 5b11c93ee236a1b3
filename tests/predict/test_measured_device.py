"""What was measured beside the recording: how long the device works in a step, and how far timings differ."""

from __future__ import annotations

from math import exp, hypot, log
from pathlib import Path

import pytest

from foretrace.ingest.timed import DeviceTimes, Timed, read_timed
from foretrace.predict.builder import build
from foretrace.predict.calibrate import Calibration, calibrate
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.prediction import predict
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.loops import H200
from tests.predict.programs import Draft

COUNT, KERNEL_US, APART_US = 200, 6.0, 10.0
BUSY_NS = COUNT * KERNEL_US * 1e3  # as recorded, no two kernels run at a time
RECORDED_NS = COUNT * APART_US * 1e3


def two_streams(folder: Path) -> Trace:
    """Three steps of 200 operators 10 µs apart; their kernels of 6 µs take turns on two streams."""
    recording = Recording(deviceProperties=[H200])
    for number in range(3):
        begin = number * COUNT * APART_US
        for place in range(COUNT):
            at = begin + place * APART_US
            recording.op("aten::add", at, at + 9.5)
            recording.launch(at + 2, "add_kernel", at + 4, at + 4 + KERNEL_US, call=1.5, stream=7 + place % 2)
        recording.step(number, begin, begin + COUNT * APART_US)
    return recording.open(folder)


@pytest.mark.parametrize(("busy", "longer"), [(1.1, 1.1), (1.3, 1.15), (1.01, 1.0), (0.9, 1.0)])
def test_streams_that_overlap_less_than_replayed_make_the_work_longer(
    tmp_path: Path, busy: float, longer: float
) -> None:
    """By a tenth where the device is at work a tenth longer; a hundredth is nothing, and 15 % is the most."""
    trace = two_streams(tmp_path)
    measured = DeviceTimes(step_ns=RECORDED_NS, busy_ns=busy * BUSY_NS)
    found = calibrate(trace, build(trace), step_ns=1.2e6, device=measured)
    assert found.program.task_dur_ns.tolist() == pytest.approx([longer * 6_000] * 3 * COUNT, rel=0.02)
    assert found.representative


def test_what_rank_json_says_of_the_device_is_read() -> None:
    assert read_timed({"device_time": {"step_ns": 7e6, "busy_ns": 5e6}}, {}).device == DeviceTimes(7e6, 5e6)
    unusable: tuple[object, ...] = (
        {}, {"step_ns": 7e6}, {"step_ns": 5e6, "busy_ns": 7e6}, {"step_ns": "7", "busy_ns": 5}, [],
    )  # fmt: skip
    for facts in unusable:
        assert read_timed({"device_time": facts}, {}).device is None


def test_timings_differ_by_their_standard_error() -> None:
    """Blocks at 90, 100 and 110: half of them within 10 of the middle, so 14.8 is their deviation; two timings of nine."""
    scattered = Timed((90.0, 100.0, 110.0) * 3)
    assert scattered.scatter == pytest.approx(0.148 * (2 / 9) ** 0.5, rel=0.01)
    hiccup = Timed((100.0,) * 8 + (400.0,))
    assert hiccup.scatter == 0, "one of nine is chance"
    assert Timed(()).scatter == Timed((0.0, 0.0)).scatter == 0


def test_a_step_that_scatters_widens_the_range_and_may_cost_a_promise() -> None:
    program = Draft().launch(0, 0, 100_000).program()
    change = Change("shorter", Edit(durations_ns={0: 80_000}))

    def made(scatter: float) -> Calibration:
        return Calibration(program, 100_000, "made by hand", True, True, True, scatter=scatter)

    steady, scattering = (predict(made(scatter), (change,)) for scatter in (0.0, 0.25))
    assert steady.speedup.point == scattering.speedup.point == pytest.approx(1.25)
    off = log(1.25 / steady.speedup.low)
    assert scattering.speedup.low == pytest.approx(1.25 / exp(hypot(off, 0.25)))
    assert (steady.verdict, scattering.verdict) == ("gain", "uncertain")
