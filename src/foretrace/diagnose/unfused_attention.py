"""Attention written out in operators makes a matrix of scores in memory that a fused kernel never makes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.attention_pieces import CONTEXT, NO_PART, PARTS, SCORES, SOFTMAX, pieces, product
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.errors import MissingDataError
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

# Of the tensor cores' peak, as scaled_dot_product_attention reaches it on an H200 (torch 2.11, long_context and
# long_bidirectional of benchmarks/pairs).
_FORWARD_SHARE, _BACKWARD_SHARE = 0.55, 0.50
_BACKWARD_WORK = 2.5  # five matrix products instead of two: the scores are made again
_HOST_NS = 15_000  # of one fused call
_LEAST_SHARE = 0.03
_MASKS = ("aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::tril", "aten::triu")
_MAKES_MASK = (
    "aten::tril",
    "aten::triu",
    "aten::fill_",
    "aten::bitwise_not",
    "aten::logical_not",
    "aten::eq",
)
_HALF = ("c10::Half", "c10::BFloat16")


@rule
def unfused_attention(case: Case) -> Iterator[Finding]:
    """Attention computed piece by piece, with its scores in memory.

    What it does
    Finds softmaxes over [..., Tq, Tk] whose scores a batched multiply makes, with all operators that touch
    those scores, and replaces each by one fused kernel: 4·B·H·Tq·Tk·d operations forward (half of it where
    a mask is applied), 2.5 times as many backward, at 55 and 50 % of the device's peak.
    Masks of [Tq, Tk] and copies of the heads that only the multiply needs go with it.

    Why it matters
    Every piece reads and writes the whole matrix of scores, whose size grows with the square of the sequence.

    Use instead
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    """
    if case.trace.ops["shapes"].null_count() == case.trace.ops.height:
        raise MissingDataError(f"{case.trace.path.name}: no shapes recorded; record with record_shapes=True")
    work = case.tasks.drop_nulls("op_id")
    part = pieces(case.trace, work["op_id"].to_numpy())
    mine = work.with_columns(part=pl.Series(part)).filter(pl.col("part") != NO_PART)
    device_ns = int(case.program.task_dur_ns.sum())
    if mine.is_empty() or mine["dur_ns"].sum() < _LEAST_SHARE * max(device_ns, 1):
        return
    if case.device is None:
        raise MissingDataError(f"{case.trace.path.name}: the peaks of this device are not known")
    kept = _fused(case, mine)
    if not kept:
        return
    mine = pl.concat((mine, _companions(case, work, mine)))
    spent = int(mine["dur_ns"].sum())
    softmax = mine.filter(pl.col("part") == PARTS.index(SOFTMAX))
    yield Finding(
        rule="unfused-attention",
        says=f"Attention written out takes {100 * spent / device_ns:.0f} % of the GPU's time: "
        f"{mine.height / case.step_count:.0f} kernels and {spent / case.step_count / 1e6:.3g} ms a step.",
        why="Each piece reads and writes the whole matrix of scores, which a fused kernel keeps on the chip.",
        fix=Fix("Use the fused attention.", "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)"),
        evidence={
            "attention_ns": spent // case.step_count,
            "attention_pct": 100 * spent / device_ns,
            "kernels_per_step_count": mine.height / case.step_count,
            "spans": softmax["id"].head(5).to_list(),
        },
        where=case.places(softmax["op_id"].unique().to_list()),
        change=Change("attention fused", _edit(case, mine, kept)),
        unless="the scores themselves are needed, or the mask is one that the fused kernels do not take.",
    )


def _fused(case: Case, mine: pl.DataFrame) -> dict[int, int]:
    """For each softmax, forward or backward, the task that stands for the fused kernel, and its duration."""
    assert case.device is not None
    softmax = (
        mine.filter(pl.col("part") == PARTS.index(SOFTMAX)).group_by("op_id", maintain_order=True).first()
    )
    multiplies = mine.filter(pl.col("part").is_in((PARTS.index(SCORES), PARTS.index(CONTEXT))))
    width = _head_width(case, multiplies)
    if width is None:
        return {}
    ops = case.trace.ops.select(pl.col("span_id").alias("op_id"), "shapes", "dtypes")
    names = case.trace.spans.select(pl.col("id").alias("op_id"), pl.col("name").cast(pl.String).alias("op"))
    rows = softmax.join(ops, on="op_id", maintain_order="left").join(names, on="op_id", maintain_order="left")
    touching = case.trace.spans["name"].cast(pl.String).gather(mine["op_id"])
    masked = 0.5 if touching.is_in(_MASKS).any() else 1.0
    peak = _peak(case, multiplies)
    kept = {}
    for task, op, shapes in rows.select("task", "op", "shapes").iter_rows():
        scores = max(
            (int(np.prod(each)) for each in json.loads(shapes) if isinstance(each, list) and each), default=0
        )
        flops = 4.0 * scores * width * masked
        backward = "backward" in op
        rate = peak * (_BACKWARD_SHARE if backward else _FORWARD_SHARE)
        kept[task] = round(flops * (_BACKWARD_WORK if backward else 1.0) / rate * 1e9)
    return kept


def _companions(case: Case, work: pl.DataFrame, mine: pl.DataFrame) -> pl.DataFrame:
    """Masks as large as one matrix of scores, and copies of heads in the order that a batched multiply wants."""
    scores = mine.filter(pl.col("part") == PARTS.index(SCORES))["op_id"].unique()
    ops = case.trace.ops.filter(pl.col("span_id").is_in(scores.implode()))
    masks, heads = set(), set()
    for shapes in ops["shapes"].unique().drop_nulls().cast(pl.String):
        tensors = [each for each in json.loads(shapes) if isinstance(each, list) and len(each) == 3]
        if len(tensors) >= 2:
            (batch, rows, width), (_, _, columns) = tensors[-2:]
            masks.add((rows, columns))
            heads |= {(batch, *each) for each in ((rows, width), (width, columns), (columns, width))}
    rest = work.filter(~pl.col("task").is_in(mine["task"].implode()))
    rest = rest.with_columns(op=case.trace.spans["name"].gather(rest["op_id"]).cast(pl.String))
    rest = rest.filter(pl.col("op").is_in((*_MAKES_MASK, "aten::copy_"))).join(
        case.trace.ops.select(pl.col("span_id").alias("op_id"), pl.col("shapes").cast(pl.String)),
        on="op_id", how="left", maintain_order="left",
    )  # fmt: skip
    kinds = rest.select("op", "shapes").unique()
    goes = [
        (op in _MAKES_MASK and _ends(shapes) in masks) or (op == "aten::copy_" and _batched(shapes) in heads)
        for op, shapes in kinds.iter_rows()
    ]
    kinds = kinds.filter(pl.Series(goes, dtype=pl.Boolean))
    part = pl.lit(PARTS.index(SCORES)).cast(mine["part"].dtype).alias("part")
    return rest.join(kinds, on=["op", "shapes"], how="semi").with_columns(part).select(mine.columns)


def _first(shapes: str | None) -> list[int]:
    tensors = json.loads(shapes) if shapes else []
    return next(
        (each for each in tensors if isinstance(each, list) and each and isinstance(each[0], int)), []
    )


def _ends(shapes: str | None) -> tuple[int, ...]:
    """The last two dimensions of a tensor that holds one such matrix."""
    shape = _first(shapes)
    return tuple(shape[-2:]) if len(shape) >= 2 and int(np.prod(shape[:-2])) == 1 else ()


def _batched(shapes: str | None) -> tuple[int, ...]:
    """[B, H, x, y] as the multiply sees it: [B·H, x, y]."""
    shape = _first(shapes)
    return (shape[0] * shape[1], *shape[2:]) if len(shape) == 4 else ()


def _peak(case: Case, multiplies: pl.DataFrame) -> float:
    """Of the type that the matrices are multiplied in: half precision, else what single precision has."""
    assert case.device is not None
    ops = case.trace.ops.filter(pl.col("span_id").is_in(multiplies["op_id"].implode()))
    half = ops["dtypes"].cast(pl.String).str.contains("|".join(_HALF)).any()
    best = case.device.bf16_flops or case.device.fp16_flops
    return float((best if half else None) or case.device.tf32_flops or case.device.fp32_flops or best or 1e12)


def _head_width(case: Case, multiplies: pl.DataFrame) -> int | None:
    """The dimension that is summed over when scores are made."""
    scores = multiplies.filter(pl.col("part") == PARTS.index(SCORES))
    ops = case.trace.ops.filter(pl.col("span_id").is_in(scores["op_id"].implode()))
    widths = []
    for shapes in ops["shapes"].unique().drop_nulls().cast(pl.String):
        tensors = [each for each in json.loads(shapes) if isinstance(each, list) and len(each) == 3]
        if product(shapes) and len(tensors) >= 2:
            widths.append(tensors[-2][2])
    return min(widths) if widths else None


def _edit(case: Case, mine: pl.DataFrame, kept: dict[int, int]) -> Edit:
    """Only the tasks that stand for fused kernels stay; the operators' host time goes, less one call's each."""
    gone = mine.filter(~pl.col("task").is_in(list(kept)))
    calls = mine.filter(pl.col("task").is_in(list(kept)))["call"].unique().to_list()
    spans = case.trace.spans.filter(pl.col("id").is_in(mine["op_id"].unique().implode()))
    start = (spans["start_ns"] - case.program.start_ns).to_numpy()
    host = intervals.union(start, start + spans["dur_ns"].fill_null(0).to_numpy())
    return Edit(
        removed_host=host,
        removed_tasks=gone["task"].to_numpy(),
        durations_ns=kept,
        modelled=frozenset(kept),
        added_host_ns=dict.fromkeys(calls, _HOST_NS),
    )
