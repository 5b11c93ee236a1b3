"""A KernelName is what a GPU kernel's name tells: whose it is, what it does, and how it was built."""

from __future__ import annotations

import re
from dataclasses import dataclass

GEMM = "gemm"
ATTENTION = "attention"
CONVOLUTION = "convolution"
ELEMENTWISE = "elementwise"
REDUCTION = "reduction"
NORM = "norm"
SOFTMAX = "softmax"
OPTIMIZER = "optimizer"
EMBEDDING = "embedding"
COPY = "copy"
COMMUNICATION = "communication"
OTHER = "other"
UNKNOWN = "unknown"
ROLES = (
    GEMM, ATTENTION, CONVOLUTION, ELEMENTWISE, REDUCTION, NORM, SOFTMAX, OPTIMIZER, EMBEDDING, COPY,
    COMMUNICATION, OTHER, UNKNOWN,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KernelName:
    """What a kernel's name tells of it; null where it does not."""

    name: str
    family: str  # the library that it is from, or "unknown"
    role: str  # one of ROLES
    text: str  # what it does, in plain words
    layout: str | None = None  # tn: A transposed, B not, in BLAS's column-major terms
    tile: str | None = None  # of the result that one block computes, with the depth where told: 128x256x64
    stages: int | None = None  # tiles in flight between memory and the multipliers
    input_dtype: str | None = None
    accumulate_dtype: str | None = None
    output_dtype: str | None = None
    tensor_cores: bool | None = None  # None: the name does not tell
    split_k: bool = False  # several blocks sum one result
    direction: str | None = None  # forward, backward
    fused_ops: tuple[str, ...] = ()

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies matrices, also as a convolution."""
        return self.role in (GEMM, CONVOLUTION) and not self.text.startswith(("prepares", "scales", "sums"))

    @property
    def moves(self) -> bool:
        """Whether it only casts, copies or rearranges data; writing a cache of keys and values is no such move."""
        return self.role == COPY and not self.text.startswith("writes")


_FAMILIES = (
    (r"flashinfer|tensorrt_llm|trtllm", "TensorRT-LLM"),
    (r"^_ZN7ck_tile|ck_tile::|\bck::|_ZN2ck|\bck_", "CK"),
    (r"\bvllm::|_moe_C|sglang|sgl_", "vLLM/SGLang"),
    (r"fbgemm|split_embedding", "FBGEMM"),
    (r"\bmiopen|MIOpen|naive_conv|igemm_(?:fwd|bwd|wrw)_gtc", "MIOpen"),
    (r"rocprim|hipcub", "rocPRIM"),
    (r"rocblas|hipblas|Tensile|Cijk_", "rocBLAS"),
    (r"cudnn|convolve_sgemm|_alg0_engine|fft2d_|nhwc|Nhwc", "cuDNN"),
    (r"cublas|gemv|splitKreduce|gemmSN|gemmk1|scal_kernel|sgemm", "cuBLAS"),
    (r"at::native|at_cuda_detail::cub|at::cuda|cunn_|c10::|softmax_warp_|elementwise_kernel", "at::native"),
    (r"\bcub::|thrust::", "thrust/cub"),
    (r"transformer_engine", "TransformerEngine"),
    (r"apex|multi_tensor", "apex"),
    (r"cutlass|cute::", "cutlass"),
    (r"triton", "Triton"),
)


def family_of(name: str) -> str:
    """The library that the name points at."""
    # By text, here and in the other tables of names: compiled at import, the patterns would slow every command's start.
    return next((family for pattern, family in _FAMILIES if re.search(pattern, name)), UNKNOWN)


_BACKWARD = r"(?i)backward|_bwd|bwd_|bprop|dgrad|wgrad|grad_input|gradinput|_bw_|cutlassB_"
_FORWARD = r"(?i)forward|_fwd|fwd_|fprop|_fw_|cutlassF_"


def direction_of(name: str) -> str | None:
    """Forward or backward, where the name tells."""
    if re.search(_BACKWARD, name):
        return "backward"
    return "forward" if re.search(_FORWARD, name) else None
