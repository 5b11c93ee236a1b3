"""Matrix products of a processor in bf16, against fp32."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Count, Factor, Nanoseconds

_EPYC = "benchmarks/cpu_rates.py; torch 2.13, one core of an EPYC 9004 (AVX512_BF16)"

AVX512 = Factor(2.05, "the rate of products in bf16 to that in fp32 with AVX512_BF16", f"{_EPYC}: 1.9 to 2.3")
AMX = Factor(3.0, "the rate of products in bf16 to that in fp32 with AMX", f"{JUDGEMENT}: not measured")
SET_UP_NS = Nanoseconds(15_000, "a product in bf16, besides its work", f"{_EPYC}: 8 to 20 µs")
CAST_NS = Nanoseconds(3_000, "a cast of a tensor to bf16, besides its elements", _EPYC)
CAST_NS_PER_ELEMENT = Factor(
    0.11, "nanoseconds an element, to cast it to bf16", f"{_EPYC}: 0.11 in the cache"
)
ATTENTION = Factor(
    1.2, "the time of torch's fused attention in bf16 to that in fp32", f"{_EPYC}: 1.06 to 1.3"
)
SHORT_BACKWARD = Factor(
    5.0, "the same, of its backward pass on short sequences", f"{_EPYC}: 4.1 and 5.5 at lengths of 32 and 64"
)
SHORT = 128  # tokens; 1.16 times at 256
MEMORY_BYTES_PER_NS = Factor(
    20.0,
    "bytes a nanosecond, below which an element-wise operator waits for memory",
    f"{_EPYC}: 19 from memory, 74 from the cache",
)
LEAST_ELEMENTS = Count(1 << 16, "elements of a tensor that memory is waited for", JUDGEMENT)
HALF = Factor(
    0.55,
    "the time of an element-wise operator that waits for memory, on tensors of half the size",
    f"{_EPYC}: half, and its call",
)
LEAST_ROWS = 4  # below, a product reads its weights and does little else: 0.7 times at one row


def in_bf16_ns(fp32_ns: float, rate: float) -> float:
    """What a product takes in bf16 that takes so long in fp32."""
    return fp32_ns / rate + SET_UP_NS


def cast_ns(elements: float) -> float:
    """What a cast of so many elements takes."""
    return CAST_NS + CAST_NS_PER_ELEMENT * elements


def waits_for_memory(own_ns: float, elements: float) -> bool:
    """Whether an element-wise operator on so many elements of fp32, read and written, is held up by memory."""
    return elements >= LEAST_ELEMENTS and 8 * elements < MEMORY_BYTES_PER_NS * own_ns
