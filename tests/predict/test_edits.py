"""Edits that no user writes by hand: launches captured in a graph, and changes with an unknown in them."""

from __future__ import annotations

from math import exp, hypot, log

import numpy as np
import pytest

from foretrace.predict import fusion
from foretrace.predict.calibrate import Calibration
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit, apply, merge
from foretrace.predict.fusion import Fused
from foretrace.predict.numbers import Calls, Tasks
from foretrace.predict.prediction import predict
from foretrace.predict.program import Program
from foretrace.predict.steady import step_ns
from tests.predict.programs import Draft


def launching() -> Program:
    """Ten kernels of 1 µs, launched every 10 µs."""
    draft = Draft()
    for _ in range(10):
        draft.launch(8_000, 2_000, 1_000, apart=1_000)
    return draft.program()


def test_captured_calls_cost_the_host_nothing_and_their_tasks_follow_closely() -> None:
    graph = Edit(captured_calls=Calls(np.arange(10)), added_host_ns={0: 5_000})
    assert step_ns(launching()) == pytest.approx(100_000, rel=0.01)
    # 10 · (1 µs + 0.15 µs) on the device, which the host's 5 µs do not reach
    assert step_ns(apply(launching(), graph)) == pytest.approx(11_500, rel=0.01)


def test_a_captured_call_keeps_what_is_not_launching() -> None:
    """A gap of 1 ms with no event in it: 40 µs are the call's, the rest is the program's own."""
    program = Draft().launch(1_000_000, 2_000, 1_000).program()
    assert step_ns(apply(program, Edit(captured_calls=Calls(np.arange(1))))) == pytest.approx(
        960_000, rel=0.01
    )


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ((), [25]),  # the run as one kernel
        ((3,), [25]),  # without the last of it, which stood for all: what is left is fused still
        ((1,), [25]),
        ((2, 3), [10]),  # one is left, and as long as it was
        ((1, 2, 3), []),
    ],
)
def test_what_one_change_removes_another_cannot_fuse(gone: tuple[int, ...], left: list[int]) -> None:
    """Kernels of 5, 10, 20 and 40 ns, of which the last three become one of 25."""
    program = Draft().launch(0, 0, 5).launch(0, 0, 10).launch(0, 0, 20).launch(0, 0, 40).program()
    fused = fusion.edit([Fused([1, 2, 3], 25, modelled=True)])
    other = Edit(removed_tasks=Tasks(np.array(gone, np.int64)))
    for pair in ((fused, other), (other, fused)):
        both = merge(pair)
        assert apply(program, both).task_dur_ns.tolist() == [5, *left]
        assert apply(program, merge((both, Edit()))).task_dur_ns.tolist() == [5, *left]


def test_a_removed_kernel_leaves_its_shorter_neighbour_as_the_other_change_says() -> None:
    """Casts around a kernel go, and the kernel itself takes half as long without them: nothing is left to fuse."""
    program = Draft().launch(0, 0, 10).launch(0, 0, 20).launch(0, 0, 40).program()
    fused = fusion.edit([Fused([0, 1, 2], 25, modelled=True)])
    uncast = Edit(removed_tasks=Tasks(np.array([0, 2])), durations_ns={1: 10})
    assert apply(program, merge((fused, uncast))).task_dur_ns.tolist() == [10]


def test_what_is_not_known_about_a_change_widens_its_range() -> None:
    program = launching()
    calibration = Calibration(program, 100_000, "made by hand", True, True, True)
    half = Edit(added_host_ns=dict.fromkeys(range(10), -5_000))
    alone = predict(calibration, (Change("half", half),))
    unsure = predict(calibration, (Change("half", half, others=(Edit(),)),))
    assert unsure.speedup.point == alone.speedup.point == pytest.approx(2, rel=0.01)
    slack = 1.08 + 0.12 * 0.5  # half of the step goes
    assert unsure.speedup.low == pytest.approx(2 / exp(hypot(log(2), log(slack))), rel=0.02), "2, or 1"
    assert unsure.verdict == "uncertain"
    assert alone.verdict == "gain"


def test_the_basis_says_what_the_step_follows() -> None:
    """10 us of work: most of a step of 12 us, little of one of 100 us that is not the host's launching either."""
    program = launching()
    for host_bound, step, says in (
        (True, 100_000, "follows the host;"),
        (False, 12_000, "follows the device;"),
        (False, 100_000, "follows what the host does or waits for beside torch's operators;"),
    ):
        calibration = Calibration(program, step, "made by hand", True, True, host_bound)
        assert says in predict(calibration, (Change("nothing", Edit()),)).basis


@pytest.mark.parametrize("what", ["removed_calls", "captured_calls"])
def test_host_work_at_a_call_that_another_change_takes_away_is_dropped(what: str) -> None:
    """One adds 5 µs at calls 2 and 3; the other removes or captures call 3, for 1 µs there of its own."""
    one = Edit(added_host_ns={2: 5_000, 3: 5_000})
    other = Edit(**{what: np.array([3])}, added_host_ns={3: 1_000})  # type: ignore[arg-type]
    for pair in ((one, other), (other, one)):
        assert merge(pair).added_host_ns == {2: 5_000, 3: 1_000}


def test_host_work_at_a_call_that_launches_nothing_any_more_is_dropped() -> None:
    """Call 0 loses one of its two kernels, call 1 its only one; call 2 never had any."""
    program = Draft().launch(8_000, 2_000, 10, 10).launch(8_000, 2_000, 10).call(8_000, 2_000).program()
    removed = Edit(removed_tasks=Tasks(np.array([0, 2])), added_host_ns=dict.fromkeys(range(3), 5_000))
    assert apply(program, removed).gap_ns.tolist() == [13_000, 8_000, 13_000]
    apart = (Edit(removed_tasks=Tasks(np.array([0, 2]))), Edit(added_host_ns=dict.fromkeys(range(3), 5_000)))
    assert apply(program, merge(apart)).gap_ns.tolist() == [13_000, 8_000, 13_000]


def test_no_more_host_work_is_taken_away_than_there_is() -> None:
    program = Draft().launch(8_000, 2_000, 10).launch(8_000, 2_000, 10).program()
    less = Edit(added_host_ns={0: -3_000, 1: -10_000})
    assert apply(program, less).gap_ns.tolist() == [5_000, 0]
