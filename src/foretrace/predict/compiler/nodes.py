"""Operators of a step as the compiler sees them: what they read, what they make, and whether they can be fused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.concepts.work.work_models.attention import Unmasked, unmasked
from foretrace.analyze.concepts.work.work_models.call import Call, Tensor, broadcast, parse, promoted

# How the compiler treats an operator.
BARRIER = (
    "barrier"  # stays as it is: a product, a convolution, attention, a sort, or an operator without a model
)
FREE = "free"  # a constant, made where it is read
POINTWISE = "pointwise"
ROWS = "rows"  # reduces along rows, or normalises them
COLUMNS = "columns"  # reduces across rows, or all of a tensor: its result is ready only at the end
SCATTERS = "scatters"  # adds each element to a place that an index names: fused with what makes the elements
PLANES = "planes"  # a batch norm, or a norm of large groups: reads everything before it writes any


def _named(*names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names)


_FREE = _named("fill_", "zero_", "arange", "scalar_tensor", "eye", "linspace", "nll_loss_backward")
_LOOKUPS = _named("gather", "index_select", "embedding", "index", "nll_loss_forward")
_MOVES = _named("upsample_bilinear2d_backward", "flip", "roll")
_RESIZES = _named(
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip
_SCATTERED = _named("scatter_add_", "scatter_add", "index_add_", "index_add")
_SCANS = _named("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
_FUSES = ("elementwise", "copy", "dropout")
# A gradient flows in through the first operand; what else an operator of the backward reads was saved by the forward.
_JOINS = _named("add", "add_", "copy_", "cat", "sum", "where", "mul_", "div", "sub", "neg", "masked_fill")


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor by what a recording tells of it: how many elements, and how wide."""

    count: int
    item_bytes: int
    whole: int = 0  # elements of what it is a part of, where its strides tell that it is one

    @property
    def bytes(self) -> int:
        """What reading or writing it moves."""
        return self.count * self.item_bytes


@dataclass(frozen=True)
class Shape:
    """What one call of an operator reads and makes."""

    kind: str
    reads: tuple[Made, ...]
    makes: Made
    count: int  # elements that it runs over
    row: int = 1  # elements of one row, where rows are reduced
    saved_bytes: int = 0  # written beside its result
    weight: tuple[int, ...] = ()  # the shape of a convolution's weight, with its groups behind it
    attention: Unmasked | None = None  # fused, with no mask from memory


NOTHING = Shape(BARRIER, (), Made(0, 1), 0)


class Node(NamedTuple):
    """One operator of a step."""

    place: int
    op: str
    tasks: tuple[int, ...]
    dur_ns: int
    shape: Shape
    backward: bool

    def saved(self, number: int) -> bool:
        """Whether an operand was saved by the forward pass."""
        return self.backward and number > 0 and self.op not in _JOINS


@lru_cache(maxsize=32768)
def shape_of(
    op: str,
    shapes: str | None,
    dtypes: str | None,
    strides: str | None,
    inputs: str | None,
    kernel: str | None = None,
) -> Shape:
    """How the compiler sees a call; one that it leaves alone where the recording does not tell."""
    if shapes is None:
        return NOTHING
    try:
        call = parse(op, shapes, dtypes, strides, inputs, kernel)
        shape = _shape(op, call)
        return _with_parts(shape, call, json.loads(strides)) if strides and shape.kind == POINTWISE else shape
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
        return NOTHING  # arguments that do not fit the operator's signature, or were not recorded


def columns_of(shape: Shape) -> Shape:
    """Of a norm's backward, the part that makes the gradients of its parameters: it reduces across rows."""
    rows = shape.count // max(shape.row, 1)
    return Shape(COLUMNS, shape.reads[:2], Made(2 * shape.row, 4), shape.count, rows)


