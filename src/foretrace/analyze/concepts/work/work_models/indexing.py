"""Work of gathers, scatters, embeddings, concatenations, picked losses and pooling: what they touch moves once."""

from __future__ import annotations

from math import prod

from foretrace.analyze.concepts.work.work_models.call import Call, Model, Work


def _rows(call: Call) -> Work:
    """index_select and embedding: rows of the first tensor, chosen by the last."""
    source, index = call.tensor(0), call.all_tensors[-1]
    dim = call.integer(1) if call.name == "aten::index_select" else 0
    row = source.count // max(source.shape[dim], 1)
    return Work(0, index.bytes + 2 * index.count * row * source.item_bytes, source.dtype)


def _gather(call: Call) -> Work:
    source, index = call.tensor(0), call.tensor(2)
    return Work(0, index.bytes + 2 * index.count * source.item_bytes, source.dtype)


def _scatter(call: Call) -> Work:
    """(self, dim, index, src): what is added to is also read."""
    target, index, source = call.tensor(0), call.tensor(2), call.tensor(3)
    adds = "add" in call.name
    moved = index.bytes + source.bytes + source.count * target.item_bytes * (2 if adds else 1)
    return Work(source.count if adds else 0, moved, target.dtype)


def _embedding_backward(call: Call) -> Work:
    """Each row of the gradient is read; rows that were looked up are written (zeroing is another operator)."""
    gradient, index = call.tensor(0), call.tensor(1)
    row = gradient.shape[-1]
    written = min(index.count, call.integer(2)) * row * gradient.item_bytes
    return Work(gradient.count, gradient.bytes + index.bytes + written, gradient.dtype)


def _concatenation(call: Call) -> Work:
    dtype, item_bytes = call.kernel_dtype()
    return Work(0, 2 * item_bytes * sum(prod(shape) for shape in _first_list(call)), dtype)


def _first_list(call: Call) -> tuple[tuple[int, ...], ...]:
    shapes = next((shape_list for shape_list in call.lists if shape_list), ())
    if not shapes:
        raise ValueError("the shapes of the list were not recorded")
    return shapes


def _nll_loss(call: Call) -> Work:
    """One element a row is read, with its target."""
    source, target = call.tensor(0), call.tensor(1)
    return Work(target.count, target.bytes + target.count * source.item_bytes, source.dtype)


def _nll_loss_backward(call: Call) -> Work:
    """One element a row is written (zeroing is another operator)."""
    source, target = call.tensor(1), call.tensor(2)
    return Work(target.count, target.bytes + target.count * source.item_bytes, source.dtype)


def _pooled(call: Call, *, ceil_at: int, dilation_at: int | None) -> tuple[int, int]:
    """Elements of a pool's result, and of its window."""
    source = call.tensor(0)
    kernel = call.integers(1)
    stride = call.integers(2) or kernel
    padding = call.integers(3)
    dilation = call.integers(dilation_at) if dilation_at is not None else (1,)
    up = call.flag(ceil_at)
    spatial = 2
    extents, window = [], []
    for place, extent in enumerate(source.shape[-spatial:]):
        size, step, pad, spread = (
            setting[place if len(setting) > 1 else 0] for setting in (kernel, stride, padding, dilation)
        )
        room = extent + 2 * pad - spread * (size - 1) - 1
        extents.append((-(-room // step) if up else room // step) + 1)
        window.append(size)
    return prod(source.shape[:-spatial]) * prod(extents), prod(window)


def _max_pool(call: Call) -> Work:
    source = call.tensor(0)
    count, window = _pooled(call, ceil_at=5, dilation_at=4)
    return Work(count * window, source.bytes + count * (source.item_bytes + 8), source.dtype)


def _average_pool(call: Call) -> Work:
    source = call.tensor(0)
    count, window = _pooled(call, ceil_at=4, dilation_at=None)
    return Work(count * window, source.bytes + count * source.item_bytes, source.dtype)


def _adaptive_pool(call: Call) -> Work:
    source = call.tensor(0)
    count = prod(source.shape[:-2]) * prod(call.integers(1))
    return Work(source.count, source.bytes + count * source.item_bytes, source.dtype)


def _pool_backward(call: Call) -> Work:
    """(grad_output, self, ...): the gradient, and the places of a max pool, are read; self's is written."""
    gradient, source = call.tensor(0), call.tensor(1)
    places = sum(tensor.bytes for tensor in call.all_tensors[2:] if tensor.dtype == "int64")
    moved = gradient.bytes + places + source.count * source.item_bytes
    return Work(max(gradient.count, source.count), moved, source.dtype)


INDEXING: dict[str, Model] = {
    "aten::index_select": _rows,
    "aten::embedding": _rows,
    "aten::gather": _gather,
    "aten::scatter": _scatter,
    "aten::scatter_": _scatter,
    "aten::scatter_add": _scatter,
    "aten::scatter_add_": _scatter,
    "aten::index_add": _scatter,
    "aten::index_add_": _scatter,
    "aten::index_copy_": _scatter,
    "aten::embedding_dense_backward": _embedding_backward,
}
CONCATENATIONS: dict[str, Model] = {"aten::cat": _concatenation}
LOSSES: dict[str, Model] = {
    "aten::nll_loss_forward": _nll_loss,
    "aten::nll_loss2d_forward": _nll_loss,
    "aten::nll_loss_backward": _nll_loss_backward,
    "aten::nll_loss2d_backward": _nll_loss_backward,
}
POOLS: dict[str, Model] = {
    "aten::max_pool2d_with_indices": _max_pool,
    "aten::avg_pool2d": _average_pool,
    "aten::_adaptive_avg_pool2d": _adaptive_pool,
    "aten::max_pool2d_with_indices_backward": _pool_backward,
    "aten::avg_pool2d_backward": _pool_backward,
    "aten::_adaptive_avg_pool2d_backward": _pool_backward,
}
