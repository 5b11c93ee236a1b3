"""Work of matrix products: 2·M·N·K FLOPs; both operands read and the product written once.

The addition of a bias is not counted, as in torch's with_flops and FlopCounterMode; its bytes are.
"""

from __future__ import annotations

from math import prod

from foretrace.analyze.concepts.work.work_models.call import (
    SCALAR_TYPE_BYTES,
    Call,
    Model,
    Tensor,
    Work,
    broadcast,
)


def _product(left: Tensor, right: Tensor, batch: int, m: int, n: int, k: int, *, added: int = 0) -> Work:
    out_bytes = batch * m * n * left.item_bytes
    return Work(2 * batch * m * n * k, left.bytes + right.bytes + out_bytes + added, left.dtype)


def _inner(left: int, right: int) -> int:
    if left != right:
        raise ValueError("inner dimensions differ")
    return left


def _mm(call: Call, first: int = 0, added: int = 0) -> Work:
    left, right = call.tensor(first), call.tensor(first + 1)
    (m, k), (inner, n) = left.shape, right.shape
    return _product(left, right, 1, m, n, _inner(k, inner), added=added)


def _addmm(call: Call) -> Work:
    return _mm(call, 1, call.tensor(0).bytes)


def _bmm(call: Call, first: int = 0, added: int = 0) -> Work:
    left, right = call.tensor(first), call.tensor(first + 1)
    (batch, m, k), (_, inner, n) = left.shape, right.shape
    return _product(left, right, batch, m, n, _inner(k, inner), added=added)


def _baddbmm(call: Call) -> Work:
    return _bmm(call, 1, call.tensor(0).bytes)


def _mv(call: Call, first: int = 0, added: int = 0) -> Work:
    left, right = call.tensor(first), call.tensor(first + 1)
    (m, k), (inner,) = left.shape, right.shape
    return _product(left, right, 1, m, 1, _inner(k, inner), added=added)


def _addmv(call: Call) -> Work:
    return _mv(call, 1, call.tensor(0).bytes)


def _dot(call: Call) -> Work:
    left, right = call.tensor(0), call.tensor(1)
    return _product(left, right, 1, 1, 1, _inner(left.count, right.count))


def _linear(call: Call) -> Work:
    left, weight, bias = call.tensor(0), call.tensor(1), call.given(2)
    (*rows, k), (n, inner) = left.shape, weight.shape
    return _product(left, weight, 1, prod(rows), n, _inner(k, inner), added=bias.bytes if bias else 0)


def _matmul(call: Call) -> Work:
    left, right = call.tensor(0), call.tensor(1)
    a = left.shape if len(left.shape) > 1 else (1, *left.shape)
    b = right.shape if len(right.shape) > 1 else (*right.shape, 1)
    batch = prod(broadcast((a[:-2], b[:-2])))
    return _product(left, right, batch, a[-2], b[-1], _inner(a[-1], b[-2]))


def _scaled_mm(call: Call) -> Work:
    left, right = call.tensor(0), call.tensor(1)
    (m, k), (inner, n) = left.shape, right.shape
    packed = 2 if left.dtype == "fp4" else 1  # two elements a byte along K
    scales = sum(tensor.bytes for tensor in call.all_tensors[2:])
    code = call.text(6)
    out_bytes = m * n * (SCALAR_TYPE_BYTES.get(int(code), 2) if code.isdigit() else 2)
    flops = 2 * m * n * _inner(k, inner) * packed
    return Work(flops, left.bytes + right.bytes + scales + out_bytes, left.dtype)


def _int_mm(call: Call) -> Work:
    left, right = call.tensor(0), call.tensor(1)
    (m, k), (_, n) = left.shape, right.shape
    return Work(2 * m * n * k, left.bytes + right.bytes + 4 * m * n, left.dtype)


def _grouped_mm(call: Call) -> Work:
    """Rows of all groups lie in one matrix, each group times its own (K, N): 2·M·N·K in all."""
    left, right = call.tensor(0), call.tensor(1)
    if len(left.shape) == 3 and len(right.shape) == 3:
        return _bmm(call)
    if len(left.shape) != 2 or len(right.shape) != 3:
        raise ValueError("the sizes of the groups are not recorded")
    (m, k), (_, inner, n) = left.shape, right.shape
    return _product(left, right, 1, m, n, _inner(k, inner))


MODELS: dict[str, Model] = {
    "aten::mm": _mm,
    "aten::addmm": _addmm,
    "aten::addmm_": _addmm,
    "aten::_addmm_activation": _addmm,
    "aten::bmm": _bmm,
    "aten::baddbmm": _baddbmm,
    "aten::baddbmm_": _baddbmm,
    "aten::mv": _mv,
    "aten::addmv": _addmv,
    "aten::addmv_": _addmv,
    "aten::dot": _dot,
    "aten::vdot": _dot,
    "aten::linear": _linear,
    "aten::mkldnn_linear": _linear,
    "vllm::rocm_unquantized_gemm": _linear,
    "vllm::rocm_unquantized_gemm_impl": _linear,
    "aten::matmul": _matmul,
    "aten::_scaled_mm": _scaled_mm,
    "aten::_int_mm": _int_mm,
    "aten::_grouped_mm": _grouped_mm,
}
