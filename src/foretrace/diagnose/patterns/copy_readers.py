"""What reads a copy, and whether it could read the original in its place.

Recordings name no tensors, but say how each lies in memory: what is as large as the copy and strides as it does is taken
for the copy, or for a view of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.sourced import JUDGEMENT, Count, Share

Shape = tuple[int, ...]

_LOOKED_AT = Count(64, "operators after a copy, among which its reader is looked for", JUDGEMENT)
_LEAST_PART = Share(
    1 / 8, "the copy: what is smaller and strides alike is more likely another tensor", JUDGEMENT
)
# Views that any order allows, and those that the order may forbid.
_FREE_VIEW = re.compile(
    r"aten::(?:select|slice|split|split_with_sizes|tensor_split|chunk|unbind|unsqueeze|squeeze|transpose|swapaxes|"
    r"permute|movedim|t|narrow|expand|expand_as|detach|alias|as_strided|diagonal|numpy_T|mT)$"
)
_BOUND_VIEW = re.compile(
    r"aten::(?:view|_unsafe_view|view_as|flatten|unflatten|reshape|_reshape_alias|unfold)$"
)
_IN_PLACE = re.compile(r"aten::(?!_)\w+_$")
# They bring their input into order themselves, so that the copy would only move into them.
_ORDERS = re.compile(
    r"aten::(?:native_|cudnn_|_?fused_)?(?:layer_norm|group_norm|instance_norm|batch_norm)|aten::_?(?:log_)?softmax|"
    r"aten::(?:cross_entropy|nll|ctc)_loss|aten::\w*conv|aten::(?:lstm|gru|rnn)|aten::\w*(?:pool|upsample|grid_sampler|"
    r"pixel_)|aten::(?:cdist|im2col|col2im|cumsum|sort|topk|_fft|fft_)"
)
# Of those, what takes channels-last order as it is.
_CHANNELS_LAST = re.compile(r"aten::\w*(?:conv|batch_norm|pool)")
_ATTENTION = re.compile(r"aten::_?scaled_dot_product|aten::_\w*attention")
_PRODUCT = re.compile(r"aten::(?:linear|matmul|mm|bmm|addmm|baddbmm|einsum|mv|dot|__rmatmul__)$")
_POINTWISE = re.compile(
    r"aten::(?:add|sub|rsub|mul|div|where|maximum|minimum|cat|stack|concat|lerp|addcmul|eq|ne|lt|gt|le|ge|atan2|pow|"
    r"masked_fill|__and__|__or__|bitwise_and|logical_and|logical_or|relu|sigmoid|tanh|exp|gelu|silu)$"
)
_KEEPS_HEADS = re.compile(r"flash|cudnn")  # attention that takes fewer heads of keys than of queries


@dataclass(frozen=True)
class Layout:
    """A tensor as it lies in memory."""

    shape: Shape
    strides: Shape

    @property
    def ordered(self) -> bool:
        """Whether its elements follow one another, the last dimension first."""
        step = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != step:
                return False
            step *= extent
        return True

    @property
    def _is_picture(self) -> bool:
        """Whether it has batch, channels, and two or three dimensions of space."""
        return 4 <= len(self.shape) <= 5

    @property
    def channels_last(self) -> bool:
        """Whether it is a picture or a volume in channels-last order."""
        if not self._is_picture:
            return False
        shape, strides = (sizes[:1] + sizes[2:] + sizes[1:2] for sizes in (self.shape, self.strides))
        return Layout(shape, strides).ordered

    @property
    def turned(self) -> bool:
        """Whether it is in channels-last order, or a planar one whose channels were moved to the end."""
        if self.channels_last:
            return not self.ordered
        if not self._is_picture:
            return False
        shape, strides = (sizes[:1] + sizes[-1:] + sizes[1:-1] for sizes in (self.shape, self.strides))
        return Layout(shape, strides).ordered and not self.ordered

    @property
    def dense_rows(self) -> bool:
        """Whether its last dimension's elements follow one another."""
        return not self.shape or self.shape[-1] == 1 or self.strides[-1] == 1

    @property
    def repeated(self) -> tuple[int, ...]:
        """Dimensions along which the same elements come again."""
        pairs = enumerate(zip(self.shape, self.strides, strict=True))
        return tuple(place for place, (extent, stride) in pairs if extent > 1 and stride == 0)

    @property
    def one_batch(self) -> bool:
        """Whether it repeats whole matrices along one dimension: torch.matmul copies what repeats along one of several."""
        batch = [place for place, extent in enumerate(self.shape[:-2]) if extent > 1]
        return batch == list(self.repeated)

    def holds(self, part: Layout) -> bool:
        """Whether the part may be a view of this tensor: its strides are found here, and no more elements along them."""
        here: dict[int, int] = {}
        for extent, stride in zip(self.shape, self.strides, strict=True):
            here[stride] = max(extent, here.get(stride, 1))
        return all(
            stride == 0 or extent <= here.get(stride, 0)
            for extent, stride in zip(part.shape, part.strides, strict=True)
            if extent != 1
        )

    def viewed(self, shape: Shape) -> Layout | None:
        """This tensor in another shape, as torch's computeStride has it; None where that takes a copy."""
        if prod(shape) != prod(self.shape) or not self.shape or 0 in shape:
            return None
        made, place, base = [0] * len(shape), len(shape) - 1, self.strides[-1]
        here = there = 1
        for at in range(len(self.shape) - 1, -1, -1):
            here *= self.shape[at]
            if at and (self.shape[at - 1] == 1 or self.strides[at - 1] == here * base):
                continue
            while place >= 0 and (there < here or shape[place] == 1):
                made[place] = there * base
                there *= shape[place]
                place -= 1
            if there != here:
                return None
            base, here, there = self.strides[at - 1] if at else base, 1, 1
        return Layout(shape, tuple(made)) if place < 0 else None


