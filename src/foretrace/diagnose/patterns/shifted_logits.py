"""Copies of logits without the few rows that have no label, made for a loss."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import polars as pl

from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.patterns import copy_readers
from foretrace.diagnose.patterns.copy_readers import Layout, Shape
from foretrace.diagnose.patterns.device_copies import SAME_TYPE, device_copies

_COPYING = ("aten::contiguous", "aten::clone", "aten::reshape", "aten::flatten")
# Losses that leave out rows with a label to ignore, and what they call.
_LOSSES = ("aten::cross_entropy_loss", "aten::log_softmax", "aten::nll_loss", "aten::nll_loss_nd")
_IN_LOSSES = r"softmax|nll_loss|cross_entropy"
_SLICE_BACKWARD = "SliceBackward"


@dataclass(frozen=True)
class ShiftedCopy:
    """A copy of most rows for a loss, with its shape and that of all rows."""

    op: int
    task: int
    shape: Shape
    whole: Shape

    @property
    def flat(self) -> Shape:
        """Its rows one below the other, as a loss is given them."""
        return prod(self.shape[:-1]), self.shape[-1]


def shifted_copies(case: Case, *, left_out: float) -> list[ShiftedCopy]:
    """Copies without some rows, at most `left_out` of all, that a loss reads first.

    It could have been given a label to ignore for these rows.
    """
    copies = device_copies(case).where(SAME_TYPE).rows
    shifted = []
    for op, task, shapes, strides in copies.select("op_id", "task", "shapes", "strides").iter_rows():
        outermost = case.callers(op)[-1]
        if case.name(outermost) not in _COPYING:
            continue
        layouts = copy_readers.tensors(shapes, strides)
        whole = _whole(layouts[1], left_out) if len(layouts) > 1 else None
        if whole is not None and _read_by_loss(case, outermost, layouts[1].shape):
            shifted.append(ShiftedCopy(op, task, layouts[1].shape, whole))
    return shifted


def _whole(part: Layout, left_out: float) -> Shape | None:
    """The shape of the tensor that this is most of: whole rows, all but a few of each text's."""
    if len(part.shape) != 3 or part.strides[1:] != (part.shape[2], 1) or part.strides[0] % part.shape[2]:
        return None
    rows = part.strides[0] // part.shape[2]
    return (part.shape[0], rows, part.shape[2]) if 0 < rows - part.shape[1] <= left_out * rows else None


def _read_by_loss(case: Case, copying: int, shape: Shape) -> bool:
    """Whether what computes first with as many rows is a loss."""
    flat = (prod(shape[:-1]), shape[-1])
    for call in copy_readers.following(case, copying):
        given = tensor_shapes(call.shapes or "")
        if given and given[0] in (flat, shape) and not copy_readers.is_view(call.name):
            return call.name in _LOSSES
    return False


def copying(case: Case, shifted: list[ShiftedCopy]) -> DeviceWork:
    """The copies, and what autograd does to give all rows a gradient: zeros, and a copy into most of them."""
    shapes = {shape for copy in shifted for shape in (copy.shape, copy.whole)}
    work = case.device_work().with_arguments()
    backward = [
        op is not None
        and next(iter(tensor_shapes(given or "")), ()) in shapes
        and any(_SLICE_BACKWARD in case.name(caller) for caller in case.callers(op))
        for op, given in work.rows.select("op_id", "shapes").iter_rows()
    ]
    return work.where(
        pl.Series(backward, dtype=pl.Boolean) | pl.col("task").is_in([copy.task for copy in shifted])
    )


def longer_losses(case: Case, shifted: list[ShiftedCopy]) -> dict[int, float]:
    """The work of losses that would compute all rows, with how many times as many those are."""
    longer = {copy.flat: copy.whole[1] / copy.shape[1] for copy in shifted}
    work = case.device_work().with_arguments().rows
    losses = work.filter(case.op_names(work["op_id"]).str.contains(_IN_LOSSES).fill_null(value=False))
    factors = {
        task: [longer[shape] for shape in tensor_shapes(shapes or "") if shape in longer]
        for task, shapes in losses.select("task", "shapes").iter_rows()
    }
    return {task: max(of_task) for task, of_task in factors.items() if of_task}
