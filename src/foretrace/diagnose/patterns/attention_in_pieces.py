"""Attention in pieces: operators that compute attention one after the other, with its matrix of scores in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

import polars as pl

from foretrace.analyze.concepts.device.attention_pieces import (
    PARTS,
    SCORES,
    SOFTMAX,
    Matrices,
    operands,
    pieces,
    product,
)
from foretrace.analyze.concepts.device.phases import BACKWARD, PHASES
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.hardware import Device
from foretrace.predict.costs import attention
from foretrace.predict.costs.attention import Mask
from foretrace.sourced import Factor

SPARE_PRODUCTS = Factor(
    1.5, "the softmaxes, as many products make the scores", "a recording may cut a softmax off"
)
_MAKES_MASK = (
    "aten::tril", "aten::triu", "aten::fill_", "aten::bitwise_not", "aten::logical_not", "aten::eq", "aten::lt",
    "aten::le", "aten::gt", "aten::ge", "aten::logical_and", "aten::bitwise_and", "aten::masked_fill",
    "aten::masked_fill_",
)  # fmt: skip
_CUTS_TRIANGLE = ("aten::tril", "aten::triu")
_SCALES = ("aten::mul", "aten::div")  # of queries or keys by a number: the fused kernel does that
_HALF = ("c10::Half", "c10::BFloat16")


@dataclass
class Attention:
    """All attention with scores of one size."""

    scores: Matrices
    width: int
    half: bool
    mask: Mask = Mask.NONE
    mask_known: bool = True
    products: dict[int, bool] = field(default_factory=dict)  # tasks that make scores: whether backward

    def fused_ns(self, device: Device, *, backward: bool, mask: Mask) -> int:
        """How long a fused kernel takes."""
        size = attention.Size(*self.scores, self.width, self.half)
        return attention.time_ns(device, size, backward=backward, mask=mask)


def device_work(case: Case) -> DeviceWork:
    """Operators' device work: `op`, its arguments, whether it is `backward`, and its `part` in attention."""
    rows = case.tasks_with("phase").drop_nulls("op_id")
    rows = rows.with_columns(backward=pl.col("phase") == PHASES.index(BACKWARD)).drop("phase")
    rows = case.with_arguments(rows, "shapes", "dtypes")
    part = pl.Series(pieces(case.trace, rows["op_id"].to_numpy()))
    return DeviceWork(case, rows.with_columns(op=case.op_names(rows["op_id"]), part=part))


def by_size(parts: DeviceWork, work: DeviceWork) -> list[Attention]:
    """The attention that these parts compute, with heads no wider than flash kernels take; `work` tells the masks."""
    sizes: dict[Matrices, Attention] = {}
    rows = parts.rows.filter(pl.col("part") == PARTS.index(SCORES)).sort("dur_ns")
    longest = rows.group_by("op_id", maintain_order=True).last()
    for shapes, dtypes, task, backward in longest.select("shapes", "dtypes", "task", "backward").iter_rows():
        multiplied = product(shapes)
        if multiplied is None or multiplied.left.columns > attention.WIDEST_HEAD:
            continue
        width = multiplied.left.columns
        scores = multiplied.made
        if (other := turned(scores)) in sizes:
            scores = other
        half = any(dtype in (dtypes or "") for dtype in _HALF)
        size = sizes.setdefault(scores, Attention(scores, width, half))
        size.width = min(size.width, width)
        size.products[task] = bool(backward)
    shaped = work.rows.drop_nulls("shapes")
    for size in sizes.values():
        _see_mask(size, shaped)
    return list(sizes.values())


def whole_work(work: DeviceWork, parts: DeviceWork, sizes: list[Attention]) -> DeviceWork:
    """All that a fused kernel does away with: what touches the scores, and what only prepares or copies for it.

    Heads that come in half precision and are only multiplied in single count as half.
    """
    touching = parts.where(pl.col("shapes").is_in(_touching(parts, sizes)))
    companions = _companions(work, touching, sizes)
    raised = companions.filter(pl.col("op") == "aten::copy_")["dtypes"].str.contains("|".join(_HALF)).any()
    for size in sizes:
        size.half |= raised
    return DeviceWork(work.case, pl.concat((touching.rows, companions)))


def sums_products(size: Attention, work: DeviceWork) -> bool:
    """Whether more products than one make the scores of one softmax, as terms of positions do."""
    forward = work.rows.filter(
        (pl.col("part") == PARTS.index(SOFTMAX)) & ~pl.col("op").str.contains("backward")
    )
    over_scores = pl.Series(
        [size.scores in operands(shapes) for shapes in forward["shapes"]], dtype=pl.Boolean
    )
    products = sum(not backward for backward in size.products.values())
    return products > SPARE_PRODUCTS * forward.filter(over_scores)["op_id"].n_unique()


