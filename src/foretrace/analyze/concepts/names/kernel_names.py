"""What each kernel name tells, decoded once per distinct name.

Names are a vendor's build strings, not documentation: what a name does not tell is null, and whether it uses
tensor cores is then unknown, not no.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from foretrace.analyze.concepts.names import gemm_names
from foretrace.analyze.concepts.names.attention_names import attention
from foretrace.analyze.concepts.names.inductor_names import inductor
from foretrace.analyze.concepts.names.kernel_facts import (
    COMMUNICATION,
    UNKNOWN,
    KernelName,
    direction_of,
    family_of,
)
from foretrace.analyze.concepts.names.kernel_words import WORDS

__all__ = ["KernelName", "decode"]

_LONGEST = 2048  # characters looked at; templates of templates tell no more after that


@lru_cache(maxsize=65536)
def decode(name: str) -> KernelName:
    """What this kernel name tells."""
    decoded = _decoded(name[:_LONGEST])
    return decoded if len(name) <= _LONGEST else replace(decoded, name=name)


def _decoded(name: str) -> KernelName:
    for pattern, decoder in _DECODERS:
        if match := re.search(pattern, name):
            return decoder(name, match)
    for word in WORDS:
        if re.search(word.pattern, name):
            return KernelName(
                name=name,
                family=word.family or family_of(name),
                role=word.role,
                text=word.text,
                tensor_cores=word.tensor_cores,
                direction=direction_of(name),
                split_k=word.text.startswith("sums the partial"),
            )
    return KernelName(
        name=name, family=family_of(name), role=UNKNOWN, text="a kernel whose name is not known here"
    )


def _collective(name: str, _: re.Match[str]) -> KernelName:
    family = "rccl" if "rccl" in name.lower() else "nccl" if "nccl" in name.lower() else family_of(name)
    what = re.search(
        r"(?i)all_?reduce|all_?gather|reduce_?scatter|broadcast|send_?recv|all_?to_?all|reduce", name
    )
    said = f": {what.group()}" if what else ""
    text = f"communication between GPUs{said}; its time includes waiting for the other ranks"
    return KernelName(name=name, family=family, role=COMMUNICATION, text=text, tensor_cores=False)


_Decoder = Callable[[str, "re.Match[str]"], KernelName]
_DECODERS: tuple[tuple[str, _Decoder], ...] = (
    (
        r"(?i)^(?:void )?(?:nccl|rccl|msccl)|ncclDevKernel|ncclKernel|cross_device_reduce|multimem_all_reduce|nvshmem"
        r"|(?:one|two)_shot_all_reduce|all_?reduce_(?:one|two)_shot|allreduce_fusion|trtllm_allreduce",
        _collective,
    ),
    (
        r"^triton_(?P<kind>poi|red|per|mix|for|spl|tem)_fused(?P<ops>(?:_\w*?)?)(?:_\d+)?$",
        inductor,
    ),
    (
        r"^nvjet_(?:sm\d+[a-z]?_)?(?P<letters>[a-z]{3,6})_(?:mma_)?(?P<tile>\d+x\d+(?:x\d+)?)"
        r"(?:_(?P<depth>\d+)x(?P<stages>\d+))?.*?(?:_(?P<layout>[TN]{2,4}))?$",
        gemm_names.nvjet,
    ),
    (
        r"Cijk_A(?P<a>ilk|lik)_B(?P<b>ljk|jlk)_(?P<types>[A-Z0-9_]*?)_?(?=Bias|MT|UserArgs|HA_|SAV)"
        r".*?MT(?P<tile>\d+x\d+x\d+)",
        gemm_names.tensile,
    ),
    (
        r"""(?x)(?P<efficient>fmha_cutlass[FB]|PyTorchMemEffAttention|AttentionKernel<|efficient_attention)
        |(?P<trtllm>fmhaSm\d+|fmha_v2|mmha|masked_multihead)
        |(?P<cudnn>cudnn_generated_\w*(?:sdpa|flash|mha)|cudnn::fusion::(?:compute_dot_do_o|convert_dq))
        |(?P<ck>FmhaFwd|FmhaBwd|fmha_fwd|fmha_bwd|aiter::fmha|_fmha_)
        |(?P<flash>pytorch_flash|flash_fwd|flash_bwd|flash::|FlashAttn|flash_attn|BatchPrefillWith|BatchDecodeWith
          |SinglePrefillWith|SingleDecodeWith|flash_mla)
        |(?P<triton>^attn_fwd|^attn_bwd|^bwd_kernel_(?:d|fuse)|unified_attention|^_attn_|paged_attention_(?:2d|3d)|^_fwd_kernel
          |^_bwd_kernel_(?:dk|dq)|flex_attention|^reduce_segments$|^bwd_preprocess$|^_fwd_grouped_kernel)
        |(?P<other>paged_attention|multihead_attention|_mha_)""",
        attention,
    ),
    (
        r"xmma_(?P<conv>fprop_|dgrad_|wgrad_)?(?:sparse_|warp_specialized_|indexed_)*(?:implicit_)?(?:sparse_)?gemm_"
        r"(?:indexed_|wo_smem_|strided_)*(?P<stored>b?f16|tf?32|tf32|f32|f64|e4m3|e5m2|i8|s8)"
        r"(?:b?f16|tf32|f32|f64|e4m3|e5m2|i8|s8)_"
        r"(?P<multiplied>tf32|bf16|f16|f32|f64|e4m3|e5m2|i8|s8)(?P<total>f32|f16|f64|i32)_(?P<target>bf16|f16|f32|f64|i8|i32)"
        r"(?:_(?P<layout>[tn]{2})_[tn])?",
        gemm_names.xmma,
    ),
    (
        r"^bmm_(?P<target>[A-Z]\w*?)_(?P<source>[A-Z]\w*?)_(?P<total>Fp32|Fp16)_t(?P<tile>\d+x\d+x\d+)u?\d*_s(?P<stages>\d+)"
        r".*?_(?P<layout>[TN]{2})_",
        gemm_names.trtllm,
    ),
    (
        r"^_?p?_?matmul_ogs_\w*?_(?P<out>[a-wyz0-9]+)x(?P<a>[a-wyz0-9]+)x(?P<b>mxfp\d|[a-wyz0-9]+)_(?P<tile>\d+x\d+x\d+)",
        gemm_names.triton_matmul,
    ),
    (
        r"cutlass_(?:\d+_)?(?:simt|tensorop|wmma)\w*"
        r"|(?:cudnn_)?(?:infer_|train_)?(?:maxwell|pascal|volta|turing|ampere|ada|hopper|sm\d\d)_"
        r"\w*?(?:[sdhicz]?\d*gemm|gcgemm|[shi]\d*cudnn|hmma|wmma|conv|dgrad|wgrad|fprop)\w*",
        gemm_names.blas,
    ),
    (
        r"^(?=.*cutlass).*(?:ImplicitGemm|GemmUniversal|kernel4Gemm|DefaultGemm|MmaMultistage|gemm6kernel)",
        gemm_names.template,
    ),
)
