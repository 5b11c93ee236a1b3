"""Work of products with quantised operands: 2·M·N·K FLOPs; operands as they are packed, and their scales, read once.

Scaled products (fp8, int8, fp4) compute in the type of their operands. Products with packed weights (Marlin, AWQ, GPTQ, Machete)
unpack them on the way and compute in the type of the activations: their bytes are those of the packed weight.
"""

from __future__ import annotations

from foretrace.analyze.concepts.work.work_models.call import Call, Model, Tensor, Work

_PACKED = ("int32", "uint8", "int8", "fp8", "fp4")


def sizes(call: Call, m: int, k: int) -> tuple[int, int, int, int] | None:
    """M, N and K where they stand together among the scalar inputs, and the place of the first."""
    numbers = [int(text) if text.isdigit() else None for text in call.inputs]
    for place in range(len(numbers) - 2):
        rows, columns, inner = numbers[place : place + 3]
        if rows == m and inner == k and columns:
            return m, columns, k, place
    return None


def _columns(right: Tensor, k: int) -> int:
    """N of a weight that is [K, N] or [N, K]."""
    first, second = right.shape
    if k not in (first, second):
        raise ValueError("inner dimensions differ")
    return second if first == k else first


def _scaled(first: int, *, result_at: int | None = None) -> Model:
    """(…, a [M, K], b [K, N] or [N, K], scales, …), with the result among the arguments or not."""

    def model(call: Call) -> Work:
        left, right = call.tensor(first), call.tensor(first + 1)
        m, k = left.shape
        result = None if result_at is None else call.tensor(result_at)
        n = result.shape[1] if result is not None else _columns(right, k)
        packed = 2 if left.dtype in ("uint8", "fp4") else 1  # fp4: two elements a byte
        read = sum(each.bytes for each in call.tensors[first:] if each is not None)
        written = result.bytes if result is not None else 2 * m * n
        return Work(2 * m * n * k * packed, read + written, "fp4" if packed == 2 else left.dtype)

    return model


def _packed_weight(call: Call) -> Work:
    """(a [M, K], …, packed weight, …, scales [groups, N], …): what is given as a result is written, all else is read."""
    left = call.tensor(0)
    m, k = left.shape
    others = [tensor for tensor in call.tensors[1:] if tensor is not None]
    weight = next(tensor for tensor in others if tensor.dtype in _PACKED and len(tensor.shape) == 2)
    after = others[others.index(weight) + 1 :]
    scales = [tensor for tensor in after if len(tensor.shape) == 2 and tensor.dtype not in ("int32", "int64")]
    told = sizes(call, m, k)
    if told is None and not scales:
        raise ValueError("neither the sizes nor the scales are recorded")
    n = told[1] if told is not None else scales[0].shape[1]
    read = left.bytes + weight.bytes + sum(tensor.bytes for tensor in after if len(tensor.shape) == 2)
    return Work(2 * m * n * k, read + m * n * left.item_bytes, left.dtype)


MODELS: dict[str, Model] = {
    "_C::cutlass_scaled_mm": _scaled(1, result_at=0),
    "_C::cutlass_scaled_mm_azp": _scaled(1, result_at=0),
    "_C::cutlass_scaled_fp4_mm": _scaled(1, result_at=0),
    "sgl_kernel::cutlass_scaled_fp4_mm": _scaled(1, result_at=0),
    "sgl_kernel::fp8_scaled_mm": _scaled(0),
    "sgl_kernel::int8_scaled_mm": _scaled(0),
    "sgl_kernel::fp8_blockwise_scaled_mm": _scaled(0),
    "vllm::w8a8_triton_block_scaled_mm_func": _scaled(0),
    "vllm::w8a8_triton_block_scaled_mm": _scaled(0),
    **dict.fromkeys(
        (
            "_C::marlin_gemm", "_C::gptq_marlin_gemm", "_C::awq_marlin_gemm", "_C::gptq_gemm", "_C::awq_gemm",
            "_C::machete_mm", "sgl_kernel::gptq_marlin_gemm", "sgl_kernel::gptq_gemm",
        ),
        _packed_weight,
    ),
}  # fmt: skip
