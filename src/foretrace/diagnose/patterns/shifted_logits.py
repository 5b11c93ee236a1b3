"""Rows of which a loss leaves out one or two, copied without them: of logits, those that have no label.

Not a rule itself; `redundant-copies` looks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import polars as pl

from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns import copy_readers
from foretrace.diagnose.patterns.copy_readers import Lies, Shape
from foretrace.diagnose.removal import host_time
from foretrace.predict.edits import Edit

_ASKED = ("aten::contiguous", "aten::clone", "aten::reshape", "aten::flatten")
# Losses that leave out rows with a label to ignore, and what they call.
_LOSSES = ("aten::cross_entropy_loss", "aten::log_softmax", "aten::nll_loss", "aten::nll_loss_nd")
_OF_LOSS = r"softmax|nll_loss|cross_entropy"
_MOST_LEFT_OUT = 0.1  # of the rows: the loss then computes these as well
_SLICED = "SliceBackward"


@dataclass(frozen=True)
class Shifted:
    """Copies of rows for a loss, with their shape and that of all rows."""

    op: int
    task: int
    shape: Shape
    whole: Shape


def shifted(case: Case, copies: pl.DataFrame) -> list[Shifted]:
    """Copies without some rows that only a loss reads, which could have been given a label to ignore for them."""
    names = case.trace.spans["name"]
    found = []
    for op, task, shapes, strides in copies.select("op_id", "task", "shapes", "strides").iter_rows():
        outermost = case.callers(op)[-1]
        if str(names[outermost]) not in _ASKED:
            continue
        lying = copy_readers.tensors(shapes, strides)
        whole = _whole(lying[1]) if len(lying) > 1 else None
        if whole is not None and _read_by_loss(case, outermost, lying[1].shape):
            found.append(Shifted(op, task, lying[1].shape, whole))
    return found


def _whole(part: Lies) -> Shape | None:
    """The shape of the tensor that this is most of: whole rows, all but a few of each text's."""
    if len(part.shape) != 3 or part.strides[1:] != (part.shape[2], 1) or part.strides[0] % part.shape[2]:
        return None
    rows = part.strides[0] // part.shape[2]
    return (part.shape[0], rows, part.shape[2]) if 0 < rows - part.shape[1] <= _MOST_LEFT_OUT * rows else None


def _read_by_loss(case: Case, asked: int, shape: Shape) -> bool:
    """Whether what computes first with as many rows is a loss."""
    flat = (prod(shape[:-1]), shape[-1])
    for call in copy_readers.behind(case, asked):
        given = tensor_shapes(call.shapes or "")
        if given and given[0] in (flat, shape) and not copy_readers.is_view(call.name):
            return call.name in _LOSSES
    return False


def tasks(case: Case, found: list[Shifted]) -> pl.DataFrame:
    """The copies, and what autograd does to give all rows a gradient: zeros, and a copy into most of them."""
    shapes = {each.shape for each in found} | {each.whole for each in found}
    work = _with_shapes(case)
    names = case.names
    sliced = [
        op is not None and first in shapes and any(_SLICED in names[each] for each in case.callers(op))
        for op, first in zip(work["op_id"], (_first(each) for each in work["shapes"]), strict=True)
    ]
    mine = pl.Series(sliced, dtype=pl.Boolean) | work["task"].is_in([each.task for each in found])
    return work.filter(mine)


def edit(case: Case, found: list[Shifted], mine: pl.DataFrame) -> Edit:
    """The step without them, whose loss computes all rows."""
    longer = {(prod(each.shape[:-1]), each.shape[-1]): each.whole[1] / each.shape[1] for each in found}
    work = _with_shapes(case)
    op = case.trace.spans["name"].gather(work["op_id"]).cast(pl.String)
    loss = work.filter(op.str.contains(_OF_LOSS).fill_null(value=False))
    stretched = {
        task: max(longer[each] for each in tensor_shapes(shapes or "") if each in longer)
        for task, shapes in loss.select("task", "shapes").iter_rows()
        if any(each in longer for each in tensor_shapes(shapes or ""))
    }
    host = host_time(case, mine["op_id"].drop_nulls())
    return Edit(removed_host=host, removed_tasks=mine["task"].to_numpy(), stretched=stretched)


def _with_shapes(case: Case) -> pl.DataFrame:
    told = case.trace.ops.select(pl.col("span_id").alias("op_id"), pl.col("shapes").cast(pl.String))
    return case.tasks.join(told, on="op_id", how="left", maintain_order="left")


def _first(shapes: str | None) -> Shape:
    return next(iter(tensor_shapes(shapes or "")), ())
