"""Training loops as their memory's history shows them: what is kept and what is freed is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.analyze.snapshots.histories import ADAM, MAIN, MIB, TO_DEVICE, ZERO_GRAD, History, at_line, forward

LAYERS, PARAMETER, ACTIVATION, STATE = 3, 4 * MIB, 6 * MIB, 8 * MIB
STATE_LINE, LOOP_LINE = 200, 540

Hook = Callable[[History, int], None]


def layer(line: int) -> tuple[Any, ...]:
    """A stack of a layer's forward, called in a loop of the model's."""
    return (
        ("/me/layer.py", line, "forward"),
        ("/me/model.py", LOOP_LINE, "forward"),
        ("/me/train.py", 91, "<module>"),
    )


def train(
    steps: int, *, before_step: Hook | None = None, after_forward: Hook | None = None, after_step: Hook | None = None,
    optimizer_frames: bool = True, stop_in_backward: bool = False, free_stacks: bool = True,
) -> History:  # fmt: skip
    """Parameters, then steps of forward, backward, Adam and zero_grad."""
    made = History()
    for _ in range(LAYERS):
        made.alloc(PARAMETER, (TO_DEVICE, MAIN))
    for step in range(steps):
        if before_step:
            before_step(made, step)
        saved = []
        for _ in range(LAYERS):
            saved.append(made.alloc(ACTIVATION, layer(10)))
            passing = made.alloc(2 * MIB, layer(11))
            made.free(passing, layer(11) if free_stacks else ())
        if after_forward:
            after_forward(made, step)
        grads = []
        for block in reversed(saved):
            flowing = made.alloc(3 * MIB)  # autograd's thread: no Python
            grads.append(made.alloc(PARAMETER))
            made.free(block)
            made.free(flowing)
            if stop_in_backward and step == steps - 1:
                return made
        if optimizer_frames:
            working = made.alloc(MIB, (ADAM, MAIN))
            made.free(working, (ADAM, MAIN) if free_stacks else ())
            if step == 0:
                for _ in range(LAYERS):
                    made.alloc(
                        STATE, (("/site-packages/torch/optim/adam.py", STATE_LINE, "_init_group"), ADAM, MAIN)
                    )
        for block in grads:
            made.free(block, (ZERO_GRAD, MAIN) if free_stacks else ())
        if after_step:
            after_step(made, step)
    return made


def appends(line: int, size: int = 2 * MIB) -> Hook:
    """Something new each time, kept for good."""

    def hook(made: History, step: int) -> None:
        made.alloc(size, at_line(line))

    return hook


def keeps_last(line: int, length: int, size: int = 2 * MIB) -> Hook:
    """The last so many, as a deque does."""
    held: list[int] = []

    def hook(made: History, step: int) -> None:
        held.append(made.alloc(size, at_line(line)))
        if len(held) > length:
            made.free(held.pop(0), at_line(line))

    return hook


def keeps_last_growing(line: int, length: int) -> Hook:
    """The last so many, each larger than the one before."""
    held: list[int] = []

    def hook(made: History, step: int) -> None:
        held.append(made.alloc((2 + step) * MIB, at_line(line)))
        if len(held) > length:
            made.free(held.pop(0), at_line(line))

    return hook


def once(line: int, size: int = 16 * MIB) -> Hook:
    """A cache that the first step fills."""

    def hook(made: History, step: int) -> None:
        if step == 0:
            made.alloc(size, at_line(line))

    return hook


def kept_graph() -> Hook:
    """Each step's outputs of a module stay."""

    def hook(made: History, step: int) -> None:
        made.alloc(ACTIVATION, forward(33))
        made.alloc(MIB, forward(34))

    return hook
