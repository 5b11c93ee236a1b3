"""The parameters that a step trains: autograd adds up one gradient for each, and records its shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.names.named_spans import ids_like, operator_rows
from foretrace.analyze.concepts.names.per_name import by_name
from foretrace.trace import Trace, once_per_trace

ACCUMULATES = r"^torch::autograd::AccumulateGrad$"
MOST_ELEMENTS = 1 << 48  # more is no size of a tensor
ITEM_BYTES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2}


@once_per_trace
def gradients(trace: Trace) -> pl.DataFrame:
    """Every gradient that a backward pass adds up: `start_ns`, `step`, `elements`, `size_bytes`; empty without shapes."""
    ids = ids_like(trace, "op", ACCUMULATES)
    rows = operator_rows(trace, ids)
    spans = trace.spans.select("start_ns", "step")[ids[rows >= 0]]
    ops = trace.ops.select("shapes", "dtypes")[rows[rows >= 0]]
    elements = by_name(ops["shapes"], lambda texts: _each(_elements, texts))
    item = by_name(ops["dtypes"], lambda texts: _each(_item_bytes, texts))
    known = ops["shapes"].is_not_null() & ops["dtypes"].is_not_null() & pl.Series(elements != 0)
    return spans.with_columns(
        elements=pl.Series(elements, dtype=pl.Int64), size_bytes=pl.Series(elements * item, dtype=pl.Int64)
    ).filter(known)


def of_a_step(trace: Trace) -> pl.DataFrame:
    """The gradients of the step that adds up most elements; with several passes a step, a gradient may be listed twice."""
    every = gradients(trace)
    if every.is_empty():
        return every
    steps = every.group_by("step").agg(pl.col("elements").sum()).sort("elements", descending=True)
    return every.filter(pl.col("step").eq_missing(steps["step"][0]))


def _each(told: Callable[[str], int], texts: pl.Series) -> NDArray[np.int64]:
    return np.fromiter(map(told, texts), np.int64, len(texts))


def _elements(shapes: str) -> int:
    try:
        listed = json.loads(shapes)
        elements = prod(int(extent) for extent in listed[0]) if listed and isinstance(listed[0], list) else 0
        return elements if abs(elements) < MOST_ELEMENTS else 0
    except (ValueError, TypeError):
        return 0


def _item_bytes(dtypes: str) -> int:
    try:
        listed = json.loads(dtypes)
    except ValueError:
        listed = []
    return ITEM_BYTES.get(str(listed[0]), 4) if isinstance(listed, list) and listed else 4
