"""Work that waits for memory: what it takes to read and write so many bytes."""

from __future__ import annotations

from foretrace.hardware import Device
from foretrace.sourced import JUDGEMENT, Nanoseconds, Share

BANDWIDTH_SHARE = Share(
    0.80,
    "the memory's bandwidth, reached by streaming kernels",
    "600 GEMM sizes and the pointwise kernels of the pairs of docs/accuracy.md",
    devices="H200",
)
MULTI_TENSOR_SHARE = Share(
    0.75, "the memory's bandwidth, reached by multi-tensor kernels (costs/foreach.py)", JUDGEMENT
)
WIDENING_SHARE = Share(
    0.40,
    "the memory's bandwidth, reached by a cast from half precision to fp32: half of what the other way reaches",
    "benchmarks/products.py, torch 2.11",
    devices="H200",
)
START_NS = Nanoseconds(
    2_000,
    "a kernel from its start to its first work, and back",
    "the pairs of docs/accuracy.md",
    devices="H200",
)


def rate_bytes_per_ns(device: Device, share: float = BANDWIDTH_SHARE) -> float:
    """How many bytes a streaming kernel moves in a nanosecond."""
    return device.memory_bandwidth_bytes * share / 1e9


def moving_s(device: Device, moved_bytes: float, share: float = BANDWIDTH_SHARE) -> float:
    """How long it takes to move so many bytes, in seconds."""
    return moved_bytes / (device.memory_bandwidth_bytes * share)
