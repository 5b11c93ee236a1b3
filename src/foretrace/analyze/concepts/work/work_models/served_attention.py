"""Work of attention over a paged cache, as servers run it: its shapes tell the new tokens, the step's name the keys before them.

`Call.lengths` are the queries, keys and pairs of the step (server_marks.py), of prefill and of decode. Of each pair and head, Q·Kᵀ and
P·V: 2·(d + dᵥ) FLOPs. Bytes: queries and results once, and of the cache the keys and values of every request once. Latent attention
(MLA) keeps one vector of L + R for each key, read once for all heads: a decode computes in it, 2·(L + R) + 2·L FLOPs a pair and head;
a prefill in heads of d and dᵥ. Windows that hide old keys are in no argument: such layers seem to do more than they do.
"""

from __future__ import annotations

from collections.abc import Callable

from foretrace.analyze.concepts.work.work_models.call import Call, Model, Tensor, Work


def _width(tensor: Tensor) -> int:
    """Elements of one token: all heads together."""
    if len(tensor.shape) < 2 or not tensor.shape[0]:
        raise ValueError("no tokens")
    return tensor.count // tensor.shape[0]


def _work(
    call: Call, query: Tensor, *, widths: tuple[int, int], key_bytes: int, decode_only: bool = False
) -> Work:
    """Attention of heads that are together as wide as `widths` (of queries, of results), with so many bytes a key."""
    parts = call.lengths[1:] if decode_only else call.lengths
    if not parts or not sum(part.tokens_count for part in parts):
        raise ValueError("the lengths of the requests are not recorded")
    pairs, keys = (sum(getattr(part, name) for part in parts) for name in ("pairs_count", "keys_count"))
    tokens = sum(part.tokens_count for part in parts)
    moved = tokens * sum(widths) * query.item_bytes + keys * key_bytes
    return Work(2 * pairs * sum(widths), moved, query.dtype)


def _unified(call: Call) -> Work:
    """vLLM's (query, key, value, [output], ...): key and value are of the new tokens; a narrow query tells a narrow cache."""
    query, key, value = (call.tensor(place) for place in range(3))
    item_bytes = min(query.item_bytes, key.item_bytes)
    key_bytes = (_width(key) + _width(value)) * item_bytes
    query_width = _width(query)
    result = query_width // max(key.shape[-1], 1) * value.shape[-1] if len(key.shape) == 3 else query_width
    return _work(call, query, widths=(query_width, result), key_bytes=key_bytes)


def _flash(call: Call) -> Work:
    """flash-attention's (q, k, v, ...): k and v are the cache, [pages, page, heads, width], or the tokens themselves."""
    query, key, value = (call.tensor(place) for place in range(3))
    key_bytes = sum(each.shape[-1] * each.shape[-2] * each.item_bytes for each in (key, value))
    width = _width(query)
    return _work(call, query, widths=(width, width // query.shape[-1] * value.shape[-1]), key_bytes=key_bytes)


def _paged(query_at: int) -> Model:
    """vLLM's paged_attention (..., query, key_cache, value_cache [pages, heads, width, page], ...), of decodes alone."""

    def model(call: Call) -> Work:
        query, value = call.tensor(query_at), call.tensor(query_at + 2)
        key_bytes = 2 * value.shape[1] * value.shape[2] * value.item_bytes
        return _work(call, query, widths=(_width(query),) * 2, key_bytes=key_bytes, decode_only=True)

    return model


def _latent(call: Call) -> Work:
    """vLLM's (q [tokens, heads, d], kv_c [tokens, L], k_pe [tokens, R], [output [tokens, heads·dᵥ]], ...)."""
    query, latent, rotary = (call.tensor(place) for place in range(3))
    heads, width = query.shape[1], query.shape[2]
    rank, turned = latent.shape[-1], rotary.shape[-1]
    output = call.given(3)
    value_width = _width(output) // heads if output is not None else width - turned
    if len(call.lengths) != 2 or not sum(part.tokens_count for part in call.lengths):
        raise ValueError("the lengths of the requests are not recorded")
    new, going = call.lengths
    flops = 2 * heads * (new.pairs_count * (width + value_width) + going.pairs_count * (2 * rank + turned))
    keys, tokens = new.keys_count + going.keys_count, new.tokens_count + going.tokens_count
    moved = (
        tokens * heads * (width + value_width) * query.item_bytes + keys * (rank + turned) * latent.item_bytes
    )
    return Work(flops, moved, query.dtype)


def _latent_decode(query_at: int, cache_at: int, rank: Callable[[Call], int]) -> Model:
    """A decode in the latent space: queries [..., heads, L or L + R], a cache [pages, page, ..., L + R]."""

    def model(call: Call) -> Work:
        query, cache = call.tensor(query_at), call.tensor(cache_at)
        heads, width, latent = query.shape[-2], cache.shape[-1], rank(call)
        key_bytes = width * cache.item_bytes
        return _work(
            call, query, widths=(heads * width, heads * latent), key_bytes=key_bytes, decode_only=True
        )

    return model


MODELS: dict[str, Model] = {
    "vllm::unified_attention": _unified,
    "vllm::unified_attention_with_output": _unified,
    "vllm::unified_mla_attention": _latent,
    "vllm::unified_mla_attention_with_output": _latent,
    "_vllm_fa2_C::varlen_fwd": _flash,
    "_vllm_fa3_C::fwd": _flash,
    "sgl_kernel::fwd": _flash,
    "_C::paged_attention_v1": _paged(1),
    "_C::paged_attention_v2": _paged(4),
    "_rocm_C::paged_attention": _paged(4),
    "_C::sm100_cutlass_mla_decode": _latent_decode(2, 4, lambda call: call.tensor(2).shape[-1]),
    "sgl_kernel::cutlass_mla_decode": _latent_decode(1, 3, lambda call: call.tensor(1).shape[-1]),
    "_flashmla_C::fwd_kvcache_mla": _latent_decode(0, 1, lambda call: call.integer(2)),
    "sgl_kernel::fwd_kvcache_mla": _latent_decode(0, 1, lambda call: call.integer(2)),
}
