"""Convolutions: how long one takes on the tensor cores."""

from __future__ import annotations

import json
from math import inf

from foretrace.hardware import Device
from foretrace.predict.costs import streaming
from foretrace.predict.costs.gemm import TILE
from foretrace.sourced import Count, Share

PEAK_SHARE = Share(
    0.65, "the tensor cores' peak, reached by convolutions", "benchmarks/pairs", devices="H200"
)
LEAST_CHANNELS = Count(
    16,
    "channels of a group: the depth of one step of the tensor cores",
    "PTX ISA, mma.m16n8k16 of half precision",
)


def time_ns(
    device: Device, peak_flops: float, flops: float, moved_bytes: float, *, shapes: str | None, planar: bool
) -> float:
    """How long a convolution takes; infinite where it is none for the tensor cores.

    Tensor cores want channels last: `planar` tensors are converted, read and written once more.
    """
    used = used_share(shapes)
    computing = flops / (peak_flops * PEAK_SHARE * used) if used else inf
    moving = streaming.moving_s(device, moved_bytes)
    return (max(computing, moving) + (2 * moving if planar else 0.0)) * 1e9


def used_share(shapes: str | None) -> float:
    """Of a tile, what the narrower side of a convolution's weight fills: few channels leave most of it idle.

    Groups of few channels, as in depthwise convolutions, use the tensor cores for nothing.
    """
    try:
        *_, given, weight = (shape for shape in json.loads(shapes or "") if len(shape) > 2)
        out, channels = int(weight[0]), int(weight[1])
        if channels < LEAST_CHANNELS and int(given[1]) > channels:
            return 0.0
        return min(min(out, channels) / TILE, 1.0)
    except (ValueError, TypeError, LookupError):
        return 1.0
