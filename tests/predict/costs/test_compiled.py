"""Compiled kernels: the longest of moving, computing and what stays as it was."""

from __future__ import annotations

import pytest

from foretrace.hardware import match
from foretrace.predict.costs.compiled import START_NS, instructions, kernel_ns


@pytest.mark.parametrize(
    ("moved_bytes", "instruction_count", "at_least_ns", "longest_ns"),
    [
        (3.84e9, 0, 0, 1e6),  # 80 % of 4.8 TB/s
        (0, 67_000_000_000, 0, 2e6),  # two operations each of 67 TFLOP/s
        (3.84e9, 67_000_000_000, 3_000_000, 3e6),
    ],
)
def test_the_longest_counts(
    moved_bytes: float, instruction_count: int, at_least_ns: int, longest_ns: float
) -> None:
    h200 = match("NVIDIA H200")
    assert h200
    kernel = kernel_ns(
        h200, moved_bytes=moved_bytes, instruction_count=instruction_count, at_least_ns=at_least_ns
    )
    assert kernel == pytest.approx(longest_ns + START_NS, rel=1e-6)


def test_functions_take_more_instructions_than_arithmetic() -> None:
    assert instructions("aten::tanh") == instructions("aten::tanh_") > instructions("aten::add_")
