"""Work of norms and softmax: the input read once, the result written once, a few FLOPs an element.

FLOPs an element, by counting the arithmetic: layer, batch and group norm 7 (sum; subtract; square and sum;
scale; weight, bias), RMS norm 4, softmax 5 (max, subtract, exp, sum, divide); their gradients 11, 8 and 4.
A training batch norm reads its input twice where it does not fit the caches: the bytes are the lower bound.
"""

from __future__ import annotations

from collections.abc import Callable

from foretrace.analyze.concepts.work.work_models.call import SCALAR_TYPE_BYTES, Call, Model, Work


def _forward(per_element: int, source_at: int = 0) -> Model:
    def model(call: Call) -> Work:
        source = call.tensor(source_at)
        moved = sum(tensor.bytes for tensor in call.all_tensors) + source.count * source.item_bytes
        return Work(per_element * source.count, moved, source.dtype)

    return model


def _backward(per_element: int) -> Model:
    """Both the gradient and the input are read; the gradients of the input and of the parameters are written."""

    def model(call: Call) -> Work:
        first, second = call.tensor(0), call.tensor(1)
        read = sum(tensor.bytes for tensor in call.all_tensors)
        parameters = [
            tensor for tensor in call.all_tensors[2:] if len(tensor.shape) == 1 and tensor.dtype != "uint8"
        ]
        written = second.count * second.item_bytes + 2 * max(
            (tensor.bytes for tensor in parameters), default=0
        )
        return Work(per_element * first.count, read + written, second.dtype)

    return model


def _written_to(per_element: int) -> Model:
    """vLLM's: (out, in, weight, ...): all that is recorded moves once."""

    def model(call: Call) -> Work:
        source = call.tensor(1)
        return Work(
            per_element * source.count, sum(tensor.bytes for tensor in call.all_tensors), source.dtype
        )

    return model


def _fused_add_rms(call: Call) -> Work:
    """vLLM's (input, residual, weight, eps), both updated in place."""
    source, residual = call.tensor(0), call.tensor(1)
    moved = 2 * (source.bytes + residual.bytes) + call.tensor(2).bytes
    return Work(5 * source.count, moved, source.dtype)


def _softmax(call: Call) -> Work:
    source = call.tensor(0)
    out_bytes = 4 if call.text(2).casefold() == "true" else source.item_bytes  # half_to_float
    return Work(5 * source.count, source.bytes + source.count * out_bytes, source.dtype)


def _masked_softmax(call: Call) -> Work:
    source = call.tensor(0)
    moved = source.bytes + call.tensor(1).bytes + source.count * source.item_bytes
    return Work(5 * source.count, moved, source.dtype)


def _softmax_backward(call: Call) -> Work:
    gradient, output = call.tensor(0), call.tensor(1)
    code = call.text(3)
    known = SCALAR_TYPE_BYTES.get(int(code)) if code.isdigit() else None
    written = gradient.count * (known or gradient.item_bytes)
    return Work(4 * gradient.count, gradient.bytes + output.bytes + written, gradient.dtype)


def _named(model: Callable[[Call], Work], *names: str) -> dict[str, Model]:
    return dict.fromkeys(names, model)


def _statistics(call: Call) -> Work:
    """Mean and variance per channel: the input is read."""
    source = call.tensor(0)
    return Work(4 * source.count, source.bytes, source.dtype)


NORMS: dict[str, Model] = {
    **_named(
        _forward(7),
        "aten::native_layer_norm", "aten::native_batch_norm", "aten::cudnn_batch_norm",
        "aten::miopen_batch_norm", "aten::native_group_norm", "aten::_native_batch_norm_legit",
        "aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_with_update",
        "aten::_batch_norm_no_update",
    ),
    **_named(_forward(4), "aten::_fused_rms_norm", "aten::batch_norm_elemt"),
    **_named(_statistics, "aten::batch_norm_stats"),
    **_named(
        _backward(11),
        "aten::native_layer_norm_backward", "aten::native_batch_norm_backward",
        "aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward",
        "aten::native_group_norm_backward", "aten::batch_norm_backward",
    ),
    **_named(_backward(8), "aten::_fused_rms_norm_backward"),
    **_named(_written_to(4), "_C::rms_norm", "sgl_kernel::rmsnorm", "sgl_kernel::gemma_rmsnorm"),
    **_named(_fused_add_rms, "_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm", "sgl_kernel::gemma_fused_add_rmsnorm"),
}  # fmt: skip
SOFTMAXES: dict[str, Model] = {
    **_named(_softmax, "aten::_softmax", "aten::_log_softmax"),
    **_named(_masked_softmax, "aten::_masked_softmax"),
    **_named(_softmax_backward, "aten::_softmax_backward_data", "aten::_log_softmax_backward_data"),
}
