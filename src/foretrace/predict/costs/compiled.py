"""Compiled code: what one kernel in place of several operators takes, and what it costs to launch it.

Rates are of Triton kernels in recordings of compiled programs on an H200 (BERT, T5, a U-Net, GPT-2), lowered where
predictions for other compiled programs came out too good: the compiler fuses a little less than the model of it.
"""

from __future__ import annotations

from foretrace.hardware import Device
from foretrace.predict.costs import streaming
from foretrace.sourced import JUDGEMENT, Count, Factor, Nanoseconds, Share

_KERNELS = "411 Triton kernels of four compiled programs, and the compiled pairs of docs/accuracy.md"
START_NS = Nanoseconds(1_200, "a fused kernel, around its work", _KERNELS, devices="H200")
POINTWISE_SHARE = Share(
    0.78, "the memory's bandwidth, reached by fused pointwise kernels", _KERNELS, devices="H200"
)
ROWS_SHARE = Share(
    0.60, "the memory's bandwidth, reached by fused kernels that reduce rows", _KERNELS, devices="H200"
)
COLUMNS_SHARE = Share(
    0.62, "the memory's bandwidth, reached by fused kernels that reduce columns", _KERNELS, devices="H200"
)
PLANES_SHARE = Share(
    0.75,
    "the memory's bandwidth, reached by the statistics of batch and group norm",
    _KERNELS,
    devices="H200",
)
LONG_ROW = Count(8_192, "values of a row, from which on it is read a second time", _KERNELS, devices="H200")
STATISTICS = Count(
    80,
    "instructions for each element of a batch norm's statistics",
    "ResNet-50 and the corpus's nchw_conv, compiled",
    devices="H200",
)
GROUPED = Factor(
    2.5,
    "times as many for a group norm's",
    "two U-Nets among the pairs of docs/accuracy.md, compiled",
    devices="H200",
)
HALF = Count(
    10, "instructions to convert an element of half precision that is read or written",
    "GELU and its gradient in a compiled GPT-2: 53 and 71 in all", devices="H200",
)  # fmt: skip
_COMPILED = "docs/accuracy.md, twelve programs: 0.27 to 1.32, median 0.80"
OPERATOR_COST = Factor(
    0.8,
    "times what an operator costs the host: compiled code launches fewer, and has no Python between them",
    _COMPILED,
    devices="H200's host",
)
CHEAPEST, DEAREST = (
    Factor(0.4, "the same, at best", _COMPILED, devices="H200's host"),
    Factor(1.2, "the same, at worst", _COMPILED, devices="H200's host"),
)
GUARDS = Share(
    0.3,
    "what an operator costs the host, to check the parameters of each that stays in the forward pass",
    "ViT, BERT and Qwen2 of transformers with mode=reduce-overhead: 0.8 to 1 ms for 88 to 170 of them",
    devices="H200's host",
)
GRAPH_NS = Nanoseconds(
    80_000,
    "the host to check guards and enter a compiled graph: one forward, one backward",
    "compile.md's trial",
    devices="H200's host",
)
# Instructions for each element in fp32, as CUDA's mathematical functions compile.
_INSTRUCTIONS = {
    "tanh": 22, "sigmoid": 20, "silu": 21, "sin": 30, "cos": 30, "gelu": 30, "gelu_backward": 45, "erf": 25,
    "silu_backward": 25, "exp": 10, "log": 12, "log1p": 26, "softplus": 36, "pow": 10, "div": 10, "sqrt": 9,
    "rsqrt": 9, "native_dropout": 45, "upsample_linear1d": 20, "upsample_bilinear2d": 40, "upsample_trilinear3d": 80,
    "upsample_bicubic2d": 160,
    # Atomic additions: 640 million in 2.2 ms by torch's own scatter_add_, in a GCN; fused with their operands, about as long.
    "scatter_add": 117, "index_add": 117,
    # Atomic additions to few places; 17 ms became about 4 in DeepLabV3, one program.
    "upsample_bilinear2d_backward": 1150,
}  # fmt: skip
CACHED = Share(
    0.55,
    "the time of atomic additions, if half of the L2 cache holds what they add to",
    "LightGCN compiled: 256 million in 0.30 to 0.65 ms",
    devices="H200",
)
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
    "residue_promise of the pairs of docs/accuracy.md, tutorial_layer of the corpus",
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


def computing_ns(device: Device, instruction_count: float) -> float:
    """How long so many instructions take."""
    return instruction_count / (device.fp32_flops / 2) * 1e9  # a peak counts a multiply-add as two


def kernel_ns(device: Device, *, moved_bytes: float, instruction_count: int, at_least_ns: int) -> int:
    """How long a fused kernel takes: to move, to compute, or as long as the slowest part that stays as it was."""
    moving = streaming.moving_s(device, moved_bytes) * 1e9
    return round(max(moving, computing_ns(device, instruction_count), at_least_ns)) + START_NS
