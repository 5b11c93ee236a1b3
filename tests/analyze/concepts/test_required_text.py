"""What a name must hold for a pattern to match."""

from __future__ import annotations

import re

import pytest

from foretrace.analyze.concepts.names.kernel_facts import _FAMILIES
from foretrace.analyze.concepts.names.kernel_names import _DECODERS
from foretrace.analyze.concepts.names.kernel_words import WORDS
from foretrace.analyze.concepts.names.required_text import required, search

PATTERNS = [pattern for pattern, _ in _DECODERS] + [pattern for pattern, _ in _FAMILIES]
PATTERNS += [word.pattern for word in WORDS]
NAMES = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
    "triton_poi_fused_add_mul_0",
    "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_128x128_32x5_tn_align8>(Params)",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>",
    "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4",
    "Cijk_Ailk_Bljk_SB_MT64x64x8_SE",
    "_ZN2at6native12_GLOBAL__N_121multi_tensor_apply_kernelINS1_18TensorListMetadataILi4EEE",
    "Kernel2",
    "kernel",
    "",
)


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("softmax", {"softmax"}),
        ("(?i)SoftMax|pool", {"softmax", "pool"}),
        ("scan_?kernel", {"kernel"}),  # what may be left out parts the text
        ("layer_?norm", {"layer"}),
        (r"abcd+efghi", {"efghi"}),
        (r"abcdx{2}ef", {"abcd"}),
        (r"^(?:void )?(?:nccl|rccl)", {"nccl", "rccl"}),
        (r"(?:one|two)?_shot_reduce", {"_shot_reduce"}),
        (r"(?<!fb)gemm", {"gemm"}),
        (r"[a-z]+|gemm", None),  # the first alternative requires nothing
        (r"\w*_\d", None),
        ("(?x) soft max", None),
    ],
)
def test_a_pattern_requires_its_longest_plain_text(pattern: str, texts: set[str] | None) -> None:
    assert required(pattern) == texts


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_name_is_matched_as_by_the_pattern_alone(pattern: str) -> None:
    for name in NAMES:
        found, tried = search(pattern, name, name.casefold()), re.search(pattern, name)
        assert (found and found.span()) == (tried and tried.span()), name


def test_most_patterns_of_kernels_require_some_text() -> None:
    told = [pattern for pattern in PATTERNS if required(pattern) is not None]
    assert len(told) > 0.9 * len(PATTERNS)
