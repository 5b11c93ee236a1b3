"""Kernel names decoded: published names with what their vendors say of them, and all of the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace.analyze.concepts.names.inductor_names import inductor_ops
from foretrace.analyze.concepts.names.kernel_facts import ROLES
from foretrace.analyze.concepts.names.kernel_names import decode
from tests.corpus import CORPUS, needs_corpus

# name, family, role, input, sum, tile, stages, layout, tensor cores. CUTLASS names after its profiler.md and
# issue 1025; s16816 and s1688 are tensor-core shapes, sgemm and simt are not; Tensile after its parameters' page.
GEMMS = (
    ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
     "cuBLAS", "gemm", "bf16", "fp32", "128x256x64", 3, "tn", True),
    ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn",
     "cuBLAS", "gemm", "fp16", "fp32", "64x64x64", 6, "tn", True),
    ("cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x4_tn_align8",
     "cutlass", "gemm", "fp16", "fp32", "128x128x32", 4, "tn", True),
    ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(x::Params)",
     "cutlass", "gemm", "bf16", "fp32", "16x16x128", 2, "tn", True),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(x::Params)",
     "cutlass", "gemm", "fp32", "fp32", "128x256x8", 4, "nt", False),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(x::Params)",
     "cutlass", "gemm", "tf32", "fp32", "128x128x16", 4, "nn", True),
    ("volta_sgemm_128x64_nn", "cuBLAS", "gemm", "fp32", "fp32", "128x64", None, "nn", False),
    ("volta_h884gemm_256x64_ldg8_nn", "cuBLAS", "gemm", "fp16", "fp16", "256x64", None, "nn", True),
    ("turing_fp16_s1688gemm_fp16_256x64_ldg8_f2f_nn",
     "cuBLAS", "gemm", "fp16", "fp32", "256x64", None, "nn", True),
    ("maxwell_fp16_sgemm_fp16_128x64_nn", "cuBLAS", "gemm", "fp16", "fp32", "128x64", None, "nn", False),
    ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
     "cuBLAS", "gemm", "fp16", "fp32", "128x128x64", None, "tn", True),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x128x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
     "cuBLAS", "gemm", "fp32", "fp32", "64x128x8", 3, "tn", False),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize32x32x64_stage3_warpsize2x2x1_tensor16x8x8_kernel",
     "cuBLAS", "gemm", "tf32", "fp32", "32x32x64", 3, "nn", True),
    ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_g1_tensor16x8x16_execute_kernel_cudnn",
     "cuDNN", "convolution", "fp16", "fp32", "128x128x32", 4, None, True),
    ("cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1",
     "cuDNN", "convolution", "fp32", "fp32", "128x64", None, "nn", False),
    ("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1",
     "cuDNN", "convolution", "fp16", "fp32", "256x64", None, "tn", True),
    ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT",
     "nvjet", "gemm", "bf16", "fp32", "192x128x64", 5, "nn", True),
    ("nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_bias_TNT",
     "nvjet", "gemm", "fp16", "fp32", "256x128x64", 4, "tn", True),
    ("nvjet_sm100_tst_128x256_64x6_2x1_2cta_v_bz_TNT",
     "nvjet", "gemm", "bf16", "fp32", "128x256x64", 6, "tn", True),
    ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
     "nvjet", "gemm", "bf16", "fp32", "64x64x64", 16, "tn", True),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256_MI16x16x1_SN_LDSB1",
     "hipBLASLt", "gemm", "bf16", "fp32", "32x32x256", None, "tn", True),
    ("Cijk_Ailk_Bljk_HBH_MT64x64x16_SE_TT4_4_USFGRO0_VAW2_VS1_VW2_WG16_16_1_WGM8",
     "Tensile", "gemm", "fp16", "fp32", "64x64x16", None, "nn", False),
    ("Cijk_Ailk_Bjlk_SB_MT64x64x16_SE_K1",
     "Tensile", "gemm", "fp32", "fp32", "64x64x16", None, "nt", None),
)  # fmt: skip


@pytest.mark.parametrize("expected", GEMMS, ids=[each[0][:50] for each in GEMMS])
def test_build_strings_of_matrix_multiplies(expected: tuple[object, ...]) -> None:
    told = decode(str(expected[0]))
    assert (
        told.name, told.family, told.role, told.input_dtype, told.accumulate_dtype, told.tile, told.stages,
        told.layout, told.tensor_cores,
    ) == expected  # fmt: skip


@pytest.mark.parametrize(
    ("name", "family", "cores", "direction"),
    [
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>(x)", "flash", True, "forward"),
        ("void pytorch_flash::flash_bwd_dot_do_o_kernel<true>(x)", "flash", False, "backward"),
        # On sm80 PyTorch multiplies fp32 as three TF32 products; before, on CUDA cores.
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(x)", "fmha_cutlass", True, "forward"),
        ("fmha_cutlassB_f32_aligned_64x64_k64_sm75(x)", "fmha_cutlass", False, "backward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1", "cuDNN", True, "backward"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", "TensorRT-LLM", True, None),
        ("attn_fwd", "Triton", None, "forward"),
        ("bwd_kernel_fuse", "Triton", None, "backward"),  # AOTriton's, on AMD
        ("kernel_unified_attention_2d", "Triton", None, None),
    ],
)  # fmt: skip
def test_fused_attention(name: str, family: str, cores: bool | None, direction: str | None) -> None:
    told = decode(name)
    assert (told.role, told.family, told.tensor_cores, told.direction) == (
        "attention",
        family,
        cores,
        direction,
    )


@pytest.mark.parametrize(
    ("name", "role", "ops"),
    [
        ("triton_poi_fused_add_gelu_3", "elementwise", ("add", "gelu")),
        ("triton_red_fused__log_softmax_nll_loss_forward_3", "softmax", ("log_softmax", "nll_loss_forward")),
        ("triton_per_fused_native_layer_norm_1", "norm", ("native_layer_norm",)),
        ("triton_poi_fused__to_copy_t_4", "copy", ("to_copy", "t")),
        ("triton_tem_fused_addmm_5", "gemm", ("addmm",)),
        ("triton_poi_fused_0", "elementwise", ()),
    ],
)
def test_inductor_names(name: str, role: str, ops: tuple[str, ...]) -> None:
    told = decode(name)
    assert (told.family, told.role, told.fused_ops) == ("Triton", role, ops)
    # A template may hold a tl.dot; the name does not tell in which precision.
    assert told.tensor_cores is (None if "_tem_" in name else False)


def test_operators_with_underscores_stay_whole() -> None:
    assert inductor_ops("__to_copy__unsafe_view_add_native_layer_norm_backward") == (
        "to_copy", "unsafe_view", "add", "native_layer_norm_backward",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<x, at::native::FusedAdamMathFunctor<float>>", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(x)>", "copy"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>(x)", "copy"),
        ("__amd_rocclr_copyBuffer", "copy"),
        ("__amd_rocclr_fillBufferAligned", "copy"),
        ("void at::native::(anonymous namespace)::indexSelectLargeIndex<x>", "embedding"),
        ("void cunn_SoftMaxForward<4, float, float, float, x>", "softmax"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, x>>", "reduction"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int>(x)", "embedding"),
        ("void splitKreduce_kernel<32, 16, int, float>(x)", "gemm"),
        ("my_own_kernel", "unknown"),
        ("", "unknown"),
    ],
)  # fmt: skip
def test_roles_by_word(name: str, role: str) -> None:
    assert decode(name).role == role


def test_unknown_is_not_no() -> None:
    assert decode("my_own_kernel").tensor_cores is None
    assert decode("Kernel2").tensor_cores is None
    assert decode("Kernel2").role == "gemm"


def test_endless_names_end() -> None:
    told = decode("void cutlass::" + "Kernel<cutlass_" * 20_000)
    assert told.role in ROLES
    assert len(told.name) > 100_000


def recordings() -> list[Path]:
    return (
        [path for path in sorted(CORPUS.rglob("*.json*")) if "truth" not in path.name]
        if CORPUS.is_dir()
        else []
    )


def kernels_with_types() -> Iterator[tuple[str, str, str]]:
    """Every distinct (kernel, operator, first input type) of the corpus."""
    for path in recordings():
        if "expected" in path.name or "rocprof" in path.parts:
            continue
        trace = foretrace.open(path)
        kernels = trace.spans.filter((pl.col("kind") == "kernel") & pl.col("op_id").is_not_null())
        joined = kernels.select("name", "op_id").join(
            trace.ops.select(pl.col("span_id").alias("op_id"), "dtypes"), on="op_id", how="inner"
        )
        ops = trace.spans["name"].gather(joined["op_id"]).alias("op")
        yield from (
            joined.with_columns(ops)
            .select("name", "op", "dtypes")
            .cast(pl.String)
            .drop_nulls()
            .unique()
            .iter_rows()
        )


@needs_corpus
def test_types_agree_with_those_of_the_operators() -> None:
    """The types that names tell, against those that the profiler recorded for the operator."""
    fitting = {"float": {"fp32", "tf32"}, "c10::BFloat16": {"bf16"}, "c10::Half": {"fp16"}}
    checked = 0
    for name, op, dtypes in kernels_with_types():
        told = decode(name)
        kind = dtypes.strip('["').split('"')[0]
        if (
            op in ("aten::mm", "aten::bmm", "aten::addmm")
            and told.multiplies
            and told.input_dtype
            and kind in fitting
        ):
            assert told.input_dtype in fitting[kind], (name, dtypes)
            checked += 1
    assert checked > 200


@needs_corpus
def test_every_name_of_the_corpus_has_a_role() -> None:
    unknown = {
        name
        for path in recordings()
        if "expected" not in path.name and "rocprof" not in path.parts
        for name in foretrace.open(path)
        .spans.filter(pl.col("kind") == "kernel")["name"]
        .unique()
        .cast(pl.String)
        if decode(name).role == "unknown"
    }
    assert not unknown
