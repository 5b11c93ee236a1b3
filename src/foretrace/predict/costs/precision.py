"""Types of fewer bytes: how large an element is, and what is left of a kernel's time in a smaller type."""

from __future__ import annotations

from foretrace.sourced import Nanoseconds, Share

ITEM_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}  # of an element in memory

HALF_BYTES_TIME = Share(
    0.55,
    "the time in fp32 that an operator takes in half precision, moving half the bytes",
    "activations, in the pairs of docs/accuracy.md",
    devices="H200",
)
HALF_BYTES_ROWS_TIME = Share(
    0.85,
    "the time in fp32 that a norm or softmax takes in half precision, where it stays below the bandwidth",
    "the pairs of docs/accuracy.md",
    devices="H200",
)
HALF_ATTENTION_TIME = Share(
    0.1,
    "the time in fp32 that fused attention takes in half precision, at least",
    "fp32's fused kernels reach 55 % of their peak, bf16's 75 % less an exponential per score",
    devices="H200",
)
HALF_ATTENTION_NS = Nanoseconds(
    4_000,
    "a kernel of fused attention in half precision, whatever its size",
    "benchmarks/products.py",
    devices="H200",
)
