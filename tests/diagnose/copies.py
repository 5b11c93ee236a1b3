"""Copies on the device, and operators that read them, with how their tensors lie in memory."""

from __future__ import annotations

from math import prod
from typing import Any

from tests.diagnose.kernels import ADD, CAST, Op


def work(name: str = "aten::bmm", dur: float = 800) -> Op:
    """A kernel beside the copies."""
    return Op(name, ADD, dur, [[1 << 20]], ["float"])


Layout = tuple[list[int], list[int]]  # shape and strides


def ordered(*shape: int) -> Layout:
    """A tensor whose elements follow one another."""
    return list(shape), [prod(shape[place + 1 :]) for place in range(len(shape))]


def laid(copy: Layout, original: Layout, *outer: str, memory_format: str = "0") -> Op:
    """A copy of 200 µs, with how both sides lie."""
    told = {"Input Strides": [copy[1], original[1], []]}
    around = {"Concrete Inputs": ["", memory_format]}
    return Op(
        "aten::copy_", CAST, 200, [copy[0], original[0], []], ["float", "float", "Scalar"], outer, told=told,
        around=around,
    )  # fmt: skip


def reads(
    name: str, *given: Layout, dur: float = 800, outer: tuple[str, ...] = (), inputs: list[str] | None = None
) -> Op:
    """An operator that is given these tensors."""
    told: dict[str, Any] = {
        "Input Dims": [each[0] for each in given],
        "Input Strides": [each[1] for each in given],
    }
    told["Input type"] = ["float"] * len(given)
    if outer:
        return Op(name, ADD, dur, outer=outer, around=told)
    return Op(name, ADD, dur, told=told, inputs=inputs)


CONTIGUOUS = ("aten::contiguous", "aten::clone")
SDPA = "aten::scaled_dot_product_attention"
