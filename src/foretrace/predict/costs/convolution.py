"""Convolutions: how long one takes on the tensor cores.

A convolution, and each of its two gradients, is a matrix product: of the positions by the channels that it makes, over what
the filter covers; the gradient of the filter, of the channels by the filter, over the positions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod

from foretrace.hardware import Device, peak_flops
from foretrace.predict.costs import gemm, streaming
from foretrace.predict.costs.precision import ITEM_BYTES
from foretrace.sourced import Count, Factor, Nanoseconds, Share

_MEASURED = "fitted to 93 sizes of known networks in TF32 and bf16, benchmarks/products.py, and rounded: half are within 30 %"
PEAK_SHARE = Share(0.7, "the tensor cores' peak, reached by convolutions", _MEASURED, devices="H200")
_INPUT_SHARE = Share(0.6, "the peak, reached by the gradient of the input", _MEASURED, devices="H200")
_FILTER_SHARE = Share(0.45, "the peak, reached by the gradient of the filter", _MEASURED, devices="H200")
FEW_CHANNELS = Count(
    16,
    "channels on either side, below which a tile is filled only so far: the depth of one step of the tensor cores",
    "PTX ISA, mma.m16n8k16 of half precision",
)
CONVERTED = Factor(
    2.5,
    "times the bytes of a convolution, moved to convert planar tensors there and back",
    _MEASURED,
    devices="H200",
)
_CONVERTED_NS = Nanoseconds(10_000, "the kernels that convert, whatever the size", _MEASURED, devices="H200")
_RATES = gemm.Rates(
    ((128, 128), (128, 256), (256, 128), (64, 128), (128, 64), (64, 64), (256, 64)),
    {},
    Factor(
        0.4,
        "a block of half the usual area multiplies at 2 to the minus this of the rate",
        _MEASURED,
        devices="H200",
    ),
    Count(1, "K that a block loads at once: padding is in the share", _MEASURED, devices="H200"),
    Count(
        1024,
        "K that each part takes at least where a small grid is split along it",
        _MEASURED,
        devices="H200",
    ),
    Nanoseconds(6_500, "a convolution, whatever its size", _MEASURED, devices="H200"),
)


_GROUPS = "benchmarks/products.py --layers: 21 sizes in groups, planar and channels-last, torch 2.11"
GROUPED_TIME, GROUPED_BACKWARD_TIME = (
    Share(
        0.72, "the time in TF32 that a convolution in groups takes in half precision", _GROUPS, devices="H200"
    ),
    Share(0.5, "the same of its gradients", _GROUPS, devices="H200"),
)
LONG_FILTER = Count(
    64,
    "elements of a filter, from which on cuDNN has no kernel of half precision for groups whose channels are no multiple of "
    "as many",
    f"{_GROUPS}: wav2vec 2.0's positions, filters of 128 over groups of 48 channels; none slow up to 49 elements, or with 64 "
    "channels",
    devices="H200",
)
_SLOW = "the same, and wav2vec 2.0 in bf16: 12.5, 12.8 and 16.2 ms for 38, 57 and 113 GFLOP"
SLOW_GROUP_NS = Nanoseconds(
    600_000, "each group of such a one forward, whatever its size", _SLOW, devices="H200"
)
SLOW_FLOPS = Factor(1.7e13, "operations a second that it computes beside that", _SLOW, devices="H200")


@dataclass(frozen=True)
class Groups:
    """A convolution in groups of more than one channel."""

    count: int
    channels: int  # of each
    filter: int  # elements of one channel of the filter
    backward: bool

    def half_ns(self, now_ns: float, flops: float) -> float:
        """How long it takes in half precision, if it takes so long in TF32."""
        if self.backward:
            return now_ns * GROUPED_BACKWARD_TIME
        if self.filter >= LONG_FILTER and self.channels % LONG_FILTER:
            return self.count * SLOW_GROUP_NS + flops / SLOW_FLOPS * 1e9
        return now_ns * GROUPED_TIME


def groups(shapes: str | None) -> Groups | None:
    """How a convolution is grouped; None where it is not, or by single channels, or its shapes are not known."""
    try:
        *grad, given, weight = (shape for shape in json.loads(shapes or "") if len(shape) > 2)
        made, channels, *sides = map(int, weight)
        if channels == 1 or int(given[1]) in (channels, made * channels) or int(given[1]) % channels:
            return None
    except (ValueError, TypeError, LookupError):
        return None
    return Groups(int(given[1]) // channels, channels, prod(sides), bool(grad))


@dataclass(frozen=True)
class Size:
    """What a convolution, or its gradients, work on."""

    given: int  # channels
    made: int
    filter: int  # elements of one channel of the filter
    positions: int  # of the result
    given_positions: int
    backward: bool

    @property
    def few_channels(self) -> bool:
        """Whether one side has so few channels that tiles stay nearly empty."""
        return min(self.given, self.made) < FEW_CHANNELS


def size(op: str, shapes: str | None, flops: float) -> Size | None:
    """The size of a convolution on tensor cores; None where it is none for them, or its shapes are not known.

    For groups see `groups`; of those measured none gained in TF32.
    """
    try:
        *grad, given, weight = (shape for shape in json.loads(shapes or "") if len(shape) > 2)
        made, channels, *sides = map(int, weight)
        transposed = int(grad[0][1]) == channels if grad else "transpose" in op
        if int(given[1]) != (made if transposed else channels):
            return None  # in groups
        given_positions = int(given[0]) * prod(map(int, given[2:]))
        covered = prod(sides)
        per_position = 2 * made * channels * covered
        positions = int(grad[0][0]) * prod(map(int, grad[0][2:])) if grad else round(flops / per_position)
    except (ValueError, TypeError, LookupError):
        return None
    return Size(channels, made, covered, max(positions, 1), max(given_positions, 1), bool(grad))


def time_ns(device: Device, dtype: str, product: Size, *, planar: bool) -> float:
    """How long a convolution takes, or both its gradients.

    Tensor cores want channels last: `planar` tensors are converted.
    """
    covered, positions = product.filter, product.positions
    elements = product.given * product.given_positions + product.made * (positions + product.given * covered)
    moving = streaming.moving_s(device, ITEM_BYTES[dtype] * elements)
    parts = [(gemm.Size(1, positions, product.made, product.given * covered), PEAK_SHARE)]
    if product.backward:
        spread = max(product.made * covered * positions // product.given_positions, 1)
        parts = [
            (gemm.Size(1, product.given_positions, product.given, spread), _INPUT_SHARE),
            (gemm.Size(1, product.made, product.given * covered, positions), _FILTER_SHARE),
        ]
    peak = peak_flops(device, dtype) or device.fp32_flops
    needed = 0.0
    narrow = min(product.given, product.made)
    for part, share in parts:
        used = narrow / gemm.TILE if product.few_channels else gemm.used(part, device.sm_count, _RATES)
        computing = part.flops / (peak * share * used)
        needed += max(computing, moving) * 1e9 + _RATES.start_ns
        needed += CONVERTED * moving * 1e9 + _CONVERTED_NS if planar else 0.0
    return needed