def turned(scores: Matrices) -> Matrices:
    """The same matrices, rows for columns."""
    return Matrices(scores.batch, scores.columns, scores.rows)


def _see_mask(size: Attention, work: pl.DataFrame) -> None:
    """Whether its scores are masked, from the operands beside them and from operators that cut triangles."""
    count, rows, columns = size.scores
    if rows == 1:
        return  # one token a step: what it may see is all there is
    squares, others, cut = False, False, False
    beside = work.filter(pl.col("part") != PARTS.index(SOFTMAX)).select("op", "shapes").unique()
    for op, shapes in beside.iter_rows():
        cut |= op in _CUTS_TRIANGLE and _first(shapes)[-2:] == (rows, columns)
        if size.scores not in operands(shapes):
            continue
        for tensor in tensor_shapes(shapes):
            if len(tensor) < 2 or tensor[-1] != columns or prod(tensor) >= count * rows * columns:
                continue
            alike = tensor[-2] == rows and (len(tensor) == 2 or tensor[-3] == 1)
            squares |= alike and rows == columns
            others |= tensor[-2] in (1, rows) and len(tensor) > 2 and not (alike and rows == columns)
    size.mask = Mask.FROM_MEMORY if others else Mask.CAUSAL if squares or cut else Mask.NONE
    # That a mask from elsewhere is a triangle, or could be left to the kernel, shapes do not tell.
    size.mask_known = size.mask is Mask.NONE or (size.mask is Mask.CAUSAL and cut)


def _touching(parts: DeviceWork, sizes: Iterable[Attention]) -> list[str]:
    """The shapes of operators that work on the scores."""
    scores = {size.scores for size in sizes}
    scores |= {turned(matrices) for matrices in scores}
    return [
        shapes
        for shapes in parts.rows["shapes"].unique().drop_nulls()
        if not scores.isdisjoint(operands(shapes)) or ((made := product(shapes)) and made.made in scores)
    ]


def _companions(work: DeviceWork, touching: DeviceWork, sizes: Iterable[Attention]) -> pl.DataFrame:
    """Masks as large as one matrix of scores, heads copied or scaled for a product, and the result copied for what follows."""
    masks, heads, results = set(), set(), set()
    for size in sizes:
        (count, rows, columns), width = size.scores, size.width
        masks.add((rows, columns))
        heads |= {(count, *sides) for sides in ((width, columns), (columns, width))}
        if rows > 1:  # else what is written into a cache looks the same
            heads.add((count, rows, width))
            results.add((count, rows, width))
    rest = work.rows.filter(~pl.col("task").is_in(touching.rows["task"].implode()))
    kinds = rest.select("op", "shapes").unique().drop_nulls()
    goes = [
        (op in _MAKES_MASK and _is_mask(shapes, masks))
        or (
            op == "aten::copy_"
            and (_heads(shapes) in heads or _result(shapes) in results or _is_batched_mask(shapes, masks))
        )
        or (op in _SCALES and len(tensor_shapes(shapes)) == 1 and _scaled(shapes) in heads)
        for op, shapes in kinds.iter_rows()
    ]
    kinds = kinds.filter(pl.Series(goes, dtype=pl.Boolean))
    part = pl.lit(PARTS.index(SCORES)).cast(rest["part"].dtype).alias("part")
    return rest.join(kinds, on=["op", "shapes"], how="semi").with_columns(part)


def _first(shapes: str) -> tuple[int, ...]:
    return next(iter(tensor_shapes(shapes)), ())


def _is_mask(shapes: str, masks: set[tuple[int, int]]) -> bool:
    """[Tq, Tk], or the same for every head."""
    shape = _first(shapes)
    alone = len(shape) >= 2 and prod(shape[:-2]) == 1
    return (alone and tuple(shape[-2:]) in masks) or _is_batched_mask(shapes, masks)


def _is_batched_mask(shapes: str, masks: set[tuple[int, int]]) -> bool:
    """[B, 1, Tq, Tk]."""
    shape = _first(shapes)
    return len(shape) == 4 and shape[1] == 1 and shape[2] > 1 and tuple(shape[-2:]) in masks


def _heads(shapes: str) -> tuple[int, ...]:
    """[B, H, x, y], or with groups of heads between, as the product sees it: [B·H, x, y]."""
    shape = _first(shapes)
    return (prod(shape[:-2]), *shape[-2:]) if len(shape) >= 4 else ()


def _scaled(shapes: str) -> tuple[int, ...]:
    """Heads as `_heads` has them, or batch and heads as one already."""
    return _heads(shapes) or _first(shapes)


def _result(shapes: str) -> tuple[int, ...]:
    """[B, T, H, d], as the product saw it: [B·H, T, d]."""
    shape = _first(shapes)
    return (shape[0] * shape[2], shape[1], shape[3]) if len(shape) == 4 else ()
