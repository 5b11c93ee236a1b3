"""A program that reads a value in every step, recorded by hand; and the same without the wait, or with more to do."""

from __future__ import annotations

from pathlib import Path

from tests.builders import Recording
from tests.diagnose.loops import H200, STEPS, item, launches

BEFORE, AFTER = (
    1_504,
    1_052,
)  # µs: the time of a step with the wait, and with all launches beside the kernel of 990 µs


def waiting(folder: Path) -> Path:
    """A kernel of 1 ms is waited for, then 0.5 ms of launching follows, which could run beside it."""
    recording = Recording(deviceProperties=[H200])
    for number in range(STEPS):
        at = number * BEFORE
        recording.step(number, at, at + BEFORE)
        recording.op("aten::mm", at, at + 10)
        recording.launch(at + 5, "gemm", at + 10, at + 1_000, call=2)
        item(recording, at + 10, at + 1_002)
        launches(recording, at + 1_002, 50)
    return recording.write(folder, "before.json")


def free(folder: Path, *, length: float = AFTER, device: str = "NVIDIA H200") -> Path:
    """The same without the wait: the host launches while the kernel runs."""
    recording = Recording(deviceProperties=[{**H200, "name": device}])
    for number in range(STEPS):
        at = number * length
        recording.step(number, at, at + length)
        recording.op("aten::mm", at, at + 10)
        recording.launch(at + 5, "gemm", at + 10, at + length - 52, call=2)
        for place in range(50):
            start = at + 10 + 10 * place
            recording.op("aten::add", start, start + 10)
            end = at + length - 51 + place
            recording.launch(
                start + 8, "add_kernel", end, end + 1, call=1.5, grid=[132, 1, 1], block=[256, 1, 1]
            )
    return recording.write(folder, "after.json")
