"""What autocast would make of the sizes of activations: which blocks would be in half precision."""

from __future__ import annotations

import json
import re
from math import prod

import numpy as np
import polars as pl

from foretrace.analyze.concepts.memory import batch_bytes, memory_replay, trained_parameters
from foretrace.analyze.concepts.memory.memory_replay import Factors, MemoryChange, Times, factors
from foretrace.analyze.concepts.names.named_spans import ids_where, operator_rows
from foretrace.analyze.concepts.names.per_name import by_name, distinct_rows
from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.predict.costs import gemm
from foretrace.predict.costs.precision import ITEM_BYTES
from foretrace.schema import KINDS
from foretrace.sourced import JUDGEMENT, Factor, Share
from foretrace.trace import Trace, once_per_trace

_HALF = ITEM_BYTES["bf16"] / ITEM_BYTES["fp32"]
_PRODUCT = re.compile(r"convolution|conv_depthwise|_attention_forward|_scaled_dot_product|_attention$")
_NORM = re.compile(r"native_layer_norm|native_group_norm|rms_norm")
_SOFTMAX = re.compile(r"^aten::_(?:safe_)?softmax$")
# Autocast computes these in fp32; what is added to a block's input, which is in fp32, is too.
_WIDE = re.compile(
    r"^aten::(?:_log_softmax|log_softmax|nll_loss.*|.*_loss.*|pow|exp|log|sum|prod|cumsum|rsqrt|reciprocal|norm"
    r"|linalg_vector_norm|softplus|add|add_|sub|embedding|index_select|index|cat|gather)$"
)
_ALLOCATES = r"^aten::(?:empty|new_empty|resize|_resize)"
SOFTMAX = Factor(
    1.5,
    "the bytes of a softmax in fp32, kept under autocast: for itself, and in half for the product behind",
    JUDGEMENT,
)
_ENDS = ("least", "point", "most")  # of what is freed
COPIES = "bf16 copies of the parameters"
_LEAST_FP32 = Share(0.9, "the products that take fp32, where autocast is not on yet", JUDGEMENT)


@once_per_trace
def narrowed(trace: Trace) -> tuple[MemoryChange, MemoryChange, MemoryChange] | None:
    """The curve under autocast: as expected, with the least freed, and with the most; None where products are not fp32.

    Parameters stay in fp32, and the bf16 copies of those that products take are kept until the backward pass ends.
    """
    if not _products_in_fp32(trace):
        return None
    memory = memory_replay.find(trace)
    rows = batch_bytes.growing(trace)
    kinds = batch_bytes.category(trace).gather(rows)
    backward = factors(rows[(kinds == "autograd").to_numpy()], _HALF)
    rows = rows[(kinds == "activation").to_numpy()]
    ops = memory.blocks["op_id"].gather(rows).cast(pl.Int64).fill_null(NOBODY).to_numpy()
    least, point, most = _sizes(trace, rows, ops, memory.size_bytes[rows])
    copies = round(_HALF * int(trained_parameters.of_a_step(trace)["size_bytes"].sum()))
    says = "activations in bf16 under autocast"
    return (
        MemoryChange(says, factors=backward.but(point), always_bytes={COPIES: copies}),
        MemoryChange(says, factors=least, always_bytes={COPIES: copies}),
        MemoryChange(says, factors=backward.but(most), always_bytes={COPIES: 0}),
    )


def _sizes(trace: Trace, rows: Times, ops: Times, size_bytes: Times) -> tuple[Factors, Factors, Factors]:
    """What autocast makes of results, by the operators that allocated them: at most, as expected, and at least."""
    ops = _working(trace, ops)
    places = operator_rows(trace, ops)
    taken = trace.ops.select(pl.col("shapes").is_not_null() & pl.col("dtypes").is_not_null()).to_series()
    known = np.append(taken.to_numpy(), False)[places]
    calls = trace.ops.select("shapes", "dtypes")[places[known]]
    calls = calls.with_columns(name=trace.spans["name"].gather(ops[known]))
    kinds, kind = distinct_rows(calls.select("name", "shapes", "dtypes"))
    told = [_told(*each) for each in kinds.cast(pl.String).iter_rows()]
    smallest = np.array([size for size, _ in told], np.int64)[kind]
    fits = size_bytes[known] >= smallest
    rows, kind = rows[known][fits], kind[fits]
    made = [np.array(end, np.float64) for end in zip(*(each for _, each in told), strict=True)]
    least, point, most = (Factors(rows, end[kind]) for end in made) if made else (Factors(),) * len(_ENDS)
    return least, point, most


def _working(trace: Trace, ops: Times) -> Times:
    """The operators, or those around them where they only allocate; NOBODY where there are none."""
    parent, names, ops = attribution.parents(trace), trace.spans["name"], ops.copy()
    rows = np.flatnonzero(ops != NOBODY)
    while len(rows):
        only = by_name(names.gather(ops[rows]), lambda texts: texts.str.contains(_ALLOCATES).to_numpy())
        rows = rows[only]
        ops[rows] = parent[ops[rows]]
        rows = rows[ops[rows] != NOBODY]
    return ops


def _told(name: str, shapes: str, dtypes: str) -> tuple[int, tuple[float, float, float]]:
    """How large a result of an operator is at least, and its size under autocast: at most, as expected, at least."""
    elements, fp32 = _taken(shapes, dtypes)
    if not fp32:
        return np.iinfo(np.int64).max, (1.0, 1.0, 1.0)
    if _is_product(name):
        return 0, (_HALF, _HALF, _HALF)
    smallest = ITEM_BYTES["fp32"] * elements  # below, a mask, or a norm's mean and variance
    if _NORM.search(name):
        return smallest, (1.0, _HALF, _HALF)
    if _SOFTMAX.search(name):
        return smallest, (SOFTMAX, SOFTMAX, 1.0)
    if _WIDE.search(name):
        return smallest, (1.0, 1.0, _HALF)
    return smallest, ((1.0 + _HALF) / 2, _HALF, _HALF)


def _taken(shapes: str, dtypes: str) -> tuple[int, bool]:
    """How many elements the largest tensor has that an operator takes, and whether what it takes first is of fp32."""
    try:
        pairs = list(zip(json.loads(shapes), json.loads(dtypes), strict=False))
        tensors = [prod(shape) for shape, dtype in pairs if dtype == "float" and shape]
        kinds = [dtype for shape, dtype in pairs if shape and dtype]
        return min(max(tensors, default=0), trained_parameters.MOST_ELEMENTS), bool(kinds) and kinds[
            0
        ] == "float"
    except (ValueError, TypeError):
        return 0, False


def _is_product(name: str) -> bool:
    return name in gemm.FIRST or bool(_PRODUCT.search(name))


def _products_in_fp32(trace: Trace) -> bool:
    """Whether nearly all products take fp32."""
    products = ids_where(trace, KINDS, lambda names: np.array([_is_product(name) for name in names], bool))
    rows = operator_rows(trace, products)
    dtypes = trace.ops["dtypes"].gather(rows[rows >= 0]).drop_nulls()
    in_fp32 = by_name(dtypes, lambda texts: texts.str.starts_with('["float"').to_numpy())
    return len(dtypes) > 0 and int(in_fp32.sum()) >= _LEAST_FP32 * len(dtypes)
