"""The parameters that a step trains: autograd adds up one gradient for each, and records its shape."""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod

import polars as pl

from foretrace.analyze.concepts.device.device_time import names_like
from foretrace.trace import Trace, once_per_trace

ACCUMULATES = r"^torch::autograd::AccumulateGrad$"
ITEM_BYTES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2}


@once_per_trace
def gradients(trace: Trace) -> pl.DataFrame:
    """Every gradient that a backward pass adds up: `start_ns`, `step`, `elements`, `size_bytes`; empty without shapes."""
    spans = trace.spans.filter(pl.col("kind") == "op").select("id", "name", "start_ns", "step")
    spans = spans.filter(pl.col("name").is_in(names_like(spans, ACCUMULATES)))
    ops = trace.ops.select(pl.col("span_id").alias("id"), pl.col("shapes", "dtypes").cast(pl.String))
    rows = []
    for start, step, shapes, dtypes in (
        spans.join(ops, on="id", maintain_order="left")
        .drop_nulls(("shapes", "dtypes"))
        .select("start_ns", "step", "shapes", "dtypes")
        .iter_rows()
    ):
        elements = _elements(shapes)
        if elements:
            rows.append((start, step, elements, elements * _item_bytes(dtypes)))
    schema = {"start_ns": pl.Int64, "step": pl.Int32, "elements": pl.Int64, "size_bytes": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def of_a_step(trace: Trace) -> pl.DataFrame:
    """The gradients of the step that adds up most elements; with several passes a step, a gradient may be listed twice."""
    every = gradients(trace)
    if every.is_empty():
        return every
    steps = every.group_by("step").agg(pl.col("elements").sum()).sort("elements", descending=True)
    return every.filter(pl.col("step").eq_missing(steps["step"][0]))


@lru_cache(maxsize=16384)
def _elements(shapes: str) -> int:
    try:
        listed = json.loads(shapes)
        return prod(int(extent) for extent in listed[0]) if listed and isinstance(listed[0], list) else 0
    except (ValueError, TypeError):
        return 0


@lru_cache(maxsize=1024)
def _item_bytes(dtypes: str) -> int:
    try:
        listed = json.loads(dtypes)
    except ValueError:
        listed = []
    return ITEM_BYTES.get(str(listed[0]), 4) if isinstance(listed, list) and listed else 4
