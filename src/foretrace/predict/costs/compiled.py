"""Compiled code: what one kernel in place of several pointwise ones takes, and what it costs to launch it."""

from __future__ import annotations

from foretrace.hardware import Device
from foretrace.predict.costs import streaming
from foretrace.sourced import JUDGEMENT, Count, Factor, Nanoseconds, Share

START_NS = Nanoseconds(1_000, "a fused kernel, around its work", JUDGEMENT)
LAUNCH_COST = Factor(
    1.8,
    "times what an operator's launch costs the host: 26 against 14.5 µs",
    "benchmarks/pairs",
    devices="H200",
)
# Instructions for each element in fp32, as CUDA's mathematical functions compile.
_INSTRUCTIONS = {
    "tanh": 22, "sigmoid": 20, "silu": 21, "sin": 30, "cos": 30, "gelu": 30, "gelu_backward": 45, "erf": 25,
    "silu_backward": 25, "exp": 10, "log": 12, "log1p": 26, "softplus": 36, "pow": 10, "div": 10, "sqrt": 9,
    "rsqrt": 9, "native_dropout": 20,
}  # fmt: skip
OTHER_INSTRUCTIONS = Count(
    3,
    "instructions for each element of any other operator: part of a load, and one or two of arithmetic",
    JUDGEMENT,
)
# torch's layer norm gives each row a block, and is far from the bandwidth where rows are short: 656 µs for 590,000 rows of
# 128 values in bf16 on an H200, which take 82 at 3.7 TB/s. Compiled code reads several rows at once. On rows of 512, in the
# corpus's tutorial_layer, compiling brought no more than with the norm as it was.
SHORT_ROW = Count(
    256,
    "values of a row; compiled code normalises several shorter ones at once",
    "residue_promise of benchmarks/pairs, tutorial_layer of the corpus",
    devices="H200",
)
UNKNOWN_OPERAND = Share(
    0.5,
    "operands that shapes do not tell to come from outside the chain or from within, counted as moved",
    JUDGEMENT,
)


def instructions(op: str) -> int:
    """How many instructions an operator takes for each element."""
    return _INSTRUCTIONS.get(op.removeprefix("aten::").removesuffix("_"), OTHER_INSTRUCTIONS)


def kernel_ns(device: Device, *, moved_bytes: float, instruction_count: int, at_least_ns: int) -> int:
    """How long a fused kernel takes: to move, to compute, or as long as the slowest part that stays as it was."""
    moving = streaming.moving_s(device, moved_bytes) * 1e9
    computing = instruction_count / (device.fp32_flops / 2) * 1e9  # a peak counts a multiply-add as two
    return round(max(moving, computing, at_least_ns)) + START_NS
