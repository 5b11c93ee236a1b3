"""What the common operators of torch do, and whether they launch work on the GPU."""

from __future__ import annotations

from foretrace.analyze.concepts.names.known_names import OPERATOR, Known, known

_VIEWS = (
    "t|transpose|permute|view|reshape|_reshape_alias|as_strided|_unsafe_view|expand|unsqueeze|squeeze|slice|select|"
    "narrow|detach|alias|split|split_with_sizes|chunk|unbind|unfold|numpy_T|movedim|swapaxes|view_as|flatten|"
    "unflatten|diagonal|real|imag|resolve_conj|resolve_neg|lift_fresh|expand_as|size|stride|is_floating_point"
)


def _op(names: str, says: str, watch: str | None = None) -> Known:
    return known(OPERATOR, rf"^(?:aten::)?(?:{names})_?$", says, watch)


OPERATORS: tuple[Known, ...] = (
    _op(_VIEWS, "changes only the view of a tensor: launches no kernel (reshape copies if it must)"),
    _op("matmul", "matrix product of any shapes: calls mm for two matrices, bmm for batches of them"),
    _op(
        "mm|_scaled_mm|_grouped_mm",
        "matrix multiply of two matrices, by cuBLAS, hipBLASLt or CUTLASS",
        "fp32 inputs without TF32 do not use tensor cores; sizes that are not a multiple of 8 use them poorly",
    ),
    _op("bmm|baddbmm", "matrix multiply of batches of matrices, as in unfused attention"),
    _op(
        "addmm|_addmm_activation|addmv|addr",
        "matrix multiply plus a bias, as in a Linear layer",
        "a copy right before its kernel writes the bias into the result",
    ),
    _op("linear", "a Linear layer: addmm, or matmul without a bias"),
    _op("einsum", "sums of products by indices: permutes, then bmm"),
    _op(
        "conv\\d?d?|conv_transpose\\d?d?|convolution|_convolution|cudnn_convolution|miopen_convolution|convolution_overrideable",
        "a convolution; conv2d calls convolution, which calls cuDNN or MIOpen",
        "kernels named nchwToNhwc around it change the layout: channels_last avoids them",
    ),
    _op(
        "convolution_backward", "the gradients of a convolution for its input (dgrad) and its weight (wgrad)"
    ),
    _op(
        "scaled_dot_product_attention",
        "attention: picks flash, memory-efficient, cuDNN, or the unfused fallback",
    ),
    _op(
        "_scaled_dot_product_(?:flash|efficient|cudnn|fused).*|_(?:flash|efficient|cudnn)_attention_(?:forward|backward)",
        "fused attention: one kernel, without a matrix of scores in memory",
    ),
    _op(
        "_scaled_dot_product_attention_math.*",
        "attention without fusion: the fallback of SDPA, in many kernels",
        "the mask, type, head size or need_weights=True prevented the fused kernels",
    ),
    _op(
        "_?(?:log_)?softmax|_safe_softmax|_?(?:log_)?softmax_backward_data",
        "softmax: bound by memory",
        "on [.., T, T] it is unfused attention: a fused kernel would not store the scores",
    ),
    _op(
        "(?:native_)?layer_norm(?:_backward)?|(?:_fused_)?rms_norm(?:_backward)?|(?:native_)?group_norm(?:_backward)?",
        "normalisation of each row: bound by memory; under autocast it runs in fp32",
    ),
    _op(
        "(?:native_|cudnn_|miopen_)?batch_norm(?:_backward)?|_batch_norm_impl_index",
        "normalisation of each channel over the batch: bound by memory",
    ),
    _op(
        "to|_to_copy",
        "changes type or device; does nothing if both already match",
        "many short ones are casts by autocast, or parts of the model in another type",
    ),
    _op("copy", "copies one tensor into another, casting and rearranging as needed"),
    _op("contiguous|clone", "copies a tensor into plain row-major order"),
    _op("cat|stack|concat|hstack|vstack", "copies several tensors into one"),
    _op(
        "item|_local_scalar_dense|is_nonzero|cpu",
        "brings a value to the host: waits until the GPU has computed it",
        "in a loop it serialises host and GPU; keep values on the GPU, and log only every 100 steps",
    ),
    _op(
        "nonzero|masked_select|unique2?|_unique2?",
        "makes a tensor whose size depends on the data: the host must wait to learn it",
    ),
    _op(
        "index|_index_put_impl|index_put|index_select|index_add|gather|scatter|scatter_add|take|take_along_dim",
        "reads or writes at given indices",
        "a boolean mask as index calls nonzero, which makes the host wait",
    ),
    _op("embedding|embedding_bag|_embedding_bag", "looks up rows of a table"),
    _op(
        "embedding_dense_backward|embedding_backward",
        "adds gradients into a dense table: sorts the indices first",
    ),
    _op(
        "(?:native_)?dropout(?:_backward)?|bernoulli|uniform|normal|randn?|random|randint|randperm",
        "draws random numbers",
    ),
    _op(
        "zeros?|ones?|full|fill|zero|zeros_like|ones_like|full_like|new_zeros|new_full|new_ones",
        "fills a tensor with one value",
    ),
    _op(
        "empty|empty_like|empty_strided|new_empty|resize|set",
        "allocates memory from torch's allocator: launches no kernel",
    ),
    _op(
        "where|masked_fill|clamp|clamp_min|clamp_max|tril|triu",
        "element by element with a condition: bound by memory",
    ),
    _op(
        "add|sub|mul|div|addcmul|addcdiv|neg|exp|log\\w*|sqrt|rsqrt|pow|sin|cos|tanh|sigmoid|relu|gelu|silu|abs|eq|ne|lt|le|gt|ge|"
        "threshold_backward|gelu_backward|silu_backward|tanh_backward|sigmoid_backward|bitwise_\\w+|logical_\\w+|lerp|reciprocal|"
        "hardtanh\\w*|leaky_relu\\w*|sign|floor|ceil|round|isnan|isinf|isfinite|remainder|rsub|maximum|minimum|erf|mse_loss\\w*|lift",
        "element by element: one kernel, bound by memory",
        "chains of these are what torch.compile fuses",
    ),
    _op(
        "sum|mean|max|min|amax|amin|argmax|argmin|var|std|var_mean|norm|linalg_vector_norm|all|any|prod|cumsum|logsumexp",
        "a reduction: bound by memory",
    ),
    _op(
        "nll_loss\\w*|cross_entropy\\w*|binary_cross_entropy\\w*",
        "a loss; cross_entropy is log_softmax and nll_loss",
    ),
    _op("max_pool\\w*|avg_pool\\w*|adaptive_\\w*pool\\w*|_adaptive_\\w*pool\\w*", "pooling"),
    _op("topk|sort|argsort", "sorts: several passes over the data"),
    _op("_fused_(?:adam|adamw|sgd|adagrad)", "one step of the optimizer for many parameters in few launches"),
    _op(
        "_foreach_\\w+|_amp_foreach_\\w+|_multi_tensor\\w*",
        "the same operation on many tensors in few launches, as optimizers do by default",
    ),
    _op(
        "_pin_memory|pin_memory|is_pinned|record_stream", "about pinned memory or streams; no work on the GPU"
    ),
    known(OPERATOR, r"^aten::", "an operator of torch"),
    known(OPERATOR, r"^[a-z_]\w*::\w+$|^_C::\w+$", "an operator of torch or of an extension"),
)
