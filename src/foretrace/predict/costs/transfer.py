"""Copies between the host and the device: how fast the bus moves pinned memory."""

from __future__ import annotations

from foretrace.hardware import Device
from foretrace.sourced import Bytes, Count, Share

PINNED_SHARE = Share(
    0.87,
    "the bus's bandwidth, reached by copies of pinned memory",
    "55.4 GB/s over PCIe 5 x16 in the corpus",
    devices="H200; older buses take their own peak",
)
STAGED_BYTES = Bytes(
    64 << 10,
    "pageable memory that CUDA takes at once; it makes the host wait for more",
    "CUDA Runtime API, API synchronization behavior",
)
UNKNOWN_BUS = Count(32_000_000_000, "bytes a second, where the bus is not known", "PCIe 4 x16")


def pinned_ns(device: Device | None, moved_bytes: int) -> int:
    """How long a copy of pinned memory takes."""
    bus = device.pcie_bytes if device and device.pcie_bytes else UNKNOWN_BUS
    return round(moved_bytes / (bus * PINNED_SHARE) * 1e9)
