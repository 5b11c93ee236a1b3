"""A Word is a part of a kernel's name that tells what the kernel does, where no build string tells more.

Tried in order, the first that is found counts: the more particular come first.
"""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """A pattern, and what a kernel with it in its name does."""

    pattern: str
    role: str
    text: str
    family: str | None = None  # null: as the rest of the name tells
    tensor_cores: bool | None = False


_UNTOLD = None  # the name does not tell

WORDS: tuple[Word, ...] = (
    Word(r"split_embedding\w*(?:backward|grad)", "embedding", "embedding-table backward with its optimizer"),
    Word(
        r"FusedAdam|FusedSgd|FusedAdagrad|FusedLamb|(?i:adam|lamb|adagrad|rmsprop|sgd)(?:W|w)?_?(?i:functor|kernel|update)",
        "optimizer",
        "updates many parameters in one launch with the optimizer's whole formula",
    ),
    Word(
        r"multi_tensor_apply_kernel.*(?:LpNorm|UnaryOpFunctor.*non_finite|lpnorm|L2Norm)",
        "optimizer",
        "measures many gradients in one launch",
    ),
    Word(r"lpnorm_cleanup", "optimizer", "finishes the norms of many gradients"),
    Word(
        r"multi_tensor_apply", "optimizer", "one elementwise step over many tensors in one launch (foreach)"
    ),
    # Split-k and layout helpers of matrix multiply and convolution, before the multiplies themselves.
    Word(
        r"splitKreduce|ReduceSplitK|reduce_wgrad|split_k_reduce|SplitK_?[Rr]educ|GSU\w*Reduction|_PostGSU|^Cijk_S\w*GSU",
        "gemm",
        "sums the partial results of a matrix multiply or convolution split along k",
    ),
    Word(
        r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|nhwcAddPadding|batched_transpose|SubTensorOpWithCastTensor",
        "copy",
        "changes the layout of a tensor (NCHW and NHWC) around a convolution",
    ),
    Word(
        r"computeW?\w*OffsetsKernel|init_device_workspace|scalePackedTensor",
        "convolution",
        "prepares a convolution; no arithmetic of its own",
    ),
    Word(r"cudnn::winograd", "convolution", "transforms the data of a Winograd convolution"),
    Word(r"(?i)winograd", "convolution", "convolution by Winograd's transform", tensor_cores=_UNTOLD),
    Word(r"fft\dd_|flip_filter|pointwise_mult_and_sum_complex", "convolution", "convolution through an FFT"),
    Word(
        r"(?i)convolve_sgemm|im2col|col2im|wgrad_alg\d|dgrad_engine|dgrad2d|wgrad2d|scudnn|implicit_convolve|conv_depthwise|"
        r"conv2d_grouped_direct|DepthwiseConv",
        "convolution",
        "convolution on CUDA cores",
    ),
    Word(
        r"(?i)igemm_(?:fwd|bwd|wrw)|grouped_conv\w*(?:xdl|wmma)|MIOpen\w*Conv|mlir_?gen_igemm|gridwise_convolution",
        "convolution",
        "convolution",
        tensor_cores=_UNTOLD,
    ),
    Word(r"(?i)naive_conv", "convolution", "a reference convolution of MIOpen, slow", family="MIOpen"),
    Word(
        r"(?i)conv(?:olution)?[_\dA-Z]*(?:kernel|fprop|dgrad|wgrad|fwd|bwd)|convolution",
        "convolution",
        "convolution",
        tensor_cores=_UNTOLD,
    ),
    # Matrix multiplies without a build string.
    Word(
        r"gemv|GemvKernel|gemvx|dot_kernel|reduce_1Block_kernel",
        "gemm",
        "matrix times vector, or a dot product: bound by memory, on CUDA cores",
    ),
    Word(
        r"gemmSN|gemmk1_kernel|sgemm_largek|sgemmNN|sgemm_\w+<|dgemm_\w+<|implicit_sgemm",
        "gemm",
        "matrix multiply on CUDA cores, for small or long shapes",
    ),
    Word(
        r"cublasLt::epilogue|epilogue::impl::globalKernel|scal_kernel|beta_kernel|_BetaOnly|Cijk_\w*_Beta",
        "gemm",
        "scales or finishes the result of a matrix multiply",
    ),
    Word(
        r"(?i)xdlops|_xdl|kernel_gemm|DeviceGemm|GemmXdl|gemm_xdl|Gemm_Xdl",
        "gemm",
        "matrix multiply on AMD matrix cores (MFMA)",
        family="CK",
        tensor_cores=True,
    ),
    Word(
        r"(?i)hmma|wmma|wgmma|tcgen05|umma|mfma", "gemm", "matrix multiply on tensor cores", tensor_cores=True
    ),
    Word(
        r"(?i)marlin|machete|deep_gemm|fp8_gemm|gemm_universal|GemmUniversal",
        "gemm",
        "matrix multiply of quantised or grouped weights on tensor cores",
        tensor_cores=True,
    ),
    Word(
        r"cutlass::(?:Kernel2?|device_kernel)|^Kernel2?$|^void cutlass::Kernel2?$",
        "gemm",
        "a CUTLASS kernel, most often a matrix multiply",
        family="cutlass",
        tensor_cores=_UNTOLD,
    ),
    Word(
        r"(?i)routing|topk_forward|bitmatrix|moe_align|moe_sum|topk_softmax|topkGating|finalizeKernel|expert|"
        r"_finalize_matmul_scatter|moe_permute|moe_unpermute",
        "embedding",
        "routes tokens to experts, or gathers their results",
    ),
    Word(
        r"(?i)(?<!fb)gemm|matmul|Cijk_|(?<![a-z])[bf]?mm_kernel|addmm",
        "gemm",
        "matrix multiply",
        tensor_cores=_UNTOLD,
    ),
    # Norms, softmax, losses.
    Word(
        r"(?i)(?:layer_?norm|rms_?norm|GammaBeta|RowwiseMoments|group_?norm|batch_?norm|instance_?norm|\bbn_(?:fw|bw)|"
        r"\bln_(?:fwd|bwd)|welford)|BatchNorm|ComputeInternalGradients|ComputeFusedParams",
        "norm",
        "normalisation (layer, batch, group or RMS norm)",
    ),
    Word(r"(?i)softmax", "softmax", "softmax"),
    Word(r"(?i)cross_?entropy|nll_loss|ClassNLL|mse_loss|l1_loss|ctc_loss", "reduction", "a loss"),
    Word(r"(?i)dropout", "elementwise", "dropout: draws random numbers and scales"),
    Word(r"(?i)rotary|rope_kernel|apply_rope", "elementwise", "rotary position embedding"),
    Word(
        r"(?i)transform_bias_rescale_qkv",
        "elementwise",
        "adds the bias to q, k and v and rearranges them for attention",
    ),
    # Copies, casts and layouts.
    Word(
        r"(?i)quantize|_quant_kernel|scaled_fp8|hfp8|rowwise_to_float|qparam|cast_transpose|dequant",
        "copy",
        "changes the type of a tensor (quantises, or back)",
    ),
    Word(r"(?:b?float\d+|float8\w*)_copy_kernel", "copy", "changes the type of a tensor: a cast"),
    Word(
        r"(?:copy_kernel|copy_device_to_device).*LoadWithCast", "copy", "changes the type of a tensor: a cast"
    ),
    Word(
        r"direct_copy_kernel|copy_device_to_device|copyKernel|_copy_kernel|OpTensorKernel.*copy",
        "copy",
        "copies a tensor, often to make it contiguous",
    ),
    Word(
        r"CatArrayBatchedCopy|cat_kernel|StackKernel|SplitCopy|split_with_sizes_copy|chunk_cat",
        "copy",
        "copies tensors into one, or one into several",
    ),
    Word(
        r"reshape_and_cache|concat_and_cache|copy_page|copy_blocks|KVCache|kv_cache",
        "copy",
        "writes keys and values into a cache",
    ),
    Word(
        r"(?i)transpose_?kernel|permute_kernel|tensor_transpose|cublasTranspose",
        "copy",
        "changes the layout of a tensor: a transpose",
    ),
    Word(
        r"(?i)memcpy|memset_kernel|_memset$|\bmemset|__amd_rocclr_(?:copy|fill)(?:Buffer|Image)",
        "copy",
        "copies or sets memory",
    ),
    # Embedding and indexing.
    Word(
        r"(?i)embedding|indexSelect|index_elementwise|index_put|index_kernel|gather|scatter|index_add|indexAdd|indexing_|"
        r"indexFunc|permute_\w*(?:data|lengths|indices|embs)|bounds_check_indices|linearize_index|offsets_range|"
        r"compute_grad_weight|sum_and_scatter|krn_partial|partial_segment|segment_offset|masked_select|write_indices|"
        r"flag_kernel|nonzero|take_kernel|put_kernel",
        "embedding",
        "embedding lookup or indexing",
    ),
    # Sorting and scanning.
    Word(
        r"(?i)radix_?sort|DeviceMergeSort|bitonicSort|sort_kernel|topk|gatherTopK|sbtopk|mbtopk|DeviceUnique|DeviceSelect|"
        r"unique_by_key|RunLengthEncode",
        "other",
        "sorts or selects",
    ),
    Word(
        r"(?i)scan_?kernel|DeviceScan|DeviceCompactInit|cumsum|scan_innermost|scan_outer|ScanTile|prefix_sum",
        "other",
        "a running sum",
    ),
    Word(r"(?i)histogram|multinomial|sampling|argmax_kernel|top_p|top_k", "other", "counts or samples"),
    # The wide classes.
    Word(r"(?i)pool", "reduction", "pooling"),
    Word(
        r"reduce_kernel|DeviceReduce|ReduceOp|ReduceKernel|reduce_1|LpNorm|[Rr]eduction",
        "reduction",
        "a reduction: sum, mean, max or norm",
    ),
    Word(r"(?i)upsample|grid_sampl|roi_align|interpolate", "elementwise", "resamples an image"),
    Word(r"FillFunctor", "elementwise", "fills a tensor with one value"),
    Word(r"distribution_elementwise|philox|curand|random_kernel", "elementwise", "draws random numbers"),
    Word(
        r"elementwise|gpu_kernel_impl|triu_tril|arange|linspace|act_and_mul|silu|gelu|swiglu|activation|OpTensorKernel|op_tensor|where_kernel|"
        r"compute_cuda_kernel|CUDAFunctor",
        "elementwise",
        "element by element: bound by memory",
    ),
    Word(r"(?i)spin_kernel|sleep", "other", "waits on purpose"),
    Word(
        r"(?i)^(?:void )?kernelPointwise|kernelReduce",
        "elementwise",
        "a fused kernel of the TorchScript compiler",
    ),
)
