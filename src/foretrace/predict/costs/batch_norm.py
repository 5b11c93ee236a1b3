"""Batch norm in bf16 over planar (NCHW) tensors: torch runs kernels of its own there, in fp32 cuDNN's.

Its statistics, and both parts of its gradient, are computed by one block of up to 512 threads for each channel: a few
channels leave most of the device idle, however many elements there are, and fewer bytes do not help.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil, prod

from foretrace.hardware import Device
from foretrace.predict.costs import streaming
from foretrace.sourced import Count, Nanoseconds, Share

_MEASURED = (
    "fitted to 7 recordings in bf16 (torchvision's DeepLabV3, the corpus and the pairs of docs/accuracy.md): of 64 times half are within "
    "9 %, nine tenths within 27 %"
)
_BLOCK = Count(512, "threads of a channel's block at most", "ATen/native/cuda/Normalization.cuh")
_LEAST_BLOCK = Count(32, "threads along a plane at least", "ATen/native/cuda/Normalization.cuh")
STATISTICS_NS = Nanoseconds(
    820, "the statistics of a thousand elements of a channel", _MEASURED, devices="H200"
)
GRADIENT_NS = Nanoseconds(
    1_750, "the gradient of a thousand elements of a channel", _MEASURED, devices="H200"
)
_CACHED = Share(
    0.7, "the time of a channel, where what is read fits half of the L2 cache", _MEASURED, devices="H200"
)
_READ_SHARE = Share(0.22, "the bandwidth, reached by the statistics", _MEASURED, devices="H200")
_APPLIED_SHARE = Share(0.38, "the bandwidth, reached where the norm is applied", _MEASURED, devices="H200")
_GRADIENT_SHARE = Share(0.46, "the bandwidth, reached by the gradient", _MEASURED, devices="H200")
_ITEM_BYTES = 2


@dataclass(frozen=True)
class Size:
    """What is normed."""

    channels: int
    of_channel: int  # elements
    plane: int  # elements of one channel of one sample

    @property
    def padded(self) -> float:
        """How many times the elements there are places for, as threads go along a plane."""
        threads = int(_LEAST_BLOCK)
        while threads < min(self.plane, _BLOCK):
            threads *= 2
        return ceil(self.plane / threads) * threads / self.plane


def size(shapes: str | None) -> Size | None:
    """The size of an operator's first tensor; None where it is not known."""
    try:
        samples, channels, *sides = map(int, json.loads(shapes or "")[0])
    except (ValueError, TypeError, LookupError):
        return None
    plane = prod(sides)
    return Size(channels, samples * plane, plane) if min(samples, channels, plane) > 0 else None


def time_ns(device: Device, normed: Size, *, backward: bool, trains: bool = True) -> int:
    """How long it takes, forward or backward; a model that does not train has its statistics."""
    elements = normed.channels * normed.of_channel

    def moving_ns(tensors: int, share: float) -> float:
        return streaming.moving_s(device, tensors * _ITEM_BYTES * elements, share) * 1e9

    def channel_ns(of_thousand_ns: float, tensors: int) -> float:
        cached = 2 * tensors * _ITEM_BYTES * elements <= device.l2_bytes
        return of_thousand_ns * normed.of_channel / 1000 * (_CACHED if cached else 1.0)

    if backward:  # reads both twice, writes one
        taken = max(channel_ns(GRADIENT_NS, 2), moving_ns(5, _GRADIENT_SHARE))
        return round(taken * normed.padded) + streaming.START_NS
    taken = moving_ns(2, _APPLIED_SHARE)
    taken += max(channel_ns(STATISTICS_NS, 1), moving_ns(1, _READ_SHARE)) if trains else 0.0
    return round(taken * normed.padded) + (2 if trains else 1) * streaming.START_NS
