"""Unfused attention: the operators that work on a matrix of attention scores, which a fused kernel never stores.

Found by structure, not by name. A multiply produces a batch of matrices [..., Tq, Tk], a softmax or an exponential is
applied to them, and the next multiply sums over Tk: those are attention scores. Every operator with an operand of that
size, transposed or not, and every multiply that produces one, is a piece of the attention: QK^T, scale, mask, softmax,
dropout, PV and their gradients. If other large products lie between (heads are mixed, or queries and keys are
normalised before they meet), no fused kernel computes the same, and nothing is reported.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import polars as pl

from foretrace.analyze.concepts.names.per_name import by_name
from foretrace.analyze.concepts.trees.attribution import parents
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.trace import Trace

SCORES, SOFTMAX, DROPOUT, CONTEXT, BETWEEN = (
    "scores (QK^T)",
    "softmax",
    "dropout",
    "context (PV)",
    "scale, mask and copies",
)
PARTS = (SCORES, SOFTMAX, DROPOUT, CONTEXT, BETWEEN)
NO_PART = 255

_BATCHED, _SINGLE, _OTHER_PRODUCT, _NORMALISES, _FORWARD, _DROPS = 1, 2, 4, 8, 16, 32
_ANY_PRODUCT = _BATCHED | _SINGLE | _OTHER_PRODUCT
# Products this many times smaller than the scores, such as a position bias, may lie between.
_SMALL = 4
_LONGEST_WALK = 8  # products


class Matrices(NamedTuple):
    """A batch of matrices."""

    batch: int
    rows: int
    columns: int


class Product(NamedTuple):
    """A multiply of two batches of matrices."""

    left: Matrices
    right: Matrices

    @property
    def made(self) -> Matrices:
        """What it makes."""
        return Matrices(self.left.batch, self.left.rows, self.right.columns)


def pieces(trace: Trace, op_ids: Array) -> Array:
    """For each of these operators its place in PARTS, or NO_PART; needs their shapes."""
    part = np.full(len(op_ids), NO_PART, np.uint8)
    ops = trace.ops
    if not len(op_ids) or ops.is_empty() or ops["shapes"].null_count() == ops.height:
        return part
    shapes = ops["shapes"].gather(np.searchsorted(ops["span_id"].to_numpy(), op_ids))
    kind = by_name(trace.spans["name"].gather(op_ids), _kinds)
    scores = _scores(trace, op_ids, kind)
    if not scores:
        return part
    codes = by_name(shapes, lambda texts: np.array([_touch(text, scores) for text in texts], np.uint8))
    held, made = (codes & 1) > 0, (codes & 2) > 0
    multiply = (kind & (_BATCHED | _SINGLE)) > 0
    part[held] = PARTS.index(BETWEEN)
    part[((kind & _DROPS) > 0) & held] = PARTS.index(DROPOUT)
    part[((kind & _NORMALISES) > 0) & held] = PARTS.index(SOFTMAX)
    part[multiply & held] = PARTS.index(CONTEXT)
    part[multiply & made] = PARTS.index(SCORES)
    return part


def _kinds(names: pl.Series) -> Array:
    kind = np.zeros(len(names), np.uint8)
    kind[names.str.contains(r"^aten::(?:bmm|baddbmm)").to_numpy()] |= _BATCHED
    kind[(names == "aten::mm").to_numpy()] |= _SINGLE
    kind[names.str.contains(r"^aten::_?(?:addmm|scaled_mm|\w*convolution$)").to_numpy()] |= _OTHER_PRODUCT
    kind[names.str.contains(r"softmax|^aten::exp_?$").to_numpy()] |= _NORMALISES
    kind[names.str.contains(r"softmax$|^aten::exp_?$").to_numpy()] |= _FORWARD
    kind[names.str.contains(r"dropout|bernoulli").to_numpy()] |= _DROPS
    return kind


def _scores(trace: Trace, op_ids: Array, kind: Array) -> set[Matrices]:
    """The sizes of matrices that one multiply makes, a softmax or exponential follows, and the next multiply sums up."""
    ids, first = np.unique(op_ids, return_index=True)
    kind = kind[first]
    chosen = (kind & (_ANY_PRODUCT | _FORWARD)) > 0
    ids, kind = ids[chosen], kind[chosen]
    ids, kind = _by_thread(trace, ids, kind)
    rows = np.searchsorted(trace.ops["span_id"].to_numpy(), ids)
    shapes, inputs = (
        trace.ops[column].gather(rows).cast(pl.String).to_list() for column in ("shapes", "inputs")
    )
    linear = _under_linear(trace, ids, kind)
    products = np.flatnonzero((kind & _ANY_PRODUCT) > 0)
    scores: set[Matrices] = set()
    tried: set[tuple[object, ...]] = set()
    for place in np.flatnonzero((kind & _FORWARD) > 0):
        at = int(np.searchsorted(products, place))
        before = products[max(at - _LONGEST_WALK, 0) : at][::-1].tolist()
        after = products[at : at + _LONGEST_WALK].tolist()
        around = tuple(
            (shapes[product_at], int(kind[product_at]), bool(linear[product_at]))
            for product_at in (*before, *after)
        )
        key = (shapes[place], inputs[place], len(before), around)
        if key not in tried:
            tried.add(key)
            scores |= _attention(shapes[place], inputs[place], around[: len(before)], around[len(before) :])
    return scores


Around = tuple[tuple[str | None, int, bool], ...]


def _attention(shapes: str | None, inputs: str | None, before: Around, after: Around) -> set[Matrices]:
    """The scores, where the products before and behind a softmax are those of an attention."""
    for scores in operands(shapes or ""):
        rows_last = _normalised_along(shapes or "", inputs) != -2
        if _maker(scores, before) and _consumer(scores, after, rows_last):
            return {scores}
    return set()


def _maker(scores: Matrices, before: Around) -> bool:
    for shapes, kind, linear in before:
        multiplied = product(shapes or "")
        if kind in (_BATCHED, _SINGLE) and multiplied and multiplied.made == scores:
            return not linear
        if multiplied is None or _SMALL * prod(multiplied.made) > prod(scores):
            return False
    return False


def _consumer(scores: Matrices, after: Around, last: bool) -> bool:
    """Whether the next product of this kind sums over what was normalised; projections of values may come before it."""
    turned = Matrices(scores.batch, scores.columns, scores.rows)
    if not last:
        scores, turned = turned, scores
    wanted = (_BATCHED,) if scores.batch > 1 else (_BATCHED, _SINGLE)
    for shapes, kind, linear in after:
        multiplied = product(shapes or "") if kind in wanted and not linear else None
        if multiplied:
            return multiplied.left == scores or multiplied.right == turned
    return False


def _normalised_along(shapes: str, inputs: str | None) -> int:
    """The dimension of a softmax, counted from the end; -1 where it was not recorded."""
    try:
        dimension = int(json.loads(inputs or "")[1])
        dimensions = len(tensor_shapes(shapes)[0])
    except (ValueError, TypeError, LookupError):
        return -1
    return dimension if dimension < 0 else dimension - dimensions


def _by_thread(trace: Trace, ids: Array, kind: Array) -> tuple[Array, Array]:
    """In order of threads, and of time within each."""
    order = np.argsort(trace.spans["track_id"].gather(ids).to_physical().to_numpy(), kind="stable")
    return ids[order], kind[order]


def _under_linear(trace: Trace, ids: Array, kind: Array) -> Array:
    """Whether aten::linear called this product: what multiplies by a weight is no piece of attention."""
    parent = parents(trace)
    single = (kind & _SINGLE) > 0
    at = np.where(single, ids.astype(np.int64), NOBODY)
    under_linear = np.zeros(len(ids), bool)
    for _ in range(3):  # mm under matmul under linear
        at = np.where(at != NOBODY, parent[at], NOBODY)
        known = np.flatnonzero(at != NOBODY)
        under_linear[known] |= (
            trace.spans["name"].gather(at[known]).cast(pl.String) == "aten::linear"
        ).to_numpy()
    return under_linear


def _touch(shapes: str, scores: set[Matrices]) -> int:
    """1 where an operand is a matrix of scores, either way around; 2 where a multiply makes one."""
    held = any(each in scores or (each[0], each[2], each[1]) in scores for each in operands(shapes))
    made = made.made if (made := product(shapes)) else None
    return int(held) | 2 * (made is not None and (made in scores or (made[0], made[2], made[1]) in scores))


@lru_cache(maxsize=16384)
def operands(shapes: str) -> tuple[Matrices, ...]:
    """The operands that are matrices or batches of them, from an operator's recorded shapes."""
    return tuple(
        Matrices(prod(each[:-2]), each[-2], each[-1]) for each in tensor_shapes(shapes) if len(each) >= 2
    )


@lru_cache(maxsize=16384)
def product(shapes: str) -> Product | None:
    """What a multiply of these operands multiplies; baddbmm's come after what it adds to."""
    tensors = [each for each in tensor_shapes(shapes) if len(each) in (2, 3)]
    if len(tensors) < 2 or len(tensors[-2]) != len(tensors[-1]):
        return None
    left, right = (Matrices(prod(each[:-2]), each[-2], each[-1]) for each in tensors[-2:])
    return Product(left, right) if left.batch == right.batch and left.columns == right.rows else None