@dataclass(frozen=True)
class Reader:
    """The first operator that computes with a copy."""

    op: int
    name: str
    original: Layout  # what it would read in its place, with the views between made
    tensors: tuple[Layout, ...]


@dataclass(frozen=True)
class Call:
    """An operator that the program calls itself, with its arguments."""

    op: int
    name: str
    shapes: str | None
    strides: str | None
    inputs: str | None


def ordered(shape: Shape) -> Layout:
    """A tensor of this shape as contiguous() makes it."""
    return Layout(shape, tuple(prod(shape[place + 1 :]) for place in range(len(shape))))


def tensors(shapes: str | None, strides: str | None) -> tuple[Layout, ...]:
    """The tensors that an operator was given, those of lists too; none where strides were not recorded."""
    return _tensors(shapes, strides) if shapes and strides else ()


@lru_cache(maxsize=16384)
def _tensors(shapes: str, strides: str) -> tuple[Layout, ...]:
    try:
        return tuple(_flat(json.loads(shapes), json.loads(strides)))
    except (ValueError, TypeError):
        return ()


def _flat(shapes: Any, strides: Any) -> Iterator[Layout]:
    for shape, stride in zip(shapes, strides, strict=False):
        if any(isinstance(extent, list) for extent in shape):
            yield from _flat(shape, stride)
        elif shape and len(shape) == len(stride):
            yield Layout(tuple(map(int, shape)), tuple(map(int, stride)))


def reader(
    case: Case, copying: int, copy: Layout, original: Layout, *, reshaped: bool = False
) -> Reader | None:
    """What computes first with the copy that the operator `copying` made; None where nothing is seen to.

    `reshaped`: the result has another shape than the copy, and is known by the number of its elements.
    """
    for call in following(case, copying):
        given = tensors(call.shapes, call.strides)
        changed = given[:1] if _IN_PLACE.match(call.name) else ()
        if any(copy.holds(tensor) for tensor in changed):
            return Reader(call.op, call.name, original, given)
        views = [tensor for tensor in given if _is_copy(copy, tensor, reshaped=reshaped)]
        if not views or _FREE_VIEW.match(call.name):
            continue
        if not _BOUND_VIEW.match(call.name):
            return Reader(call.op, call.name, original, given)
        shape = _asked_shape(call.inputs, prod(copy.shape))
        view = original.viewed(shape) if shape and views[0] == copy else None
        if view is None or shape is None:
            return Reader(call.op, call.name, original, given)
        copy, original = copy.viewed(shape) or copy, view
    return None


