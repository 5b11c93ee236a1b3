"""Attention written out: the operators that work on a matrix of scores, as a fused kernel never would.

Found by structure, not by name. A softmax over a tensor of [..., Tq, Tk] whose batch of matrices a batched
multiply also makes is the softmax of an attention; every operator with an operand of that size, either way
around, and every batched multiply that makes one, is a piece of it: QK^T, scale, mask, softmax, dropout, PV
and their gradients. Scores of one matrix (two dimensions) are not looked for: a classifier looks the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import prod

import numpy as np
import polars as pl

from foretrace.analyze.call_tree import Array
from foretrace.analyze.per_name import by_name
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

_MULTIPLIES, _NORMALISES, _DROPS = 1, 2, 4
Matrices = tuple[int, int, int]  # how many, rows, columns


def pieces(trace: Trace, op_ids: Array) -> Array:
    """For each of these operators its place in PARTS, or NO_PART; needs their shapes."""
    part = np.full(len(op_ids), NO_PART, np.uint8)
    ops = trace.ops
    rows = np.searchsorted(ops["span_id"].to_numpy(), op_ids)
    if not len(op_ids) or ops.is_empty() or ops["shapes"].null_count() == ops.height:
        return part
    shapes = ops["shapes"].gather(rows)
    kind = by_name(trace.spans["name"].gather(op_ids), _kinds)
    multiplied = _distinct(shapes.filter(pl.Series((kind & _MULTIPLIES) > 0)))
    normalised = _distinct(shapes.filter(pl.Series((kind & _NORMALISES) > 0)))
    scores = {each for text in normalised for each in operands(text)} & {
        made for text in multiplied if (made := product(text))
    }
    if not scores:
        return part
    codes = by_name(shapes, lambda texts: np.array([_touch(text, scores) for text in texts], np.uint8))
    multiply, normal, drop = ((kind & mark) > 0 for mark in (_MULTIPLIES, _NORMALISES, _DROPS))
    part[(codes & 1) > 0] = PARTS.index(BETWEEN)
    part[drop & ((codes & 1) > 0)] = PARTS.index(DROPOUT)
    part[normal & ((codes & 1) > 0)] = PARTS.index(SOFTMAX)
    part[multiply & ((codes & 1) > 0)] = PARTS.index(CONTEXT)
    part[multiply & ((codes & 2) > 0)] = PARTS.index(SCORES)
    return part


def _kinds(names: pl.Series) -> Array:
    kind = np.zeros(len(names), np.uint8)
    kind[names.str.contains(r"^aten::(?:bmm|baddbmm)").to_numpy()] |= _MULTIPLIES
    kind[names.str.contains(r"softmax").to_numpy()] |= _NORMALISES
    kind[names.str.contains(r"dropout|bernoulli").to_numpy()] |= _DROPS
    return kind


def _distinct(shapes: pl.Series) -> Iterable[str]:
    return shapes.unique().drop_nulls().cast(pl.String).to_list()


def _touch(shapes: str, scores: set[Matrices]) -> int:
    """1 where an operand is a matrix of scores, either way around; 2 where a batched multiply makes one."""
    held = any((n, a, b) in scores or (n, b, a) in scores for n, a, b in operands(shapes))
    made = product(shapes)
    return int(held) | 2 * (made is not None and (made in scores or (made[0], made[2], made[1]) in scores))


def operands(shapes: str) -> list[Matrices]:
    """The operands that are batches of matrices, from an operator's recorded shapes."""
    return [(prod(each[:-2]), each[-2], each[-1]) for each in _tensors(shapes) if len(each) >= 3]


def product(shapes: str) -> Matrices | None:
    """What a batched multiply of these operands makes; baddbmm's come after what it adds to."""
    tensors = [each for each in _tensors(shapes) if len(each) == 3]
    if len(tensors) < 2:
        return None
    a, b = tensors[-2:]
    return (a[0], a[1], b[2]) if a[0] == b[0] and a[2] == b[1] else None


def _tensors(shapes: str) -> list[list[int]]:
    """The shapes of the operator's tensors; lists of tensors and other arguments are left out."""
    try:
        listed = json.loads(shapes)
    except ValueError:
        return []
    if not isinstance(listed, list):
        return []
    return [each for each in listed if isinstance(each, list) and each and all(type(n) is int for n in each)]
