"""What autocast would make of a program in fp32: which operators would run in half precision, and which casts it adds.

Autocast casts what products take to half precision and what norms, softmax and losses take to fp32; other operators take
what they are given, and the wider type wins. Tensors have no names in a recording: one is known by how many elements it
has, and the operator that last made so many made it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.predict.costs import gemm
from foretrace.predict.costs.precision import ITEM_BYTES
from foretrace.sourced import JUDGEMENT, Count

_FLOAT = "float"
_CONVOLUTION = re.compile(r"convolution|conv_depthwise")
_ATTENTION = re.compile(r"_attention_forward|_scaled_dot_product")
_BACKWARD = re.compile(r"Backward\d*$")
# torch's list of operators that autocast runs in fp32, as far as their kernels' operators are named so.
_IN_FP32 = re.compile(
    r"^aten::(?:_?(?:log_)?softmax|native_layer_norm|native_group_norm|_fused_rms_norm|rms_norm|nll_loss.*|pow|exp|expm1"
    r"|log|log10|log2|log1p|sum|prod|cumsum|cumprod|rsqrt|reciprocal|norm|linalg_vector_norm|softplus|mse_loss"
    r"|l1_loss|smooth_l1_loss|huber_loss|binary_cross_entropy.*|kl_div|_ctc_loss|cdist|acos|asin|cosh|sinh|tan|erfinv)$"
)
# Which tensors of a product are parameters, kept in fp32.
_WEIGHTS = {"aten::addmm": (0, 2), "aten::_addmm_activation": (0, 2), "aten::mm": (1,)}
_ADDS = re.compile(r"^aten::(?:add|add_|sub|sub_)$")
_PARTS = Count(3, "parts of a result that is split: gate and value, or queries, keys and values", JUDGEMENT)
_OUTER = Count(4, "operators around one that count as the same call", JUDGEMENT)
_NARROWER = ITEM_BYTES["bf16"] / ITEM_BYTES["fp32"]
_OPTIMIZER = "Optimizer."


@dataclass(frozen=True)
class Cast:
    """A cast that autocast adds."""

    count: int  # elements
    widens: bool  # from half precision to fp32


def _all(counts: Iterable[int], *, widens: bool) -> tuple[Cast, ...]:
    return tuple(Cast(count, widens) for count in counts)


@dataclass(frozen=True)
class Under:
    """One operator of the forward pass under autocast."""

    product: bool = False
    half: bool = False  # whether its result is in half precision
    casts: tuple[Cast, ...] = ()  # before it
    casts_back: tuple[Cast, ...] = ()  # of gradients, behind it in the backward pass
    bytes_share: float = 1.0  # of what it moves in fp32


@dataclass
class Autocast:
    """What becomes of the kernels, and what is cast beside which."""

    products: set[int] = field(default_factory=set)  # tasks of products, in half precision
    shares: dict[int, float] = field(default_factory=dict)  # of other tasks' bytes, less than 1
    casts: dict[int, tuple[Cast, ...]] = field(default_factory=dict)  # beside a task of the forward pass
    casts_back: dict[int, tuple[Cast, ...]] = field(default_factory=dict)  # beside one of the backward pass

    @property
    def cast_count(self) -> int:
        """How many casts are added in all steps."""
        return sum(map(len, (*self.casts.values(), *self.casts_back.values())))


def under_autocast(case: Case) -> Autocast:
    """What autocast would make of this program's kernels."""
    rows = case.device_work(pl.col("kind") == "kernel").rows.drop_nulls("op_id").sort("task")
    flow, told, done = _Flow(), Autocast(), set[int]()
    forward = _forward_ids(case)
    known: dict[int, Under] = {}
    for task, op, step in rows.select("task", "op_id", "step").iter_rows():
        flow.begin(step)
        around = case.callers(op)
        names = [str(case.name(span)) for span in around]
        if any(name.startswith(_OPTIMIZER) for name in names):
            continue
        node = next((span for span in around if span in forward), None)
        if node is not None:
            under = known.get(forward[node])
            if under is not None:
                _tell(told, task, under)
                if under.casts_back and forward[node] not in done:
                    told.casts_back[task] = under.casts_back
                done.add(forward[node])
            continue
        if any(_BACKWARD.search(name) for name in names):
            continue
        if op not in known:
            under = flow.ran(names[0], case.argument(op, "shapes"), case.argument(op, "dtypes"))
            if under is None:
                continue
            for outer in around[:_OUTER]:
                known.setdefault(outer, under)  # the first counts: a convolution is more than its bias
            if under.casts:
                told.casts[task] = under.casts
        _tell(told, task, known[op])
    return told


