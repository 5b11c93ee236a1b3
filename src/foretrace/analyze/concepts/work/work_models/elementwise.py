"""Work of elementwise operators, copies and reductions: one FLOP an element, every operand moved once.

A copy, cast or fill computes nothing: 0 FLOPs. Broadcast operands count as stored. In-place operators read and
write their first operand; a copy only writes it.
"""

from __future__ import annotations

from math import prod

from foretrace.analyze.concepts.work.work_models.call import Call, Model, Work, broadcast, promoted

# By the number of arguments that may be operands; a tensor after them is where the result goes.
_OPERATIONS: dict[int, tuple[str, ...]] = {
    1: (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "celu", "cos",
        "cosh", "deg2rad", "digamma", "elu", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor",
        "frac", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "lgamma",
        "log", "log10", "log1p", "log2", "logit", "mish", "nan_to_num", "neg", "reciprocal", "relu",
        "relu6", "round", "rsqrt", "selu", "sgn", "sigmoid", "sign", "silu", "sin", "sinc", "sinh",
        "softplus", "softshrink", "sqrt", "square", "tan", "tanh", "threshold", "tril", "triu", "trunc",
    ),
    2: (
        "add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
        "bitwise_xor", "clamp_max", "clamp_min", "copysign", "div", "floor_divide", "fmax", "fmin",
        "fmod", "gelu_backward", "glu_backward", "hardsigmoid_backward", "hardswish_backward",
        "hardtanh_backward", "huber_loss", "hypot", "leaky_relu_backward", "logaddexp", "logit_backward",
        "maximum", "minimum", "mish_backward", "mse_loss", "mul", "native_dropout_backward", "polar",
        "pow", "remainder", "rsub", "sigmoid_backward", "silu_backward", "smooth_l1_loss",
        "softplus_backward", "sub", "tanh_backward", "threshold_backward", "xlogy",
    ),
    3: (
        "addcdiv", "addcmul", "binary_cross_entropy", "clamp", "huber_loss_backward", "lerp",
        "log_sigmoid_backward", "masked_fill", "mse_loss_backward", "smooth_l1_loss_backward", "where",
    ),
    4: (
        "binary_cross_entropy_backward", "binary_cross_entropy_with_logits",
    ),
    6: (
        "elu_backward",
    ),
}  # fmt: skip
_TESTS = (
    "eq", "ne", "lt", "gt", "le", "ge", "logical_and", "logical_or", "logical_xor", "logical_not",
    "isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit",
)  # fmt: skip
_FILLS = (
    "fill", "zero", "uniform", "normal", "bernoulli", "random", "exponential", "log_normal", "geometric",
    "cauchy",
)  # fmt: skip
_REDUCTIONS = (
    "sum", "nansum", "mean", "amax", "amin", "prod", "any", "all", "norm", "linalg_vector_norm", "var",
    "std", "logsumexp", "count_nonzero",
)  # fmt: skip
_ARGUMENT_REDUCTIONS = ("aten::argmax", "aten::argmin")
_SCANS = (
    "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "flip", "roll",
)  # fmt: skip


def _elementwise(operands_count: int, *, test: bool = False) -> Model:
    """A model of operators with so many operands; a test's result is one byte an element."""

    def model(call: Call) -> Work:
        operands = [tensor for tensor in call.tensors[:operands_count] if tensor is not None]
        count = prod(broadcast([tensor.shape for tensor in operands]))
        leader = promoted(operands)
        written = operands[0] if call.name.endswith("_") else leader
        item_bytes = 1 if test else written.item_bytes
        return Work(count, sum(tensor.bytes for tensor in operands) + count * item_bytes, leader.dtype)

    return model


def _biased(call: Call) -> Work:
    """_transform_bias_rescale_qkv: (qkv, bias, heads); the three parts are written."""
    source, bias = call.tensor(0), call.tensor(1)
    return Work(2 * source.count, source.bytes + bias.bytes + source.count * source.item_bytes, source.dtype)


def _written_to(call: Call) -> Work:
    """vLLM's: (out, in, ...): all that is recorded moves once."""
    target, source = call.tensor(0), call.tensor(1)
    return Work(
        max(target.count, source.count), sum(tensor.bytes for tensor in call.all_tensors), source.dtype
    )


def _copy(call: Call) -> Work:
    target, source = call.tensor(0), call.tensor(1)
    return Work(0, target.bytes + source.bytes, target.dtype)


