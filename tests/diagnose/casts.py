"""Casts on the device, and work beside them."""

from __future__ import annotations

from tests.diagnose.kernels import ADD, CAST, Op

BF16, FP16, FP32 = "c10::BFloat16", "c10::Half", "float"


def cast(
    source: str, target: str, count: int = 1 << 20, outer: tuple[str, ...] = ("aten::to", "aten::_to_copy")
) -> Op:
    """A cast of 100 µs."""
    return Op("aten::copy_", CAST, 100, [[count], [count], []], [target, source, "Scalar"], outer)


def work(dur: float = 800) -> Op:
    """A kernel beside the casts."""
    return Op("aten::add", ADD, dur, [[1 << 20]], [FP32])
