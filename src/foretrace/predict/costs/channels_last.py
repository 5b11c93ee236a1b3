"""Layers for images in channels-last order: what is left of the time of those for planar tensors (NCHW)."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Factor, Share

_TWO_PAIRS = "two pairs of benchmarks/pairs"
NORM_SHARE = Share(
    0.35, of="the memory's bandwidth, reached by batch norm in training", source=_TWO_PAIRS, devices="H200"
)
NORM_PASSES = Factor(
    1.6, of="times the bytes of batch norm's result and inputs: its statistics take a pass of their own",
    source="3 tensors moved for 2 forward, 5 for 3 backward",
)  # fmt: skip
SERVED_NORM_SHARE = Share(
    0.55, of="the memory's bandwidth, reached by batch norm whose statistics are given", source="benchmarks/pairs",
    devices="H200",
)  # fmt: skip
DEPTHWISE_TIME = Share(
    0.35, of="the time of torch's depthwise kernels that cuDNN's for channels last take", source="two measured nets",
    devices="H200",
)  # fmt: skip
FASTER_KERNELS = Factor(
    1.15,
    of="times as fast, at best, since normalisation and pooling have faster kernels too",
    source=JUDGEMENT,
)
