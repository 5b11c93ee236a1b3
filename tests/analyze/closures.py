"""A hand-made step as Lightning runs it: forward and backward in a closure that the optimizer's step calls."""

from __future__ import annotations

from tests.builders import MAIN_THREAD, Recording

AUTOGRAD = 200
LENGTH = 1_000  # of a step, in microseconds
BACKWARD_END, STEP_END = 500, 900  # in a step: of its last autograd node, and of the optimizer


def closure_steps(*, steps: int = 1, thread: int = AUTOGRAD) -> Recording:
    """Steps whose optimizer begins 10 us in: forward from 20, backward to 500, the update from 600 to 900.

    The kernels are of 10 us for the forward, 20 for the backward, 40 for gradients set to zero and 80 for the update.
    """
    recording = Recording()
    for number in range(steps):
        at, device = number * LENGTH, number * LENGTH + 50
        recording.step(number, at, at + LENGTH)
        recording.annotation("Optimizer.step#AdamW.step", at + 10, at + STEP_END)
        recording.op("aten::linear", at + 20, at + 90, **{"Sequence number": 5, "Fwd thread id": 0})
        recording.launch(at + 30, "forward_kernel", device, device + 10)
        recording.annotation("Optimizer.zero_grad#AdamW.zero_grad", at + 100, at + 190)
        recording.op("aten::zero_", at + 110, at + 180)
        recording.launch(at + 120, "zero_kernel", device + 100, device + 140)
        link = {"Sequence number": 5, "Fwd thread id": 1}
        node = "autograd::engine::evaluate_function: LinearBackward0"
        recording.op(node, at + 200, at + BACKWARD_END, thread=thread, **link)
        recording.op("aten::mm", at + 210, at + 300, thread=thread)
        recording.launch(at + 220, "backward_kernel", device + 200, device + 220, thread=thread)
        recording.op("aten::add_", at + 600, at + 700, thread=MAIN_THREAD)
        recording.launch(at + 610, "update_kernel", device + 600, device + 680)
    return recording
