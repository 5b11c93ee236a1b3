"""What autocast would make of the sizes of activations: which blocks would be in half precision."""

from __future__ import annotations

import json
import re
from math import prod

import polars as pl

from foretrace.analyze.concepts.memory import batch_bytes, memory_replay, trained_parameters
from foretrace.analyze.concepts.memory.memory_replay import MemoryChange
from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.predict.costs import gemm
from foretrace.predict.costs.precision import ITEM_BYTES
from foretrace.sourced import JUDGEMENT, Factor, Share
from foretrace.trace import Trace

_HALF = ITEM_BYTES["bf16"] / ITEM_BYTES["fp32"]
_PRODUCT = re.compile(r"convolution|conv_depthwise|_attention_forward|_scaled_dot_product|_attention$")
_NORM = re.compile(r"native_layer_norm|native_group_norm|rms_norm")
_SOFTMAX = re.compile(r"^aten::_(?:safe_)?softmax$")
# Autocast computes these in fp32; what is added to a block's input, which is in fp32, is too.
_WIDE = re.compile(
    r"^aten::(?:_log_softmax|log_softmax|nll_loss.*|.*_loss.*|pow|exp|log|sum|prod|cumsum|rsqrt|reciprocal|norm"
    r"|linalg_vector_norm|softplus|add|add_|sub|embedding|index_select|index|cat|gather)$"
)
_ALLOCATES = re.compile(r"^aten::(?:empty|new_empty|resize|_resize)")
SOFTMAX = Factor(
    1.5,
    "the bytes of a softmax in fp32, kept under autocast: for itself, and in half for the product behind",
    JUDGEMENT,
)
COPIES = "bf16 copies of the parameters"
_LEAST_FP32 = Share(0.9, "the products that take fp32, where autocast is not on yet", JUDGEMENT)


def narrowed(trace: Trace) -> tuple[MemoryChange, MemoryChange, MemoryChange] | None:
    """The curve under autocast: as expected, with the least freed, and with the most; None where products are not fp32.

    Parameters stay in fp32, and the bf16 copies of those that products take are kept until the backward pass ends.
    """
    if not _products_in_fp32(trace):
        return None
    memory = memory_replay.find(trace)
    kinds = batch_bytes.category(trace).to_numpy()
    operators = _Operators(trace)
    point: dict[int, float] = {}
    least: dict[int, float] = {}
    most: dict[int, float] = {}
    for row in batch_bytes.growing(trace).tolist():
        if kinds[row] == "autograd":
            point[row], most[row] = _HALF, _HALF
            continue
        if kinds[row] != "activation":
            continue
        factors = operators.factors(memory.blocks["op_id"][row], int(memory.size_bytes[row]))
        if factors is not None:
            least[row], point[row], most[row] = factors
    copies = round(_HALF * int(trained_parameters.of_a_step(trace)["size_bytes"].sum()))
    says = "activations in bf16 under autocast"
    return (
        MemoryChange(says, factors=point, always_bytes={COPIES: copies}),
        MemoryChange(says, factors=least, always_bytes={COPIES: copies}),
        MemoryChange(says, factors=most, always_bytes={COPIES: 0}),
    )


class _Operators:
    """The operators that allocate, by what autocast makes of their results."""

    def __init__(self, trace: Trace) -> None:
        self._names = trace.spans["name"]
        self._parent = attribution.nesting(trace).parent
        arguments = trace.ops.select("span_id", pl.col("shapes", "dtypes").cast(pl.String)).drop_nulls()
        self._arguments = {op: (shapes, dtypes) for op, shapes, dtypes in arguments.iter_rows()}

    def factors(self, op: int | None, size_bytes: int) -> tuple[float, float, float] | None:
        """The size of a result under autocast: at most, as expected, at least; None where it is not of fp32."""
        op = self._working(op)
        if op is None:
            return None
        name, elements, fp32 = str(self._names[op]), *self._taken(op)
        if not fp32:
            return None
        if _is_product(name):
            return _HALF, _HALF, _HALF
        if size_bytes < ITEM_BYTES["fp32"] * elements:
            return None  # a mask, or a norm's mean and variance
        if _NORM.search(name):
            return 1.0, _HALF, _HALF
        if _SOFTMAX.search(name):
            return SOFTMAX, SOFTMAX, 1.0
        if _WIDE.search(name):
            return 1.0, 1.0, _HALF
        return (1.0 + _HALF) / 2, _HALF, _HALF

    def _working(self, op: int | None) -> int | None:
        """The operator, or the one around it where it only allocates."""
        while op is not None and _ALLOCATES.search(str(self._names[op])):
            above = int(self._parent[op])
            op = None if above == NOBODY else above
        return op

    def _taken(self, op: int) -> tuple[int, bool]:
        """How many elements the largest tensor has that an operator takes, and whether what it takes first is of fp32."""
        shapes, dtypes = self._arguments.get(op, ("", ""))
        try:
            pairs = list(zip(json.loads(shapes), json.loads(dtypes), strict=False))
            tensors = [prod(shape) for shape, dtype in pairs if dtype == "float" and shape]
            kinds = [dtype for shape, dtype in pairs if shape and dtype]
        except (ValueError, TypeError):
            return 0, False
        return max(tensors, default=0), bool(kinds) and kinds[0] == "float"


def _is_product(name: str) -> bool:
    return name in gemm.FIRST or bool(_PRODUCT.search(name))


def _products_in_fp32(trace: Trace) -> bool:
    """Whether nearly all products take fp32."""
    ops = trace.ops.select("dtypes", name=trace.spans["name"].gather(trace.ops["span_id"])).drop_nulls()
    counted = ops.group_by(pl.col("name").cast(pl.String), pl.col("dtypes").cast(pl.String)).len()
    products = counted.filter(pl.Series([_is_product(name) for name in counted["name"]], dtype=pl.Boolean))
    in_fp32 = products.filter(pl.col("dtypes").str.starts_with('["float"'))["len"].sum()
    return products.height > 0 and int(in_fp32) >= _LEAST_FP32 * int(products["len"].sum())
