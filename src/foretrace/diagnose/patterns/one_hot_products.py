"""One-hot tensors that a matrix product reads: a lookup of rows, written as a product with zeros."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.patterns import copy_readers
from foretrace.predict.costs import gemm

_CASTS = ("aten::to", "aten::_to_copy", "aten::type_as")


@dataclass(frozen=True)
class Lookup:
    """A one-hot tensor, the operators that make it, and the product that reads it."""

    made_by: tuple[int, ...]
    product: int
    rows: int
    classes: int


def lookups(case: Case) -> list[Lookup]:
    """Every one-hot tensor that is multiplied."""
    calls = case.calls_named("aten::one_hot").select("op_id", "shapes", "inputs").iter_rows()
    return [lookup for call in calls if (lookup := _lookup(case, *call))]


def _lookup(case: Case, op: int, shapes: str | None, inputs: str | None) -> Lookup | None:
    try:
        ids = [int(extent) for extent in json.loads(shapes or "")[0]]
        classes = int(json.loads(inputs or "")[1])
    except (ValueError, TypeError, LookupError):
        return None
    if classes <= 0:
        return None
    made_by = [op]
    one_hot = copy_readers.ordered((*ids, classes))
    reader = copy_readers.reader(case, op, one_hot, one_hot)
    if reader and reader.name in _CASTS:
        made_by.append(reader.op)
        reader = copy_readers.reader(case, reader.op, one_hot, one_hot)
    if reader is None or not copy_readers.is_product(reader):
        return None
    return Lookup(tuple(made_by), reader.op, prod(ids), classes)


def making(case: Case, listed: list[Lookup]) -> DeviceWork:
    """The work that makes one-hot tensors."""
    made_by = {op for lookup in listed for op in lookup.made_by}
    within = [op is not None and case.callers(op)[-1] in made_by for op in case.tasks["op_id"]]
    return DeviceWork(case, case.tasks.filter(pl.Series(within, dtype=pl.Boolean)))


def multiplying(case: Case, listed: list[Lookup]) -> DeviceWork:
    """The products with one-hot tensors, forward and backward; `moved_count`: elements that a lookup would move."""
    readers = {lookup.product for lookup in listed}
    gradients = {(lookup.classes, lookup.rows) for lookup in listed}  # of the table: as it is multiplied
    moved_count: list[int | None] = []
    for op_id, op, shapes in case.products.select("op_id", "op", "shapes").iter_rows():
        size = gemm.size(op or "", shapes)
        if size is not None and op_id is not None and case.callers(op_id)[-1] in readers:
            moved_count.append(2 * size.m * size.n)
        elif size is not None and (size.m, size.k) in gradients:
            moved_count.append(size.m * size.n + 2 * size.k * size.n)
        else:
            moved_count.append(None)
    products = case.products.with_columns(moved_count=pl.Series(moved_count, dtype=pl.Int64))
    return DeviceWork(case, products.drop_nulls("moved_count"))
