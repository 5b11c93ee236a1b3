"""What a recording shows of an attention in pieces: its mask, scale, dropout, type, and who else reads its weights.

A fused kernel computes the same only if it is told all of that. What the recording does not show is said in the code as
something to check.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import polars as pl

from foretrace.analyze.concepts.device.attention_pieces import (
    CONTEXT,
    PARTS,
    SCORES,
    SOFTMAX,
    operands,
    product,
)
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.patterns.attention_in_pieces import Attention, turned
from foretrace.sourced import JUDGEMENT, Factor

MASKED_OUT = Factor(
    1_000, "below zero, a score that a softmax makes nothing of: e to that power is 0", JUDGEMENT
)
ADDED, FILLED, KEPT, MULTIPLIED = "added", "filled", "kept", "multiplied"
_HALF = ("c10::Half", "c10::BFloat16")
_SCALES = ("aten::mul", "aten::mul_", "aten::div", "aten::div_")
_WEIGHTS = ("aten::mul", "aten::mul_")
_ADDS = ("aten::add", "aten::add_")
_FILLS = ("aten::masked_fill", "aten::masked_fill_")
_CUTS = {
    "aten::tril": "0",
    "aten::tril_": "0",
    "aten::triu": "1",
    "aten::triu_": "1",
}  # with the diagonal of a causal mask
_JOINS = (
    "aten::logical_and", "aten::logical_or", "aten::bitwise_and", "aten::bitwise_or", "aten::__and__", "aten::__or__",
    "aten::mul", "aten::add", "aten::where", "aten::masked_fill", "aten::masked_fill_", "aten::maximum", "aten::minimum",
)  # fmt: skip
# Between scores and softmax these make another function than softmax(scale · QK^T + mask).
_ALTERS = (
    "tanh", "sigmoid", "relu", "softplus", "clamp", "clamp_min", "clamp_max", "topk", "sort", "pow", "sqrt", "log", "abs",
    "cumsum", "floor", "round", "gelu", "erf", "sin", "cos",
)  # fmt: skip


@dataclass
class Seen:
    """What lies around the scores of attentions of one size."""

    attention: Attention
    dtype: str = ""
    masks: dict[str, tuple[int, ...]] = field(default_factory=dict)  # how a mask is applied, and its shape
    mask_dtype: str = ""
    fill: str = ""  # what is put where a score is masked
    cut: bool = False  # the step cuts a triangle of the scores' size, with a causal mask's diagonal, and no other mask
    scaled: bool = False  # the scores are multiplied by a number
    alpha: str = ""  # by this one, where the product itself does that
    dropout: str = ""  # its probability; "?" where it is not known
    alters: set[str] = field(default_factory=set)  # other operators between scores and softmax
    weighted: bool = False  # the weights are multiplied by another tensor, such as a mask of heads
    readers: set[str] = field(default_factory=set)  # operators that read the weights beside the product

    @property
    def causal(self) -> bool:
        """Whether the only mask is a triangle that the step itself cuts."""
        one_for_all = all(prod(shape[:-2]) == 1 for shape in self.masks.values())
        return self.cut and self.perhaps_causal and one_for_all

    @property
    def perhaps_causal(self) -> bool:
        """Whether the only mask is as large as one or all samples' scores: a triangle, or another."""
        return bool(self.masks) and all(map(self._square, self.masks.values()))

    def _square(self, shape: tuple[int, ...]) -> bool:
        _, rows, columns = self.attention.scores
        one_for_all_heads = len(shape) == 2 or (len(shape) > 2 and shape[-3] == 1)
        return rows == columns and tuple(shape[-2:]) == (rows, columns) and one_for_all_heads

    @property
    def half(self) -> bool:
        """Whether the products are in half precision."""
        return self.dtype in _HALF

    @property
    def shows_through(self) -> bool:
        """Whether scores are replaced by a number that a softmax may give weight."""
        try:
            return FILLED in self.masks and float(self.fill) > -MASKED_OUT
        except ValueError:
            return False

    @property
    def doubt(self) -> str:
        """Why scaled_dot_product_attention may not compute the same; empty where there is no such reason."""
        if self.alters:
            names = ", ".join(sorted(self.alters))
            return f"between the scores and the softmax stands {names}, which scaled_dot_product_attention does not compute"
        if self.readers:
            names = ", ".join(sorted(self.readers))
            return f"{names} reads the weights after the softmax, which a fused kernel does not give"
        if self.shows_through:
            return f"masked scores become {self.fill}, which the softmax still gives weight, and -inf in a fused kernel"
        if self.weighted:
            return "the weights are multiplied by another tensor behind the softmax, which a fused kernel does not do"
        return ""


def seen(case: Case, work: DeviceWork, sizes: list[Attention]) -> Seen:
    """What the recording shows of the attention that takes longest."""
    durations = dict(work.rows.select("task", "dur_ns").iter_rows())
    largest = max(sizes, key=lambda size: sum(durations.get(task, 0) for task in size.products))
    found = Seen(largest)
    columns = ("op_id", "op", "part", "shapes", "dtypes", "inputs")
    forward = work.rows.filter(~pl.col("backward").fill_null(value=False)).drop_nulls("shapes")
    forward = case.with_arguments(forward.unique("op_id", keep="first").sort("op_id"), "inputs")
    rows = [_Operator(*row) for row in forward.select(columns).iter_rows()]
    cuts = [row.cuts(largest) for row in rows if row.name in _CUTS and row.is_mask(largest)]
    found.cut = bool(cuts) and all(cuts) and not any(row.joins(largest) for row in rows)
    on_scores = {shapes for shapes in {row.shapes for row in rows} if _touches(shapes, largest)}
    touching = [row for row in rows if row.shapes in on_scores]
    makes = [place for place, row in enumerate(touching) if row.part == PARTS.index(SCORES)]
    for first, behind in pairwise((*makes, len(touching))):
        _look(found, touching[first:behind])
    return found


