"""Work of convolutions: every output element is 2·(C/groups)·kernel FLOPs; input, weight and output move once.

Each gradient that `output_mask` asks for (input, weight) costs as much as the forward pass, as in torch's
FlopCounterMode; the bias' gradient is a sum and is left out of the FLOPs.
"""

from __future__ import annotations

from math import prod

from foretrace.analyze.concepts.work.work_models.call import Call, Model, Shape, Work

# Where each operator has stride, padding, dilation (None: all ones), and bias.
_FORWARD: dict[str, tuple[int, int, int | None, int | None]] = {
    "aten::conv1d": (3, 4, 5, 2),
    "aten::conv2d": (3, 4, 5, 2),
    "aten::conv3d": (3, 4, 5, 2),
    "aten::convolution": (3, 4, 5, 2),
    "aten::_convolution": (3, 4, 5, 2),
    "aten::cudnn_convolution": (3, 2, 4, None),
    "aten::cudnn_convolution_relu": (3, 4, 5, 2),
    "aten::miopen_convolution": (4, 3, 5, 2),
    "aten::miopen_depthwise_convolution": (4, 3, 5, 2),
    "aten::mkldnn_convolution": (4, 3, 5, 2),
    "aten::thnn_conv2d": (4, 5, None, 3),
    "aten::_slow_conv2d_forward": (4, 5, None, 3),
    "aten::slow_conv3d_forward": (4, 5, None, 3),
    "aten::slow_conv_dilated2d": (4, 5, 6, 3),
    "aten::_conv_depthwise2d": (4, 5, 6, 3),
    "aten::conv_depthwise3d": (4, 5, 6, 3),
}
# Stride, padding, dilation, output padding, groups and bias of those that are, or may be, transposed.
_TRANSPOSED: dict[str, tuple[int, int, int, int, int, int | None]] = {
    "aten::convolution": (3, 4, 5, 7, 8, 2),
    "aten::_convolution": (3, 4, 5, 7, 8, 2),
    "aten::cudnn_convolution_transpose": (4, 2, 5, 3, 6, None),
    "aten::miopen_convolution_transpose": (5, 3, 6, 4, 7, 2),
}
_TRANSPOSED_AT = 6  # of convolution and _convolution


def _output_extents(source: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Shape:
    extents = []
    for place, extent in enumerate(source):
        # One value stands for all dimensions.
        step, pad, spread = (
            setting[place if len(setting) > 1 else 0] for setting in (stride, padding, dilation)
        )
        extents.append((extent + 2 * pad - spread * (kernel[place] - 1) - 1) // step + 1)
    if any(extent < 0 for extent in extents):
        raise ValueError("the kernel is larger than its input")
    return tuple(extents)


def _forward(call: Call) -> Work:
    stride_at, padding_at, dilation_at, bias_at = _FORWARD[call.name]
    source, weight = call.tensor(0), call.tensor(1)
    bias = call.given(bias_at) if bias_at is not None else None
    if call.name in _TRANSPOSED and call.flag(_TRANSPOSED_AT):
        return _transposed(call)
    dilation = call.integers(dilation_at) if dilation_at is not None else (1,)
    spatial = len(weight.shape) - 2
    extents = _output_extents(
        source.shape[-spatial:],
        weight.shape[2:],
        call.integers(stride_at),
        call.integers(padding_at),
        dilation,
    )
    batch = prod(source.shape[: -spatial - 1])
    out_count = batch * weight.shape[0] * prod(extents)
    flops = 2 * out_count * prod(weight.shape[1:])
    moved = source.bytes + weight.bytes + out_count * source.item_bytes + (bias.bytes if bias else 0)
    return Work(flops, moved, source.dtype)


def _transposed(call: Call) -> Work:
    """Every input element is spread over the kernel of each output channel of its group."""
    stride_at, padding_at, dilation_at, extra_at, groups_at, bias_at = _TRANSPOSED[call.name]
    source, weight = call.tensor(0), call.tensor(1)
    bias = call.given(bias_at) if bias_at is not None else None
    stride, padding, dilation, extra = (
        call.integers(place) for place in (stride_at, padding_at, dilation_at, extra_at)
    )
    spread = weight.shape[2:]
    extents = (
        (extent - 1) * stride[place]
        - 2 * padding[place]
        + dilation[place] * (spread[place] - 1)
        + extra[place]
        + 1
        for place, extent in enumerate(source.shape[2:])
    )
    # weight is (C, O/groups, ...): the output has groups times its second extent.
    out_count = source.shape[0] * weight.shape[1] * call.integer(groups_at) * prod(extents)
    moved = source.bytes + weight.bytes + out_count * source.item_bytes + (bias.bytes if bias else 0)
    return Work(2 * source.count * prod(weight.shape[1:]), moved, source.dtype)


def _backward(call: Call) -> Work:
    gradient, source, weight = call.tensor(0), call.tensor(1), call.tensor(2)
    to_input, to_weight, to_bias = call.flags(10)
    # Transposed, weight is (C, O/groups, ...) and each input element is spread; else each output is gathered.
    centre = source if call.flag(7) else gradient
    flops = 2 * centre.count * prod(weight.shape[1:]) * (to_input + to_weight)
    moved = gradient.bytes
    if to_input:
        moved += weight.bytes + source.count * source.item_bytes
    if to_weight:
        moved += source.bytes + weight.count * weight.item_bytes
    if to_bias:
        moved += gradient.shape[1] * gradient.item_bytes
    return Work(flops, moved, source.dtype)


def _backward_input(call: Call) -> Work:
    """Before torch 1.12: (self_size, grad_output, weight, ...)."""
    gradient, weight = call.tensor(1), call.tensor(2)
    # The size of the input is not recorded: its bytes are left out.
    return Work(2 * gradient.count * prod(weight.shape[1:]), gradient.bytes + weight.bytes, weight.dtype)


MODELS: dict[str, Model] = {
    **dict.fromkeys(_TRANSPOSED, _transposed),
    **dict.fromkeys(_FORWARD, _forward),
    "aten::convolution_backward": _backward,
    "aten::cudnn_convolution_backward_input": _backward_input,
}