def _shape(op: str, call: Call) -> Shape:
    tensors = call.all_tensors
    if op in _FREE:
        made = _made(tensors[0]) if tensors else Made(0, 1)
        return Shape(FREE, (), made, made.count)
    if op in _LOOKUPS:
        return _lookup(op, call)
    if op in _RESIZES:
        return _resized(call)
    if op in _MOVES:
        largest = max(tensors, key=lambda tensor: tensor.count)
        return Shape(POINTWISE, (_made(tensors[0]),), _made(largest), largest.count)
    if op in _SCATTERED:
        target, *_, source = tensors
        return Shape(SCATTERS, (_made(source),), _made(target), source.count)
    family = (work_models.find(op) or ("",))[0]
    if family in ("norm", "softmax"):
        return _normalising(op, call, family)
    if family == "reduction":
        return _reducing(op, call)
    if family == "concatenation":
        return _joined(call)
    if family in _FUSES:
        return _pointwise(op, call)
    reads = tuple(_made(tensor) for tensor in tensors)
    attention = unmasked(call) if family == "attention" else None
    return Shape(BARRIER, reads, _result(op, call), 0, weight=_weight(op, call), attention=attention)


def _made(tensor: Tensor, stride: Sequence[int] = ()) -> Made:
    return Made(tensor.count, tensor.item_bytes, _whole(tensor, stride))


def _whole(tensor: Tensor, stride: Sequence[int]) -> int:
    """Elements between the first and the last of a part of a larger tensor; 0 where it is none."""
    if len(stride) != len(tensor.shape) or tensor.count < 2 or tensor.stored_count != tensor.count:
        return 0
    whole = max(step * extent for step, extent in zip(stride, tensor.shape, strict=True) if extent > 1)
    return whole if whole > tensor.count else 0


def _with_parts(shape: Shape, call: Call, strides: Sequence[Sequence[int]]) -> Shape:
    """The shape whose operands tell what they are parts of."""
    given = [
        _made(tensor, strides[place] if place < len(strides) else ())
        for place, tensor in enumerate(call.tensors)
        if tensor is not None
    ]
    parts = {(made.count, made.item_bytes): made for made in given if made.whole}
    if not parts:
        return shape
    if len(given) == len(shape.reads) and call.name != "aten::copy_":
        return replace(shape, reads=tuple(given))
    return replace(shape, reads=tuple(parts.get((made.count, made.item_bytes), made) for made in shape.reads))


def _pointwise(op: str, call: Call) -> Shape:
    tensors = [tensor for tensor in call.all_tensors if tensor.count]  # an empty one is where the result goes
    if op == "aten::copy_":
        target, source = tensors[0], tensors[1]
        return Shape(POINTWISE, (_made(source),), _made(target), target.count)
    count = prod(broadcast([tensor.shape for tensor in tensors]))
    if op == "aten::glu":
        count //= 2
    leader = tensors[0] if op.endswith("_") else promoted(tensors)
    mask_bytes = count if op == "aten::native_dropout" else 0
    reads = tuple(_made(tensor) for tensor in tensors)
    return Shape(POINTWISE, reads, Made(count, leader.item_bytes), count, saved_bytes=mask_bytes)


def _joined(call: Call) -> Shape:
    """A concatenation; only its kernel tells the type of a list's tensors, and without it they are taken for halves."""
    width = call.kernel_dtype()[1] if call.kernel else 2
    parts = [Made(prod(shape), width) for shape in call.lists[0]]
    count = sum(part.count for part in parts)
    return Shape(POINTWISE, tuple(parts), Made(count, width), count)


def _resized(call: Call) -> Shape:
    """An image, or a row or volume, in another size."""
    source, extents = call.tensor(0), call.integers(1)
    count = prod(source.shape[: -len(extents)]) * prod(extents)
    return Shape(POINTWISE, (_made(source),), Made(count, source.item_bytes), count)


