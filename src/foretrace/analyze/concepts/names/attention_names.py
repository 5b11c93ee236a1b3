"""The names of fused attention kernels, decoded."""

from __future__ import annotations

import re

from foretrace.analyze.concepts.names.kernel_facts import ATTENTION, KernelName, direction_of

_ATTENTION_TYPES = (
    ("e4m3", "fp8"), ("E4m3", "fp8"), ("e5m2", "fp8"), ("bfloat16", "bf16"), ("bf16", "bf16"), ("BFloat16", "bf16"),
    ("half_t", "fp16"), ("fp16", "fp16"), ("f16", "fp16"), ("Half", "fp16"), ("f32", "fp32"),
)  # fmt: skip


def attention(name: str, match: re.Match[str]) -> KernelName:
    family = next(label for group, label in _ATTENTION_FAMILIES if match.groupdict().get(group))
    dtype = next((dtype for word, dtype in _ATTENTION_TYPES if word in name), None)
    if family == "cuDNN" and dtype == "fp16":
        dtype = None  # its f16 stands for both 16-bit types
    old = re.search(r"_sm(50|70|75)\b", name)
    cores: bool | None = True
    if family == "fmha_cutlass" and dtype == "fp32":
        # On sm80 and later PyTorch's kernel multiplies fp32 as three TF32 products (OpMultiplyAddFastF32).
        cores = not old
    elif family in {"Triton", "CK"} and dtype is None:
        cores = None
    shape = re.search(r"_(\d+x\d+(?:x\d+)?)_", name)
    direction = direction_of(name)
    part = {
        "forward": "fused attention, forward",
        "backward": "fused attention, backward",
        None: "fused attention",
    }
    helper = re.search(r"(?i)dot_do_o|convert_dq|preprocess|postprocess|combine|reduce_segments|merge", name)
    if helper:
        cores = False
    words = [part[direction] if not helper else "a small helper of fused attention", _ATTENTION_WORDS[family]]
    if dtype and not helper:
        words.append(f"{dtype} in")
    return KernelName(
        name=name, family=family, role=ATTENTION, text=", ".join(words), tile=shape.group(1) if shape else None,
        input_dtype=dtype, tensor_cores=cores, direction=direction,
    )  # fmt: skip


_ATTENTION_FAMILIES = (
    ("efficient", "fmha_cutlass"), ("flash", "flash"), ("cudnn", "cuDNN"), ("trtllm", "TensorRT-LLM"),
    ("ck", "CK"), ("triton", "Triton"), ("other", "flash"),
)  # fmt: skip
_ATTENTION_WORDS = {
    "fmha_cutlass": "the memory-efficient kernel of PyTorch or xFormers",
    "flash": "FlashAttention",
    "cuDNN": "cuDNN",
    "TensorRT-LLM": "TensorRT-LLM",
    "CK": "Composable Kernel",
    "Triton": "written in Triton",
}
