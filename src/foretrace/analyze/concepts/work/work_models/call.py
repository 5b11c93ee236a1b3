"""A Call is one operator with its recorded arguments; Work is what it had to compute and move."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from foretrace.analyze.concepts.work.tensor_shapes import MOST_ELEMENTS
from foretrace.ingest.server_marks import Lengths, lengths_of

Shape = tuple[int, ...]

# As torch writes the type of a tensor in "Input type" -> short name, bytes an element.
_DTYPES = {
    "float": ("fp32", 4), "double": ("fp64", 8), "c10::Half": ("fp16", 2), "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1), "c10::Float8_e5m2": ("fp8", 1), "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1), "c10::Float8_e8m0fnu": ("fp8", 1), "c10::Float4_e2m1fn_x2": ("fp4", 1),
    "long int": ("int64", 8), "long": ("int64", 8), "int": ("int32", 4), "short int": ("int16", 2),
    "short": ("int16", 2), "signed char": ("int8", 1), "unsigned char": ("uint8", 1), "char": ("int8", 1),
    "unsigned short": ("uint16", 2), "unsigned int": ("uint32", 4), "unsigned long": ("uint64", 8),
    "bool": ("bool", 1), "c10::complex<float>": ("complex64", 8), "c10::complex<double>": ("complex128", 16),
    "c10::complex<c10::Half>": ("complex32", 4), "c10::qint8": ("int8", 1), "c10::quint8": ("uint8", 1),
    "c10::qint32": ("int32", 4),
}  # fmt: skip
# torch's number of a type, as a scalar input gives it (c10/core/ScalarType.h).
SCALAR_TYPE_BYTES = {
    0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 8: 4, 9: 8, 10: 16, 11: 1, 15: 2, 23: 1, 24: 1, 25: 1, 26: 1,
}  # fmt: skip
# Types that a kernel's template names, where the operator's list of tensors has none.
_KERNEL_DTYPES = (
    (re.compile(r"c10::BFloat16|bfloat16"), ("bf16", 2)),
    (re.compile(r"c10::Half|__half\b"), ("fp16", 2)),
    (re.compile(r"\bdouble\b"), ("fp64", 8)),
    (re.compile(r"\bfloat\b"), ("fp32", 4)),
)
_OPAQUE = re.compile(r"OpaqueType<(\d+)")


@dataclass(frozen=True)
class Tensor:
    """A tensor that an operator was given."""

    shape: Shape
    dtype: str
    item_bytes: int
    stored_count: int  # elements in memory: expanded dimensions (stride 0) count once

    @property
    def count(self) -> int:
        """Elements, as the operator sees them."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """What reading or writing it once moves."""
        return self.stored_count * self.item_bytes


@dataclass(frozen=True)
class Work:
    """FLOPs (null where shapes do not tell them), compulsory bytes, and the type they are computed in."""

    flops: int | None
    bytes: int
    dtype: str


@dataclass(frozen=True)
class Call:
    """The arguments of one operator call, by position, as the profiler recorded them."""

    name: str
    tensors: tuple[Tensor | None, ...]
    lists: tuple[tuple[Shape, ...], ...]  # shapes of a list of tensors; empty where the argument is none
    inputs: tuple[str, ...]  # empty where scalar values were not recorded
    kernel: str | None  # the longest kernel that it launched
    lengths: tuple[Lengths, ...] = ()  # of a server's step: what its prefills and its decodes attend to

    def tensor(self, place: int) -> Tensor:
        """The tensor at that place; ValueError where it is none."""
        tensor = self.tensors[place]
        if tensor is None:
            raise ValueError(f"argument {place} of {self.name} is no tensor")
        return tensor

    def given(self, place: int) -> Tensor | None:
        """The tensor at that place, if there is one."""
        return self.tensors[place] if place < len(self.tensors) else None

    @property
    def all_tensors(self) -> list[Tensor]:
        """Every tensor argument, in order."""
        return [tensor for tensor in self.tensors if tensor is not None]

    def text(self, place: int) -> str:
        """The value of a scalar input as recorded; nothing where it was left out."""
        return self.inputs[place] if place < len(self.inputs) else ""

    def integer(self, place: int) -> int:
        """The value of an integer input; ValueError where it was not recorded."""
        return int(self.text(place))

    def integers(self, place: int) -> tuple[int, ...]:
        """The value of a list of integers, or of one; ValueError where it was not recorded."""
        value = json.loads(self.text(place))
        return tuple(int(item) for item in value) if isinstance(value, list) else (int(value),)

    def flag(self, place: int) -> bool:
        """Whether a boolean input is true; ValueError where it was not recorded."""
        text = self.text(place).casefold()
        if text not in ("true", "false", "1", "0"):
            raise ValueError(f"argument {place} of {self.name} was not recorded")
        return text in ("true", "1")

    def flags(self, place: int) -> tuple[bool, ...]:
        """The value of a list of booleans; ValueError where it was not recorded."""
        words = re.findall(r"true|false", self.text(place).casefold())
        if not words:
            raise ValueError(f"argument {place} of {self.name} was not recorded")
        return tuple(word == "true" for word in words)

    def kernel_dtype(self) -> tuple[str, int]:
        """Type and element size by the kernel's template arguments; ValueError where they do not tell."""
        kernel = self.kernel or ""
        if opaque := _OPAQUE.search(kernel):
            return f"{opaque[1]}-byte", int(opaque[1])
        for pattern, dtype in _KERNEL_DTYPES:
            if pattern.search(kernel):
                return dtype
        raise ValueError(f"the kernel of {self.name} does not tell the type")