def _lookup(op: str, call: Call) -> Shape:
    """Reads what it is asked for, not the whole table."""
    table, places = call.all_tensors[0], call.all_tensors[1]
    if op == "aten::nll_loss_forward":
        reads = (Made(places.count, table.item_bytes), _made(places))
        return Shape(COLUMNS, reads, Made(1, 4), places.count)
    row = {"aten::embedding": table.count // max(table.shape[0], 1), "aten::index_select": table.shape[-1]}
    count = places.count * row.get(op, 1)
    return Shape(POINTWISE, (Made(count, table.item_bytes),), Made(count, table.item_bytes), count)


def _normalising(op: str, call: Call, family: str) -> Shape:
    backward = "backward" in op
    source = call.tensor(1) if backward else call.tensor(0)
    reads = tuple(_made(tensor) for tensor in call.all_tensors)
    makes = Made(source.count, source.item_bytes)
    if family == "softmax":
        dim = int(call.text(2 if backward else 1) or -1)
        if not backward and call.text(2).casefold() == "true":
            makes = Made(source.count, 4)  # half_to_float
        last = dim in (-1, len(source.shape) - 1)
        return Shape(ROWS if last else PLANES, reads, makes, source.count, source.shape[dim])
    if "layer_norm" in op or "rms_norm" in op:
        row = prod(call.integers(2 if backward else 1))
        return Shape(ROWS, reads, makes, source.count, row)
    channels = source.shape[1] if len(source.shape) > 1 else 1
    return Shape(PLANES, reads, makes, source.count, source.count // max(channels, 1))


def _reducing(op: str, call: Call) -> Shape:
    source = call.tensor(0)
    if op in ("aten::max", "aten::min") and call.given(1):
        return _pointwise(op, call)
    if op.removesuffix("_") in _SCANS:
        return Shape(BARRIER, (_made(source),), _made(source), 0)
    rank = len(source.shape)
    try:
        dims = {dim % rank for dim in call.integers(2 if op.endswith(("norm", "logsumexp")) else 1)}
    except (ValueError, TypeError, ZeroDivisionError):
        dims = set()  # all of them
    kept = prod(extent for place, extent in enumerate(source.shape) if place not in dims) if dims else 1
    width = 1 if op in ("aten::any", "aten::all") else source.item_bytes
    trailing = dims == set(range(rank - len(dims), rank)) and kept > 1
    row = source.count // max(kept, 1)
    return Shape(ROWS if trailing else COLUMNS, (_made(source),), Made(kept, width), source.count, row)


def _result(op: str, call: Call) -> Made:
    """What an operator that stays makes, as far as shapes tell."""
    tensors = call.all_tensors
    if not tensors:
        return Made(0, 1)
    short, width = op.removeprefix("aten::"), tensors[0].item_bytes
    first = {"mm": 0, "bmm": 0, "_scaled_mm": 0, "addmm": 1, "baddbmm": 1}.get(short)
    if first is not None:
        made = prod(tensors[first].shape[:-1]) * tensors[first + 1].shape[-1]
        return Made(made, 2 if short == "_scaled_mm" else width)
    if "conv" in short and len(tensors) > 1:
        return Made(tensors[1].count if "backward" in short else _convolved(call), width)
    return Made(tensors[0].count, width)


def _weight(op: str, call: Call) -> tuple[int, ...]:
    if "conv" not in op or "backward" in op or len(call.all_tensors) < 2:
        return ()
    source, weight = call.all_tensors[:2]
    return (*weight.shape, source.shape[1] // max(weight.shape[1], 1)) if len(weight.shape) > 2 else ()


def _convolved(call: Call) -> int:
    """Elements of a convolution's result."""
    source, weight = call.tensor(0), call.tensor(1)
    places = [place for place, text in enumerate(call.inputs) if text.startswith("[")][:3]
    padding, stride, dilation = (call.integers(place) for place in places)
    extents = [
        (extent + 2 * padding[axis] - dilation[axis] * (weight.shape[2 + axis] - 1) - 1) // stride[axis] + 1
        for axis, extent in enumerate(source.shape[2:])
    ]
    return source.shape[0] * weight.shape[0] * prod(extents)
