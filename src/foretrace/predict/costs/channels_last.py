"""Layers for images in channels-last order: what is left of the time of those for planar tensors (NCHW)."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Count, Factor, Share

# Kernels of cuDNN and MIOpen that turn planar tensors into channels-last order, or back.
CONVERSIONS = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|convertTensor_kernel|batched_transpose_\d+x\d+"
_TWO_PAIRS = "two pairs of docs/accuracy.md"
NORM_SHARE = Share(
    0.35, "the memory's bandwidth, reached by batch norm in training", _TWO_PAIRS, devices="H200"
)
NORM_PASSES = Factor(
    1.6,
    "times the bytes of batch norm's result and inputs: its statistics take a pass of their own",
    "3 tensors moved for 2 forward, 5 for 3 backward",
)
VOLUME_NORM_SHARE = Share(
    0.055,
    "the memory's bandwidth, reached by batch norm of volumes in training, forward: torch has no batch norm kernel for "
    "channels_last_3d, and casts to fp32 first",
    "torchvision's R3D-18 in both orders",
    devices="H200",
)
SERVED_NORM_SHARE = Share(
    0.55,
    "the memory's bandwidth, reached by batch norm whose statistics are given",
    "the pairs of docs/accuracy.md",
    devices="H200",
)
DEPTHWISE_TIME = Share(
    0.35,
    "the time of torch's depthwise kernels that cuDNN's for channels last take",
    "two measured nets",
    devices="H200",
)
RESIZING_TIME = Share(
    0.45,
    "the time of the gradient of bilinear resizing for planar tensors that the one for channels last takes",
    "DeepLabV3 under Lightning, one program",
    devices="H200",
)
TURNING_SHARE = Share(
    0.2,
    "the memory's bandwidth, reached by torch's copy of an fp32 tensor into the other order; in half precision, half of that",
    "benchmarks/products.py, copy_transposed",
    devices="H200",
)
TURNINGS = Count(
    2,
    "copies around a group norm of a channels-last tensor, which takes planar ones alone: into that order and back",
    "torch's native_group_norm",
)
FASTER_KERNELS = Factor(
    1.15, "times as fast, at best, since normalisation and pooling have faster kernels too", JUDGEMENT
)
