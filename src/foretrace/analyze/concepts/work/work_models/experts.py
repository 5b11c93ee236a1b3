"""Work of mixtures of experts: each token goes through K of E experts, and an expert's weights are read if any token goes there.

Which experts a batch takes is in its values, not in its shapes. Bytes are for tokens that choose evenly: E·(1 - (1 - K/E)ᵀ) of the
E experts have a token. A real router is less even and reads fewer, never fewer than K.
"""

from __future__ import annotations

from foretrace.analyze.concepts.work.work_models.call import Call, Model, Tensor, Work
from foretrace.analyze.concepts.work.work_models.quantised import sizes

_INTEGERS = ("int32", "int64", "uint32", "uint64")


def experts_read(experts: int, tokens: int, chosen: int) -> float:
    """Experts that get a token, where tokens choose evenly."""
    return experts * (1 - (1 - min(chosen / experts, 1)) ** tokens)


def _fused(call: Call) -> Work:
    """(hidden [T, H], w1 [E, 2·N, H], w2 [E, H, N], [biases], topk_weights [T, K], topk_ids [T, K], …)."""
    hidden, up, down = (call.tensor(place) for place in range(3))
    tokens, width = hidden.shape
    chosen = next(
        tensor.shape[1]
        for tensor in call.all_tensors[3:]
        if len(tensor.shape) == 2 and tensor.shape[0] == tokens and tensor.dtype in (*_INTEGERS, "fp32")
    )
    experts = up.shape[0]
    packed = width / up.shape[2]  # a packed weight has fewer columns than the tokens have
    elements = up.shape[1] * up.shape[2] + down.shape[1] * down.shape[2]
    share = experts_read(experts, tokens, chosen) / experts
    weights = share * (up.bytes + down.bytes + _scales(call, experts))
    flops = int(2 * tokens * chosen * elements * packed)
    dtype = up.dtype if up.dtype == "fp8" else hidden.dtype
    return Work(flops, int(weights) + 2 * hidden.bytes, dtype)


def _scales(call: Call, experts: int) -> int:
    """Bytes of the experts' scales: tensors behind the weights that begin with the experts."""
    return sum(
        tensor.bytes
        for tensor in call.all_tensors[3:]
        if len(tensor.shape) > 1 and tensor.shape[0] == experts
    )


def _grouped(a_at: int, result_at: int = 0) -> Model:
    """One product of all experts: rows [M, K] in the order of their experts, weights [E, K, N] or [E, N, K], a result [M, N]."""

    def model(call: Call) -> Work:
        result, rows, weights = call.tensor(result_at), call.tensor(a_at), call.tensor(a_at + 1)
        m, k = rows.shape
        n, experts = result.shape[-1], weights.shape[0]
        packed = 2 if rows.dtype in ("uint8", "fp4") else 1
        share = experts_read(experts, m, 1) / experts
        moved = rows.bytes + result.bytes + int(share * weights.bytes)
        return Work(2 * m * n * k * packed, moved, "fp4" if packed == 2 else rows.dtype)

    return model


def _marlin(call: Call) -> Work:
    """(a [M, K], c, packed weights [E, …], …, moe_block_size, top_k, flags…, type, M, N, K, …)."""
    rows = call.tensor(0)
    told = sizes(call, *rows.shape)
    if told is None:
        raise ValueError("the sizes are not recorded")
    m, n, k, place = told
    at = place - 2  # before the weights' type
    while call.text(at).casefold() in ("true", "false"):
        at -= 1
    chosen = call.integer(at)
    weights: Tensor = next(tensor for tensor in call.all_tensors[1:] if len(tensor.shape) == 3)
    scales = [tensor for tensor in call.all_tensors[1:] if len(tensor.shape) == 3 and tensor is not weights]
    share = experts_read(weights.shape[0], m, chosen) / weights.shape[0]
    read = share * (weights.bytes + sum(tensor.bytes for tensor in scales)) + rows.bytes
    return Work(2 * m * chosen * n * k, int(read) + m * chosen * n * rows.item_bytes, rows.dtype)


_FUSED = ("inplace_fused_experts", "outplace_fused_experts", "fused_experts")
MODELS: dict[str, Model] = {
    **{f"{package}::{name}": _fused for package in ("vllm", "sglang") for name in _FUSED},
    "_moe_C::moe_wna16_marlin_gemm": _marlin,
    "sgl_kernel::moe_wna16_marlin_gemm": _marlin,
    "_C::cutlass_moe_mm": _grouped(1),
    "_C::cutlass_fp4_group_mm": _grouped(1),
    "sgl_kernel::cutlass_fp4_group_mm": _grouped(1),
    "sgl_kernel::fp8_blockwise_scaled_grouped_mm": _grouped(6),
    "_C::cutlass_mxfp8_grouped_mm": _grouped(0, 4),
}