def _fill(call: Call) -> Work:
    target = call.tensor(0)
    return Work(0, target.bytes, target.dtype)


def _dropout(call: Call) -> Work:
    source = call.tensor(0)
    return Work(2 * source.count, source.bytes + source.count * (source.item_bytes + 1), source.dtype)


def _gated(call: Call) -> Work:
    """glu: two halves in, one out."""
    source = call.tensor(0)
    return Work(2 * source.count, source.bytes + source.count // 2 * source.item_bytes, source.dtype)


def _reduced(call: Call, dims_at: int = 1) -> int:
    """Elements of the result; 1 where the dimensions were not recorded, or all are reduced."""
    shape = call.tensor(0).shape
    try:
        dims = {dim % len(shape) for dim in call.integers(dims_at)}
    except (ValueError, TypeError, ZeroDivisionError):
        return 1
    return prod(extent for place, extent in enumerate(shape) if place not in dims) if dims else 1


def _reduction(call: Call) -> Work:
    source = call.tensor(0)
    dims_at = 2 if call.name.endswith(("norm", "logsumexp_")) else 1
    item_bytes = 8 if call.name in _ARGUMENT_REDUCTIONS else source.item_bytes
    return Work(source.count, source.bytes + _reduced(call, dims_at) * item_bytes, source.dtype)


def _extreme(call: Call) -> Work:
    """max and min: of all, along one dimension with the places, or of two tensors."""
    source = call.tensor(0)
    if call.given(1):
        return _elementwise(2)(call)
    if len(call.tensors) == 1:
        return Work(source.count, source.bytes + source.item_bytes, source.dtype)
    return Work(source.count, source.bytes + _reduced(call) * (source.item_bytes + 8), source.dtype)


def _scan(call: Call) -> Work:
    source = call.all_tensors[0]
    return Work(source.count, source.bytes + source.count * source.item_bytes, source.dtype)


def _both(names: tuple[str, ...], model: Model) -> dict[str, Model]:
    """Under the name itself and the in-place one."""
    return {f"aten::{name}{end}": model for name in names for end in ("", "_")}


def _into_cache(call: Call) -> Work:
    """vLLM's (key, value, key_cache, value_cache, ...): the new tokens are read, and written in the cache's type."""
    sources, caches = [call.tensor(0), call.tensor(1)], [call.tensor(2), call.tensor(3)]
    written = sum(source.count * cache.item_bytes for source, cache in zip(sources, caches, strict=True))
    return Work(0, sum(source.bytes for source in sources) + written, sources[0].dtype)


def _rotary(call: Call) -> Work:
    """vLLM's (positions, query, key, ...), both turned in place: two products and a sum for each element."""
    turned = [tensor for tensor in (call.given(1), call.given(2)) if tensor is not None]
    moved = call.tensor(0).bytes + 2 * sum(tensor.bytes for tensor in turned)
    return Work(3 * sum(tensor.count for tensor in turned), moved, turned[0].dtype)


MODELS: dict[str, Model] = {
    **{
        name: model
        for count, names in _OPERATIONS.items()
        for name, model in _both(names, _elementwise(count)).items()
    },
    **_both(_TESTS, _elementwise(2, test=True)),
    "aten::_transform_bias_rescale_qkv": _biased,
    "_C::rotary_embedding": _rotary,
    "_C::silu_and_mul": _written_to,
    "_C::gelu_tanh_and_mul": _written_to,
    "sgl_kernel::silu_and_mul": _written_to,
    "sgl_kernel::gelu_and_mul": _written_to,
    "sgl_kernel::gelu_tanh_and_mul": _written_to,
    "_C::gelu_and_mul": _written_to,
    "_C::static_scaled_fp8_quant": _written_to,
    "_C::dynamic_scaled_fp8_quant": _written_to,
}
COPIES: dict[str, Model] = {
    "aten::copy_": _copy,
    "_C_cache_ops::reshape_and_cache": _into_cache,
    "_C_cache_ops::reshape_and_cache_flash": _into_cache,
    **{f"aten::{name}_": _fill for name in _FILLS},
}
DROPOUTS: dict[str, Model] = {"aten::native_dropout": _dropout, "aten::glu": _gated}
REDUCTIONS: dict[str, Model] = {
    **{f"aten::{name}": _reduction for name in _REDUCTIONS},
    **dict.fromkeys(_ARGUMENT_REDUCTIONS, _reduction),
    "aten::max": _extreme,
    "aten::min": _extreme,
    **_both(_SCANS, _scan),
}
