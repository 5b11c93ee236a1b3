"""How much memory a device has, and how much of it tensors can have."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Bytes, Share
from foretrace.trace import Trace

_MIB = 2**20
# What a process holds of the device before the first tensor: the CUDA context, and the kernels that it loads.
CONTEXT_BYTES = Bytes(600 * _MIB, "the device's memory, for the CUDA context and loaded kernels", JUDGEMENT)
CONTEXT_LEAST_BYTES = Bytes(400 * _MIB, "the same, at least", JUDGEMENT)
CONTEXT_MOST_BYTES = Bytes(1000 * _MIB, "the same, at most", JUDGEMENT)
# The allocator gives back what it caches before it gives up; what it cannot use are rests of blocks that it has split.
UNUSABLE = Share(0.02, "allocated memory, held besides by the allocator when the device is full", JUDGEMENT)
UNUSABLE_MOST = Share(0.08, "the same, at most", JUDGEMENT)
GROWTH_OFF = Share(
    0.03,
    "the bytes that grow with the batch, by which they may be off",
    "tests/analyze/test_memory_fit.py: 2 % at most",
)


def recorded_bytes(trace: Trace, device: str) -> int | None:
    """Bytes of memory that the device has, as recorded."""
    number = device.partition(":")[2]
    listed = trace.meta.get("devices", ())
    if not number.isdecimal() or not listed:
        return None
    matching = [recorded for place, recorded in enumerate(listed) if recorded.get("id", place) == int(number)]
    size = (matching or (listed if len(listed) == 1 else [{}]))[0].get("totalGlobalMem")
    return size if isinstance(size, int) and size > 0 else None
