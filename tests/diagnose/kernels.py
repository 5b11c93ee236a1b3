"""Steps that follow the device: operators whose kernels run back to back, so that a change is worth what it takes off."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretrace.trace import Trace
from tests.builders import Recording

STEPS = 4
H200: dict[str, Any] = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 150109880320}
HOST_US = 20  # of one operator
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"


@dataclass(frozen=True)
class Op:
    """An operator, the kernel that it launches, and the microseconds that this takes."""

    name: str
    kernel: str
    dur: float
    shapes: list[Any] | None = None
    dtypes: list[str] | None = None
    outer: tuple[str, ...] = ()  # operators around it, outermost first
    args: dict[str, Any] = field(default_factory=dict)  # of the kernel
    inputs: list[str] | None = None  # values of its scalar arguments
    told: dict[str, Any] = field(default_factory=dict)  # more of the operator
    around: dict[str, Any] = field(default_factory=dict)  # of the outermost operator


def device_bound(folder: Path, ops: list[Op], *, device: dict[str, Any] | None = H200) -> Trace:
    """Four steps of these operators: the host runs ahead, and the device takes as long as its kernels."""
    return recorded(ops, device=device).open(folder)


def recorded(ops: list[Op], *, device: dict[str, Any] | None = H200) -> Recording:
    """The same, not written yet."""
    recording = Recording(**({"deviceProperties": [device]} if device else {}))
    length = len(ops) * HOST_US
    ready = 0.0
    for number in range(STEPS):
        recording.step(number, number * length, (number + 1) * length)
        for place, op in enumerate(ops):
            start = number * length + place * HOST_US
            told = {"Input Dims": op.shapes, "Input type": op.dtypes} if op.shapes is not None else {}
            if op.inputs is not None:
                told["Concrete Inputs"] = op.inputs
            for depth, name in enumerate(op.outer):
                recording.op(name, start, start + HOST_US, **({} if depth else op.around))
            recording.op(op.name, start, start + HOST_US, **told, **op.told)
            begin = max(ready, start + 8)
            recording.launch(start + 2, op.kernel, begin, begin + op.dur, call=4, **op.args)
            ready = begin + op.dur
    return recording
