"""Work of fused attention: FLOPs of the scores that the mask leaves; queries, keys, values, output once.

Forward is two products, Q·Kᵀ and P·V: 4·B·Hq·pairs·d FLOPs; backward five, one of them the recomputed Q·Kᵀ:
2.5 times that. `pairs` is Nq·Nkv, or under a causal mask exactly those that it leaves: N(N+1)/2 for Nq = Nkv.
torch's `is_causal` aligns the mask to the first key, flash-attention's own to the last. Softmax is not
counted, and grouped queries (GQA) count all Hq heads, as FlopCounterMode does; it ignores the mask, this does not.
"""

from __future__ import annotations

from typing import NamedTuple

from foretrace.analyze.concepts.work.work_models.call import Call, Model, Work


class _Signature(NamedTuple):
    """Where an operator has the query, what makes it causal, and how its tensors lie."""

    query_at: int
    causal_at: int
    heads_first: bool  # (batch, heads, length, width), else (batch, length, heads, width)
    lengths_at: tuple[int, ...] = ()  # sequences of unequal length: not in the shapes
    bias_at: int | None = None
    window_at: tuple[int, ...] = ()
    last_key: bool = False  # the mask is aligned to the last key


_FORWARD = {
    "aten::scaled_dot_product_attention": _Signature(0, 5, True, bias_at=3),
    "aten::_scaled_dot_product_attention_math": _Signature(0, 5, True, bias_at=3),
    "aten::_scaled_dot_product_flash_attention": _Signature(0, 4, True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Signature(0, 4, True, bias_at=5),
    "aten::_scaled_dot_product_efficient_attention": _Signature(0, 6, True, bias_at=3),
    "aten::_scaled_dot_product_cudnn_attention": _Signature(0, 6, True, bias_at=3),
    "aten::_scaled_dot_product_fused_attention_overrideable": _Signature(0, 5, True, bias_at=3),
    "aten::_flash_attention_forward": _Signature(0, 8, False, (3, 4), None, (11, 12), last_key=True),
    "aten::_efficient_attention_forward": _Signature(0, 9, False, (4, 5), 3, (13,)),
    "aten::_cudnn_attention_forward": _Signature(0, 10, True, (4, 5), 3),
    "flash_attn::_flash_attn_forward": _Signature(0, 5, False, (), None, (6, 7), last_key=True),
}
_BACKWARD = {
    "aten::_scaled_dot_product_flash_attention_backward": _Signature(1, 11, True, (6, 7)),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Signature(1, 7, True, bias_at=8),
    "aten::_scaled_dot_product_efficient_attention_backward": _Signature(1, 11, True, bias_at=4),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Signature(1, 14, True, (9, 10), 8),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _Signature(1, 13, True, (8, 9), 4),
    "aten::_flash_attention_backward": _Signature(1, 11, False, (6, 7), None, (15, 16), last_key=True),
    "aten::_efficient_attention_backward": _Signature(1, 14, False, (6, 7), 4, (18,)),
    "aten::_cudnn_attention_backward": _Signature(1, 14, True, (9, 10), 8),
    "flash_attn::_flash_attn_backward": _Signature(1, 11, False, (), None, (12, 13), last_key=True),
}
_BOTTOM_RIGHT = "2"  # of xFormers' custom_mask_type: 0 none, 1 aligned to the first key, 2 to the last


def pairs(queries: int, keys: int, *, causal: bool, last_key: bool = False) -> int:
    """How many scores a mask leaves."""
    if not causal:
        return queries * keys
    # Query i sees keys 0 .. i + shift.
    shift = keys - queries if last_key else 0
    first = max(0, -shift)  # queries before that see nothing
    growing = max(min(queries, keys - shift) - first, 0)  # each sees one more than the one before
    start = first + shift + 1
    full = max(queries - max(first, keys - shift), 0)
    return growing * start + growing * (growing - 1) // 2 + full * keys


class _Extents(NamedTuple):
    batch_heads: int
    scores: int
    width: int
    value_width: int


def _extents(call: Call, at: _Signature) -> _Extents:
    query, key, value = (call.tensor(at.query_at + place) for place in range(3))
    if len(query.shape) != 4 or any(_holds(call, place) for place in at.lengths_at):
        raise ValueError("sequences of unequal length: their lengths are not recorded")
    if any(call.text(place) not in ("", "-1", "None") for place in at.window_at):
        raise ValueError("a sliding window")
    mask = call.text(at.causal_at)
    causal = mask == _BOTTOM_RIGHT or call.flag(at.causal_at)
    head, length = (1, 2) if at.heads_first else (2, 1)
    scores = pairs(
        query.shape[length],
        key.shape[length],
        causal=causal,
        last_key=at.last_key or mask == _BOTTOM_RIGHT,
    )
    return _Extents(query.shape[0] * query.shape[head], scores, query.shape[3], value.shape[3])


class Unmasked(NamedTuple):
    """Attention that takes no mask from memory."""

    heads: int  # of all samples
    queries: int
    keys: int
    width: int
    half: bool
    causal: bool
    backward: bool


def unmasked(call: Call) -> Unmasked | None:
    """What a call works on; None where it is no fused attention, reads a mask or bias, or its shapes do not tell."""
    at = _FORWARD.get(call.name) or _BACKWARD.get(call.name)
    if at is None or (at.bias_at is not None and _holds(call, at.bias_at)):
        return None
    try:
        size = _extents(call, at)
    except (ValueError, LookupError):
        return None
    length = 2 if at.heads_first else 1
    queries, keys = (call.tensor(at.query_at + place).shape[length] for place in range(2))
    half = call.tensor(at.query_at).item_bytes == 2
    causal = size.scores < queries * keys
    return Unmasked(size.batch_heads, queries, keys, size.width, half, causal, call.name in _BACKWARD)


def _holds(call: Call, place: int) -> bool:
    tensor = call.given(place)
    return tensor is not None and tensor.count > 0


def _bias_bytes(call: Call, at: _Signature) -> int:
    bias = call.given(at.bias_at) if at.bias_at is not None else None
    return bias.bytes if bias else 0


def _forward(call: Call) -> Work:
    at = _FORWARD[call.name]
    size = _extents(call, at)
    query, key, value = (call.tensor(at.query_at + place) for place in range(3))
    flops = 2 * size.batch_heads * size.scores * (size.width + size.value_width)
    out_bytes = query.count // max(size.width, 1) * size.value_width * query.item_bytes
    moved = query.bytes + key.bytes + value.bytes + out_bytes + _bias_bytes(call, at)
    return Work(flops, moved, query.dtype)


def _backward(call: Call) -> Work:
    """Q·Kᵀ again, dP = dO·Vᵀ, dV = Pᵀ·dO, dQ = dS·K, dK = dSᵀ·Q."""
    at = _BACKWARD[call.name]
    size = _extents(call, at)
    gradient, query, key, value = (call.tensor(at.query_at + place) for place in range(-1, 3))
    flops = 2 * size.batch_heads * size.scores * (3 * size.width + 2 * size.value_width)
    # Read: dO, O (as large), Q, K, V. Written: dQ, dK, dV.
    moved = 2 * (gradient.bytes + query.bytes + key.bytes + value.bytes) + _bias_bytes(call, at)
    return Work(flops, moved, query.dtype)


MODELS: dict[str, Model] = {
    **dict.fromkeys(_FORWARD, _forward),
    **dict.fromkeys(_BACKWARD, _backward),
}
