"""Multi-tensor updates: fused optimizers and torch._foreach_*, one launch for many tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from foretrace.hardware import Device
from foretrace.predict.costs import streaming
from foretrace.sourced import JUDGEMENT, Count, Nanoseconds

TENSORS_PER_LAUNCH = Count(
    40,
    "tensors that one launch takes: what fits its arguments",
    "between the 36 and 48 of PyTorch's MultiTensorApply.cuh, for four and three lists of tensors",
)
HOST_NS_PER_TENSOR = Nanoseconds(1_000, "the host, each tensor of a launch", JUDGEMENT)
HOST_NS_PER_LAUNCH = Nanoseconds(10_000, "the host, each launch", JUDGEMENT)
# Operators that an optimizer calls once for each parameter, the most telling first, with the values that a fused kernel
# then moves for each element: weight and gradient read, weight written, and each moment read and written.
UPDATE_VALUES = {"aten::addcdiv_": 7, "aten::addcmul_": 7, "aten::sqrt": 7, "aten::mul_": 5, "aten::add_": 3}
MAXIMUM, MAXIMUM_VALUES = "aten::maximum", 2  # amsgrad keeps a third moment: one more read, one more written
LAUNCHES_PER_UPDATE = Count(10, "kernels for each parameter, where its operators are not known", JUDGEMENT)


@dataclass(frozen=True)
class Launches:
    """Launches over many tensors in place of one for each."""

    count: int
    device_ns: int  # each
    host_ns: int  # each


def launches(tensors: int, device_ns: int, *, per_launch: int = TENSORS_PER_LAUNCH) -> Launches:
    """How many launches so many tensors take, and what each costs if all take the GPU so long together."""
    count = max(ceil(tensors / per_launch), 1)
    host_ns = tensors * HOST_NS_PER_TENSOR // count + HOST_NS_PER_LAUNCH
    return Launches(count, device_ns // count, host_ns)


def moving_ns(device: Device, moved_bytes: float) -> int:
    """How long multi-tensor kernels take to move so many bytes."""
    return round(streaming.moving_s(device, moved_bytes, streaming.MULTI_TENSOR_SHARE) * 1e9)
