"""Links between devices: how fast they move a collective's bytes, and when one is slower than can be."""

from __future__ import annotations

from foretrace.hardware import PCIE_BYTES, Device
from foretrace.sourced import JUDGEMENT, Bytes, Count, Share

LARGE_BYTES = Bytes(
    1 << 20,
    "a message, from which its time is mostly transfer",
    "NCCL tests, doc/PERFORMANCE.md: bandwidths are read off large messages",
)
REACHED = Share(0.8, "a link's bandwidth, that large collectives reach", JUDGEMENT)
IMPLAUSIBLE = Share(
    0.1,
    "the bandwidth of PCIe, below which a link between GPUs is implausibly slow: a network of 100 Gb/s has 40 % of PCIe 4's",
    JUDGEMENT,
)
OLDEST_BUS = Count(
    round(PCIE_BYTES["3"]),
    "bytes a second, where the device is not known: PCIe 3 x16, the slowest that such devices have",
    "PCI Express Base Specification",
)
BF16_SHARE = Share(0.5, "the bytes of fp32, that bf16 takes", "16 and 32 bits a number")
BUCKET_BYTES = Bytes(
    25 << 20, "gradients that DDP sends at once", "torch.nn.parallel.DistributedDataParallel, bucket_cap_mb"
)


def bus_bytes_per_s(device: Device | None) -> float:
    """What PCIe moves in one direction: any two devices of a host reach each other over it."""
    return device.pcie_bytes if device and device.pcie_bytes else float(OLDEST_BUS)


def is_implausible(device: Device | None, bytes_per_s: float) -> bool:
    """Whether a link is so slow that something must be wrong with it."""
    return bytes_per_s < IMPLAUSIBLE * bus_bytes_per_s(device)


def transfer_ns(moved_bytes: float, link_bytes_per_s: float) -> int:
    """How long so many bytes over the bus take on a link of this bandwidth."""
    return round(moved_bytes / (link_bytes_per_s * REACHED) * 1e9)
