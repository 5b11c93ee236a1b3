"""Training steps with the allocator's events: the same program recorded as it is, and as it is with a fix made.

Two blocks, in thousands of millions of bytes: each saves 4 for its backward and returns 1; their parameters' gradients take 3
each. The optimizer's foreach form takes 12 for a while. What is there before the recording is 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrace.trace import Trace
from tests.builders import MAIN_THREAD, PROCESS, Recording
from tests.diagnose.loops import H200

UNIT = 1_000_000_000
LENGTH, STEPS, AUTOGRAD = 1_000, 3, 200
_NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Training:
    """A program: `zero_grad` frees gradients behind the step, or late, before the backward, or sets them to zero there."""

    checkpointed: bool = False
    foreach: bool = False
    zero_grad: str = "behind"
    optimizer: str = "SGD"
    dtype: str = "float"
    parameters: str = "float"
    reserved: int = 30
    device: dict[str, Any] | None = None

    def open(self, folder: Path, name: str = "trace.json") -> Trace:
        return _Writer(self).open(folder, name)


class _Writer:
    def __init__(self, training: Training) -> None:
        self.training = training
        self.recording = Recording(deviceProperties=[training.device or H200])
        self.held: list[tuple[float, int, str, int]] = []
        self.base = 10 + 6 * (training.zero_grad == "zeroes")
        for number in range(STEPS):
            at = number * LENGTH
            self.recording.step(number, at, at + LENGTH)
            self._forward(number, at)
            self._backward(number, at)
            self._update(number, at)

    def take(self, at: float, size: int, what: str, thread: int = MAIN_THREAD) -> None:
        self.held.append((at, size * UNIT, what, thread))

    def free(self, at: float, what: str, thread: int = MAIN_THREAD) -> None:
        sizes = [size for _, size, name, _ in self.held if name == what]
        self.held.append((at, -sizes[0], what, thread))

    def _forward(self, number: int, at: float) -> None:
        record, kind = self.recording, self.training.dtype
        record.python("nn.Module: Net_0", at, at + 300)
        for block in (0, 1):
            start, sequence = at + 10 + 100 * block, 10 * number + 2 * block
            record.python(f"nn.Module: Block_{block}", start, start + 90)
            record.op("aten::mm", start + 5, start + 35,
                      **{"Sequence number": sequence, "Fwd thread id": 0, "Input Dims": [[1000, 1000], [1000, 1000]],
                         "Input type": [kind, kind]})  # fmt: skip
            record.launch(start + 12, "gemm", start + 15, start + 35, call=2)
            self.take(start + 10, 4, f"saved {number} {block}")
            record.op(
                "aten::add", start + 40, start + 80, **{"Sequence number": sequence + 1, "Fwd thread id": 0}
            )
            record.launch(start + 47, "add", start + 50, start + 60, call=2)
            self.take(start + 45, 1, f"output {number} {block}")
            if self.training.checkpointed:
                self.free(start + 89, f"saved {number} {block}")

    def _backward(self, number: int, at: float) -> None:
        record = self.recording
        for block in (1, 0):
            start, sequence = at + 400 + 100 * (1 - block), 10 * number + 2 * block
            record.op(f"{_NODE}AddBackward0", start, start + 10, thread=AUTOGRAD,
                      **{"Sequence number": sequence + 1, "Fwd thread id": 1})  # fmt: skip
            saved = f"saved {number} {block}"
            if self.training.checkpointed:
                saved = f"again {number} {block}"
                self.take(start + 1, 4, saved, AUTOGRAD)
            self.take(start + 5, 1, f"passed {number} {block}", AUTOGRAD)
            record.op(f"{_NODE}MmBackward0", start + 20, start + 60, thread=AUTOGRAD,
                      **{"Sequence number": sequence, "Fwd thread id": 1})  # fmt: skip
            record.launch(start + 25, "gemm", start + 30, start + 55, call=2, thread=AUTOGRAD)
            self.take(start + 30, 3, f"gradient {number} {block}", AUTOGRAD)
            for after, what in (
                (55, saved),
                (56, f"passed {number} {block}"),
                (57, f"output {number} {block}"),
            ):
                self.free(start + after, what, AUTOGRAD)
            record.op("torch::autograd::AccumulateGrad", start + 62, start + 70, thread=AUTOGRAD,
                      **{"Input Dims": [[3 * UNIT // 4]], "Input type": [self.training.parameters]})  # fmt: skip
            if self.training.zero_grad == "zeroes":
                self.free(start + 69, f"gradient {number} {block}", AUTOGRAD)

    def _update(self, number: int, at: float) -> None:
        record, training = self.recording, self.training
        record.annotation(f"Optimizer.step#{training.optimizer}.step", at + 600, at + 700)
        record.op("aten::_foreach_mul" if training.foreach else "aten::_fused_sgd_", at + 610, at + 690)
        record.launch(at + 612, "update", at + 615, at + 660, call=2)
        if training.foreach:
            self.take(at + 620, 12, f"temporary {number}")
            self.free(at + 680, f"temporary {number}")
        if training.zero_grad == "behind":
            begin, freed = at + 710, number
        else:
            begin, freed = at + 310, number - 1
        record.annotation(f"Optimizer.zero_grad#{training.optimizer}.zero_grad", begin, begin + 10)
        if training.zero_grad == "zeroes":
            record.op("aten::_foreach_zero_", begin + 2, begin + 8)
        elif freed >= 0:
            for block in (0, 1):
                self.free(begin + 5 + block, f"gradient {freed} {block}")

    def open(self, folder: Path, name: str) -> Trace:
        addresses: dict[str, int] = {}
        total = self.base * UNIT
        for at, size, what, thread in sorted(self.held, key=lambda event: event[0]):
            total += size
            address = addresses.setdefault(what, len(addresses) + 1)
            args = {"Total Allocated": total, "Total Reserved": self.training.reserved * UNIT, "Bytes": size,
                    "Addr": address, "Device Type": 1, "Device Id": 0}  # fmt: skip
            self.recording.events.append(
                {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": PROCESS, "tid": thread,
                 "ts": at, "args": args}
            )  # fmt: skip
        return self.recording.open(folder, name)