def _tell(told: Autocast, task: int, under: Under) -> None:
    if under.product:
        told.products.add(task)
    elif under.bytes_share < 1:
        told.shares[task] = under.bytes_share


def _forward_ids(case: Case) -> dict[int, int]:
    """Operators of the backward pass with those of the forward pass whose gradient they compute."""
    linked = case.trace.ops.drop_nulls("forward_id").select("span_id", "forward_id")
    return dict(linked.iter_rows())


class _Flow:
    """Tensors by how many elements they have: whether the last one made is in half precision."""

    def __init__(self) -> None:
        self.half: dict[int, bool] = {}
        self.unsized = (
            False  # whether the operator before made a tensor in half precision whose size is not known
        )
        self.wide: set[int] = set()  # sizes of which the step made a tensor in fp32
        self.last: tuple[str, list[int], bool] | None = (
            None  # the product before, and whether its input was in half
        )
        self.step: int | None = None

    def begin(self, step: int | None) -> None:
        """Forgets the tensors of another step."""
        if step != self.step:
            self.half.clear()
            self.wide.clear()
            self.last = None
            self.step = step

    def ran(self, name: str, shapes: str, dtypes: str) -> Under | None:
        """The operator under autocast; None where it takes no tensors of fp32."""
        taken = [count for count in _tensors(shapes, dtypes) if count]
        if not taken:
            return None
        if self.unsized:
            self.half.setdefault(taken[0], True)
            self.unsized = False
        if name in gemm.FIRST or _CONVOLUTION.search(name) or _ATTENTION.search(name):
            return self._product(name, shapes, taken)
        self.last = None
        if _IN_FP32.search(name):
            casts = tuple(count for count in taken[:1] if self.half.get(count, False))
            self._made(taken[0], half=False)
            return Under(casts=_all(casts, widens=True), casts_back=_all(casts, widens=False))
        return self._other(name, taken)

    def _made(self, count: int, *, half: bool) -> None:
        self.half[count] = half
        if not half:
            self.wide.add(count)

    def _product(self, name: str, shapes: str, taken: list[int]) -> Under:
        """Products of one size in a row, as of queries, keys and values, take the same input, not each other's result."""
        weights = _WEIGHTS.get(name, (1, 2) if _CONVOLUTION.search(name) else ())
        given = next((count for place, count in enumerate(taken) if place not in weights), 0)
        again = self.last is not None and self.last[:2] == (name, taken)
        was_half = self.last[2] if again and self.last else self.half.get(given, False)
        self.last = (name, taken, was_half)
        casts = tuple(
            count
            for place, count in enumerate(taken)
            if place in weights or not (was_half if count == given else self.half.get(count, False))
        )
        size = gemm.size(name, shapes)
        if size is not None:
            made = size.batch * size.m * size.n
            self.half |= {made // parts: True for parts in range(1, _PARTS + 1) if made % parts == 0}
        elif _ATTENTION.search(name):
            self.half[taken[0]] = True
        else:
            self.unsized = True
        return Under(
            product=True, half=True, casts=_all(casts, widens=False), casts_back=_all(casts, widens=True)
        )

    def _other(self, name: str, taken: list[int]) -> Under:
        """The wider type wins; norms over the batch take their weights in fp32 beside an input in half precision."""
        counted = taken[:1] if "batch_norm" in name else taken
        halves = [count for count in counted if self.half.get(count, False)]
        made = max(counted)
        if _ADDS.search(name) and halves.count(made) > 1 and made in self.wide:
            halves.remove(made)  # what a block's input is added to: that input is kept in fp32
        half = len(halves) == len(counted)
        self._made(made, half=half)
        moved = sum(counted) + made
        share = 1 - (1 - _NARROWER) * (sum(halves) + (made if half else 0)) / moved
        # Nothing is cast before it, but the gradient of a narrower operand is.
        narrowed = () if half else _all(halves, widens=False)
        return Under(half=half, casts_back=narrowed, bytes_share=share)


def _tensors(shapes: str, dtypes: str) -> Iterator[int]:
    """How many elements each tensor of fp32 has that an operator takes; numbers are left out."""
    try:
        pairs = zip(json.loads(shapes or "[]"), json.loads(dtypes or "[]"), strict=False)
        for shape, dtype in pairs:
            if dtype == "TensorList":
                yield from (_count(part) for part in shape if part)
            elif dtype == _FLOAT and shape:
                yield _count(shape)
    except (ValueError, TypeError):
        return


def _count(shape: Iterable[Any]) -> int:
    return prod(int(extent) for extent in shape)