def _touches(shapes: str, size: Attention) -> bool:
    """Whether operators on these shapes read or make scores of this size."""
    sides = (size.scores, turned(size.scores))
    made = product(shapes)
    return any(matrices in sides for matrices in operands(shapes)) or bool(made and made.made in sides)


class _Operator(NamedTuple):
    """An operator that works on scores, or makes a mask."""

    op_id: int
    name: str
    part: int
    shapes: str
    dtypes: str | None
    inputs: str | None

    @property
    def tensors(self) -> list[tuple[int, ...]]:
        return list(tensor_shapes(self.shapes))

    def at(self, place: int) -> tuple[int, ...]:
        """The shape of an argument; empty for a number."""
        listed = _listed(self.shapes)
        shape = listed[place] if place < len(listed) else []
        return (
            tuple(shape) if isinstance(shape, list) and all(isinstance(size, int) for size in shape) else ()
        )

    def values(self) -> list[str]:
        """Its arguments as text; empty where they are tensors or were not recorded."""
        return _texts(self.inputs)

    def dtype(self, place: int) -> str:
        """The type of an argument."""
        types = _texts(self.dtypes)
        return types[place] if place < len(types) else ""

    def is_mask(self, size: Attention) -> bool:
        """Whether its first tensor is as large as one matrix of scores."""
        shape = self.at(0)
        return tuple(shape[-2:]) == tuple(size.scores[1:]) and prod(shape[:-2]) == 1

    def cuts(self, size: Attention) -> bool:
        """Whether it cuts the triangle of a causal mask of this size."""
        values = self.values()
        diagonal = values[1] if len(values) > 1 and values[1] else "0"
        return self.is_mask(size) and diagonal == _CUTS.get(self.name)

    def joins(self, size: Attention) -> bool:
        """Whether it makes one mask of two."""
        return self.name in _JOINS and self.is_mask(size) and len(self.at(1)) >= 2


def _texts(text: str | None) -> list[str]:
    return [str(value) for value in _listed(text)]


@lru_cache(maxsize=4096)
def _listed(text: str | None) -> list[Any]:
    """A recorded list, not to be changed; empty where the text is damaged."""
    try:
        listed = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return listed if isinstance(listed, list) else []


def _look(found: Seen, rows: list[_Operator]) -> None:
    """Reads one attention: the product that makes the scores, and all that touches them until the next."""
    normalised = next((at for at, row in enumerate(rows) if row.part == PARTS.index(SOFTMAX)), None)
    if normalised is None:
        return
    last = max(at for at, row in enumerate(rows) if row.part == PARTS.index(SOFTMAX))
    summed = next((at for at in range(last, len(rows)) if rows[at].part == PARTS.index(CONTEXT)), None)
    found.dtype = found.dtype or rows[0].dtype(1)
    _product(found, rows[0])
    for row in rows[1:normalised]:
        _before(found, row)
    for row in rows[last + 1 : summed]:
        _behind(found, row)
    for row in rows[summed + 1 :] if summed is not None else ():
        if row.part != PARTS.index(CONTEXT):
            found.readers.add(row.name)


def _product(found: Seen, row: _Operator) -> None:
    """A product that adds and scales, as baddbmm does."""
    values, tensors = row.values(), row.tensors
    if row.name != "aten::baddbmm" or len(values) < 5:
        return
    beta, alpha = values[3], values[4]
    found.alpha = alpha if alpha not in ("", "1", "1.0") else found.alpha
    if beta not in ("0", "0.0"):
        found.masks[ADDED] = tensors[0]
        found.mask_dtype = row.dtype(0)


def _before(found: Seen, row: _Operator) -> None:
    """An operator between the scores and the softmax."""
    place = _beside(found, row)
    beside = () if place is None else row.at(place)
    if row.name in _SCALES:
        if place is None:
            found.scaled = True
        else:
            found.masks[MULTIPLIED] = beside
    elif row.name in _ADDS and place is not None:
        found.masks[ADDED], found.mask_dtype = beside, row.dtype(place)
    elif row.name in _FILLS:
        found.masks[FILLED] = beside
        found.fill = values[2] if len(values := row.values()) > 2 else ""
    elif row.name == "aten::where":
        kept = prod(row.at(1)) == prod(found.attention.scores)
        found.masks[KEPT if kept else FILLED] = row.at(0)
    elif row.name.removeprefix("aten::").rstrip("_") in _ALTERS:
        found.alters.add(row.name)


def _beside(found: Seen, row: _Operator) -> int | None:
    """The place of the tensor beside the scores; None where there is only a number."""
    scores = prod(found.attention.scores)
    sizes = [prod(row.at(place)) if row.at(place) else 0 for place in range(2)]
    if min(sizes) <= 1:
        return None
    return 0 if sizes[1] == scores and sizes[0] != scores else 1


def _behind(found: Seen, row: _Operator) -> None:
    """An operator between the softmax and the product with the values."""
    if row.name in ("aten::native_dropout", "aten::_fused_dropout"):
        values = row.values()
        trained = len(values) < 3 or values[2] != "False"
        found.dropout = (_number(values[1]) if len(values) > 1 else "?") if trained else found.dropout
    elif row.name.startswith("aten::bernoulli"):
        found.dropout = found.dropout or "?"
    elif row.name in _WEIGHTS and _beside(found, row) is not None and not found.dropout:
        found.weighted = True


def _number(text: str) -> str:
    """A recorded number as a person would write it."""
    try:
        return f"{float(text):.6g}"
    except ValueError:
        return "?"
