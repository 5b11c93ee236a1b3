"""Matrix products of a processor in bf16, against fp32."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Factor, Nanoseconds

_EPYC = "benchmarks/cpu/rates.py; torch 2.13, one core of an EPYC 9004 (AVX512_BF16)"

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
LEAST_ROWS = 4  # below, a product reads its weights and does little else: 0.7 times at one row


def in_bf16_ns(fp32_ns: float, rate: float) -> float:
    """What a product takes in bf16 that takes so long in fp32."""
    return fp32_ns / rate + SET_UP_NS


def cast_ns(elements: float) -> float:
    """What a cast of so many elements takes."""
    return CAST_NS + CAST_NS_PER_ELEMENT * elements
