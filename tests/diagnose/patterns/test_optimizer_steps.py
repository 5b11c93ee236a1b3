"""When optimizers step: all of a plain step, and of one that runs a closure what follows its backward pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns import optimizer_steps
from foretrace.trace import Trace
from tests.analyze.closures import AUTOGRAD, BACKWARD_END, LENGTH, STEP_END, closure_steps
from tests.builders import MAIN_THREAD, Recording

STEPS = 3


def stepping(trace: Trace, *, fusable: bool = True) -> list[tuple[int, int]]:
    """The times that it finds, in microseconds of the recording."""
    case = Case(trace)
    found = optimizer_steps.during(case, fusable=fusable)
    begun = case.program.start_ns
    return [
        ((int(start) + begun) // 1_000, (int(end) + begun) // 1_000)
        for start, end in zip(found.start, found.end, strict=True)
    ]


@pytest.mark.parametrize("thread", [AUTOGRAD, MAIN_THREAD])
def test_a_step_with_a_closure_begins_behind_its_backward(tmp_path: Path, thread: int) -> None:
    trace = closure_steps(steps=STEPS, thread=thread).open(tmp_path)
    assert stepping(trace) == [
        (number * LENGTH + BACKWARD_END, number * LENGTH + STEP_END) for number in range(STEPS)
    ]
    assert stepping(trace, fusable=False) == []


def test_a_plain_step_is_the_optimizers_from_its_beginning(tmp_path: Path) -> None:
    """The backward pass ended before it."""
    recording = Recording()
    for number in range(STEPS):
        at = number * LENGTH
        recording.step(number, at, at + LENGTH)
        recording.op("autograd::engine::evaluate_function: MulBackward0", at + 10, at + 90, thread=AUTOGRAD)
        recording.launch(at + 20, "backward_kernel", at + 30, at + 40, thread=AUTOGRAD)
        recording.annotation("Optimizer.step#Lion.step", at + 200, at + 600)
        recording.op("aten::add_", at + 210, at + 300)
        recording.launch(at + 220, "update_kernel", at + 230, at + 240)
    trace = recording.open(tmp_path)
    assert stepping(trace, fusable=False) == [
        (number * LENGTH + 200, number * LENGTH + 600) for number in range(STEPS)
    ]
    assert stepping(trace) == []  # torch has no fused form of Lion