def is_product(reader: Reader) -> bool:
    """Whether the reader multiplies matrices."""
    return _PRODUCT.match(reader.name) is not None


def orders_itself(reader: Reader | None) -> bool:
    """Whether the reader would copy a part of a larger tensor into order."""
    return reader is not None and _ORDERS.match(reader.name) is not None


def _is_copy(copy: Layout, tensor: Layout, *, reshaped: bool) -> bool:
    if reshaped:
        return tensor.ordered and prod(tensor.shape) == prod(copy.shape)
    return copy.holds(tensor) and prod(tensor.shape) >= _LEAST_PART * prod(copy.shape)


def _asked_shape(inputs: str | None, count: int) -> Shape | None:
    """The shape that a view asks for; None where it was not recorded."""
    try:
        shape = [int(extent) for extent in json.loads(json.loads(inputs or "")[1])]
    except (ValueError, TypeError, LookupError):
        return None
    rest = prod(extent for extent in shape if extent != -1)
    return tuple(count // max(rest, 1) if extent == -1 else extent for extent in shape)


def is_view(name: str) -> bool:
    """Whether an operator of this name makes a view of what it is given."""
    return (_FREE_VIEW.match(name) or _BOUND_VIEW.match(name)) is not None


def following(case: Case, op: int) -> Iterator[Call]:
    """The outermost operators that the same thread calls next."""
    calls, places = case.keep("outermost calls", lambda: _outermost(case))
    track, place = places.get(op, (-1, 0))
    yield from calls.get(track, [])[place + 1 : place + 1 + _LOOKED_AT]


def _outermost(case: Case) -> tuple[dict[int, list[Call]], dict[int, tuple[int, int]]]:
    """The outermost operators of each thread in order, and for each its thread and place there."""
    spans = case.trace.spans
    is_op = spans["kind"] == "op"
    within_op = is_op.gather(spans["parent_id"]).fill_null(value=False)
    outer = spans.filter(is_op & ~within_op).select(pl.col("id").alias("op_id"), "track_id", "start_ns")
    outer = outer.sort("start_ns", maintain_order=True)
    outer = outer.with_columns(name=case.op_names(outer["op_id"]))
    outer = case.with_arguments(outer, "shapes", "strides", "inputs")
    calls: dict[int, list[Call]] = {}
    places: dict[int, tuple[int, int]] = {}
    columns = ("track_id", "op_id", "name", "shapes", "strides", "inputs")
    for track, *call in outer.select(columns).iter_rows():
        of_thread = calls.setdefault(track, [])
        places[call[0]] = (track, len(of_thread))
        of_thread.append(Call(*call))
    return calls, places


def from_product(case: Case, copying: int) -> bool:
    """Whether a matrix product made what was copied: it could have written any order, from the left or the right."""
    calls, places = case.keep("outermost calls", lambda: _outermost(case))
    track, place = places.get(copying, (-1, 0))
    before = reversed(calls.get(track, [])[max(place - _LOOKED_AT, 0) : place])
    maker = next((call for call in before if not is_view(call.name)), None)
    return maker is not None and _PRODUCT.match(maker.name) is not None


def readable(reader: Reader, copy: Layout, *, heads: bool, backend: str, any_order: bool) -> str:
    """How the reader would do with the original: "well", "slowly" (rows that are not dense), or "not".

    `heads`: what is repeated are heads of keys and values; `backend`: the operators inside of the reader;
    `any_order`: what made the original could have written another order.
    """
    original = reader.original
    same = original.strides == copy.strides
    if _IN_PLACE.match(reader.name) or _BOUND_VIEW.match(reader.name):
        return "not"
    if _ORDERS.match(reader.name):
        return "well" if same or (original.channels_last and _CHANNELS_LAST.match(reader.name)) else "not"
    if _ATTENTION.match(reader.name):
        if original.repeated:
            return "well" if heads and _KEEPS_HEADS.search(backend) else "not"
        return "well" if original.dense_rows else "not"
    if _PRODUCT.match(reader.name):
        return "well" if not original.repeated or original.one_batch else "not"
    if original.repeated:
        return "well" if _POINTWISE.match(reader.name) else "not"
    return "well" if same or any_order or original.dense_rows else "slowly"
