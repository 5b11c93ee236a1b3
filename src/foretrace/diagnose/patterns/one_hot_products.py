"""One-hot tensors that a matrix product reads: a lookup of rows, written as a product with zeros.

Not a rule itself; `redundant-copies` looks for them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod

import numpy as np
import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns import copy_readers
from foretrace.hardware import Device
from foretrace.predict.costs import gemm, streaming
from foretrace.predict.edits import Edit

_CASTS = ("aten::to", "aten::_to_copy", "aten::type_as")
_ITEM_BYTES = 4  # of what is looked up, at most


@dataclass(frozen=True)
class Lookup:
    """A one-hot tensor, the operators that make it, and the product that reads it."""

    made_by: tuple[int, ...]
    product: int
    rows: int
    classes: int


def lookups(case: Case) -> list[Lookup]:
    """Every one-hot tensor that is multiplied."""
    names = case.names
    mine = case.trace.ops.filter(names.gather(case.trace.ops["span_id"]) == "aten::one_hot")
    asked = mine.select("span_id", pl.col("shapes").cast(pl.String), pl.col("inputs").cast(pl.String))
    return [found for row in asked.iter_rows() if (found := _lookup(case, *row))]


def _lookup(case: Case, op: int, shapes: str | None, inputs: str | None) -> Lookup | None:
    try:
        given = [int(each) for each in json.loads(shapes or "")[0]]
        classes = int(json.loads(inputs or "")[1])
    except (ValueError, TypeError, LookupError):
        return None
    if classes <= 0:
        return None
    made = [op]
    lies = copy_readers.ordered((*given, classes))
    found = copy_readers.reader(case, op, lies, lies)
    if found and found.name in _CASTS:
        made.append(found.op)
        found = copy_readers.reader(case, found.op, lies, lies)
    if found is None or not copy_readers.is_product(found):
        return None
    return Lookup(tuple(made), found.op, prod(given), classes)


def tasks(case: Case, found: list[Lookup]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tasks that make one-hot tensors, and the products with them, forward and backward, with `moved`: items."""
    making = {op for each in found for op in each.made_by}
    reading = {each.product: each for each in found}
    outer = [None if op is None else case.callers(op)[-1] for op in case.tasks["op_id"]]
    made = case.tasks.filter(pl.Series([op in making for op in outer], dtype=pl.Boolean))
    kernels = case.products
    sizes = [gemm.size(op or "", shapes) for op, shapes in kernels.select("op", "shapes").iter_rows()]
    tall = {(each.classes, each.rows) for each in found}  # as the gradient of the table has it
    moved: list[int | None] = []
    for op, size in zip(kernels["op_id"], sizes, strict=True):
        forward = size is not None and op is not None and case.callers(op)[-1] in reading
        if size is not None and forward:
            moved.append(2 * size.m * size.n)
        elif size is not None and (size.m, size.k) in tall:
            moved.append(size.m * size.n + 2 * size.k * size.n)
        else:
            moved.append(None)
    multiplied = kernels.with_columns(moved=pl.Series(moved, dtype=pl.Int64)).drop_nulls("moved")
    return made, multiplied


def edit(
    case: Case, device: Device, found: list[Lookup], made: pl.DataFrame, multiplied: pl.DataFrame
) -> Edit:
    """The rows looked up: read and written once."""
    rate = device.memory_bandwidth_bytes * streaming.BANDWIDTH_SHARE / 1e9
    new = {
        task: min(dur, streaming.START_NS + round(moved * _ITEM_BYTES / rate))
        for task, dur, moved in multiplied.select("task", "dur_ns", "moved").iter_rows()
    }
    host = case.during(case.trace.spans[sorted({op for each in found for op in each.made_by})])
    gone = made["task"].to_numpy().astype(np.int64)
    return Edit(removed_host=host, removed_tasks=gone, durations_ns=new, modelled=frozenset(new))