Model = Callable[[Call], Work]


def parse(
    name: str,
    shapes: str,
    dtypes: str | None,
    strides: str | None,
    inputs: str | None,
    kernel: str | None,
    step: str | None = None,
) -> Call:
    """The call behind one row of the ops table; ValueError where it is not as torch writes it."""
    sizes = _list(shapes)
    types = _list(dtypes)
    steps = _list(strides)
    tensors: list[Tensor | None] = []
    lists: list[tuple[Shape, ...]] = []
    for place, size in enumerate(sizes):
        dtype = types[place] if place < len(types) else ""
        nested = any(isinstance(item, list) for item in size)
        lists.append(tuple(_shape(item) for item in size) if nested else ())
        stride = steps[place] if place < len(steps) else ()
        tensors.append(None if nested else _tensor(size, dtype, stride))
    values = tuple(str(value) for value in _list(inputs))
    return Call(
        name, tuple(tensors), tuple(lists), values, kernel, (lengths_of(step) if step else None) or ()
    )


def _list(text: str | None) -> list[Any]:
    value = json.loads(text) if text else []
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def _shape(size: Sequence[Any]) -> Shape:
    shape = tuple(int(extent) for extent in size)
    if any(extent < 0 for extent in shape):
        raise ValueError("negative size")
    if prod(shape) > MOST_ELEMENTS:
        raise ValueError("larger than any memory")
    return shape


def _tensor(size: Sequence[Any], dtype: str, stride: Sequence[Any]) -> Tensor | None:
    if dtype not in _DTYPES:
        return None  # a scalar, a list of scalars, or nothing
    shape = _shape(size)
    known = len(stride) == len(shape)
    stored = prod(extent for place, extent in enumerate(shape) if not known or stride[place] != 0)
    return Tensor(shape, *_DTYPES[dtype], stored if prod(shape) else 0)


def promoted(tensors: Sequence[Tensor]) -> Tensor:
    """The tensor whose type a result of all takes: floats over integers, then the wider; numbers give way."""
    sized = [tensor for tensor in tensors if tensor.shape] or list(tensors)
    return max(sized, key=lambda tensor: (_rank(tensor.dtype), tensor.item_bytes))


def _rank(dtype: str) -> int:
    if dtype == "bool":
        return 0
    return 1 if "int" in dtype else 3 if dtype.startswith("complex") else 2


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that the given shapes broadcast to."""
    extents = [1] * max((len(shape) for shape in shapes), default=0)
    for shape in shapes:
        for place, extent in enumerate(reversed(shape), start=1):
            if extent != 1:
                extents[-place] = extent
    return tuple(extents)
