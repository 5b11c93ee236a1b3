"""Attention written out in operators makes a matrix of scores in memory that a fused kernel never makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any

import polars as pl

from foretrace.analyze.concepts.device.attention_pieces import (
    NO_PART,
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
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.removal import host_time
from foretrace.diagnose.rule import Healthy, rule
from foretrace.errors import MissingDataError
from foretrace.hardware import Device
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

# What scaled_dot_product_attention takes on an H200 with torch 2.11, from 75 sizes in the corpus and benchmarks/pairs.
# In half precision, two products a score forward and five backward at these shares of the tensor cores' peak, and one
# and two exponentials at a sixteenth of the fp32 peak, as the special function units have it. In single precision, no
# tensor cores: 30 to 47 TFLOP/s. Forward, a block computes 128 rows, and one after another as many columns; whatever
# their number, it takes some time before and behind, as backward does each block of columns.
_SHARE, _SHARE_FP32 = {False: 0.84, True: 0.62}, 0.55
_PRODUCTS, _EXPONENTIALS = {False: 2, True: 5}, {False: 1, True: 2}
_LAUNCH_NS = {False: 2_500, True: 10_000}
_BLOCK = 128
_BLOCK_NS = {False: 1_250, True: 2_000}
_BANDWIDTH_SHARE = 0.80
_TILE = 64  # rows and columns, at least, that a block computes backward, and in single precision
_WIDEST = 256  # head sizes that flash kernels take
_DIAGONAL = 256  # columns beyond the triangle that a causal kernel still computes, or waits for
_MASK_COSTS = 1.5  # a mask or bias read from memory takes other kernels, of half to all of the speed
_HOST_NS = 15_000  # of one fused call
_LEAST_SHARE = 0.03
_MAKES_MASK = (
    "aten::tril", "aten::triu", "aten::fill_", "aten::bitwise_not", "aten::logical_not", "aten::eq", "aten::lt",
    "aten::le", "aten::gt", "aten::ge", "aten::logical_and", "aten::bitwise_and", "aten::masked_fill",
    "aten::masked_fill_",
)  # fmt: skip
_SCALES = ("aten::mul", "aten::div")  # of queries or keys by a number: the fused kernel does that
_HALF = ("c10::Half", "c10::BFloat16")
_NO_MASK, _CAUSAL, _MASKED = range(3)
_SPARE_PRODUCTS = 1.5  # for each softmax: the recording may cut one off
_SUMMED = (
    "more than one product makes the scores, and a fused kernel takes the others only as a bias from memory"
)


@dataclass
class _Attention:
    """One size of scores, with what is known of how they come about."""

    scores: Matrices
    width: int
    half: bool
    mask: int = _NO_MASK
    certain: bool = True  # that the mask is of this kind
    fused: dict[int, bool] = field(
        default_factory=dict
    )  # tasks that stand for a fused kernel: whether backward

    def ns(self, device: Device, backward: bool, mask: int) -> int:
        """How long a fused kernel takes."""
        count, rows, columns = self.scores
        padded = count * _TILE**2 * ceil(rows / _TILE) * ceil(columns / _TILE)
        work = min(0.5 * (1 + _DIAGONAL / columns), 1.0) if mask == _CAUSAL else 1.0
        work *= _MASK_COSTS if mask == _MASKED else 1.0
        each = self._score_s(device, backward)
        if not self.half:
            computing = padded * each * work
        elif backward:
            blocks = count * ceil(columns / _BLOCK)
            computing = padded * each * work + blocks / device.sm_count * _BLOCK_NS[backward] / 1e9
        else:
            pieces = ceil(columns / _BLOCK)
            blocks = count * ceil(rows / _BLOCK)
            # The rows of a few tokens are spread along the columns, until all of the device works.
            parts = max(min(device.sm_count // blocks, pieces), 1) if rows < _BLOCK else 1
            block = pieces / parts * _BLOCK**2 * device.sm_count * each * work + _BLOCK_NS[backward] / 1e9
            computing = ceil(blocks * parts / device.sm_count) * block
        moved = (2 if self.half else 4) * count * self.width * 2 * (rows + columns)
        moving = moved / (device.memory_bandwidth_bytes * _BANDWIDTH_SHARE)
        # Backward, kernels before and behind the main one read and write as much again.
        taken = computing + 2 * moving if backward else max(computing, moving)
        return round(taken * 1e9) + _LAUNCH_NS[backward]

    def _score_s(self, device: Device, backward: bool) -> float:
        """What one score takes of the whole device, in seconds."""
        flops = 2 * _PRODUCTS[backward] * self.width
        if not self.half:
            return flops / (device.fp32_flops * _SHARE_FP32)
        peak = device.bf16_flops or device.fp16_flops
        return flops / (peak * _SHARE[backward]) + 16 * _EXPONENTIALS[backward] / device.fp32_flops


def _no_issue(values: Mapping[str, Any]) -> str | None:
    fused, pieces = values.get("fused_attention_pct"), values.get("attention_pieces_pct")
    if fused is None or pieces is None:
        return None
    if not fused and not pieces:
        return "no attention seen"
    return f"fused, {fused:.0f} % of GPU time" if fused else f"{pieces:.0f} % of GPU time in pieces"


@rule(
    title="Attention is not fused",
    topic="Attention",
    see="roles --attention-parts",
    headline=lambda e: f"{e['attention_pct']:.0f} % of GPU time goes to attention that is not fused",
    healthy=Healthy("roles", _no_issue),
)
def unfused_attention(case: Case) -> Iterator[Finding]:
    """Attention computed piece by piece, with its scores in memory.

    What it does
    Finds softmaxes over [..., Tq, Tk], whole or written out with exp, whose scores one multiply makes and the next
    sums up, with all operators that touch those scores, and replaces each by one fused kernel. That takes the longer
    of moving queries, keys, values and results once, and 4·B·H·Tq·Tk·d operations at 84 % of the tensor cores' peak
    with an exponential each, in blocks of 128 x 128; backward 2.5 times the operations at 62 %. In fp32 there are no tensor cores: 55 % of
    the peak without. A mask of [Tq, Tk] counts as causal and leaves half of the work; any other mask or bias, for
    which other kernels are taken, half as much again.
    Masks of [Tq, Tk], copies of the heads that only the multiply needs, and the copy of the result that puts the
    heads side by side go with it.

    Why it matters
    Every piece reads and writes the whole matrix of scores, whose size grows with the square of the sequence.

    Use instead
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    """
    if case.trace.ops["shapes"].null_count() == case.trace.ops.height:
        raise MissingDataError(f"{case.trace.path.name}: no shapes recorded; record with record_shapes=True")
    work = _work(case)
    mine = work.filter(pl.col("part") != NO_PART)
    device_ns = int(case.program.task_dur_ns.sum())
    if mine.is_empty() or mine["dur_ns"].sum() < _LEAST_SHARE * max(device_ns, 1):
        return
    if case.device is None:
        raise MissingDataError(f"{case.trace.path.name}: the peaks of this device are not known")
    found = _attentions(mine)
    if not found:
        return
    for each in found:
        _see_mask(each, work.drop_nulls("shapes"))
    mine = mine.filter(pl.col("shapes").is_in(_touching(mine, found)))
    others = _companions(work, mine, found)
    # Heads that come in half precision and are only multiplied in single.
    raised = others.filter(pl.col("op") == "aten::copy_")["dtypes"].str.contains("|".join(_HALF)).any()
    for each in found:
        each.half |= raised
    mine = pl.concat((mine, others))
    spent = int(mine["dur_ns"].sum())
    softmax = mine.filter(pl.col("part") == PARTS.index(SOFTMAX))
    yield Finding(
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
        change=_change(case, case.device, mine, found),
        unless="the scores themselves are needed, or the mask is one that the fused kernels do not take.",
    )


def _work(case: Case) -> pl.DataFrame:
    """Device work with its operator's name and arguments, whether it is of a backward pass, and its part in attention."""
    work = case.tasks.drop_nulls("op_id").join(
        case.roles.select("id", backward=pl.col("phase") == PHASES.index(BACKWARD)),
        on="id", how="left", maintain_order="left",
    )  # fmt: skip
    arguments = case.trace.ops.select(
        pl.col("span_id").alias("op_id"), *(pl.col(each).cast(pl.String) for each in ("shapes", "dtypes"))
    )
    work = work.join(arguments, on="op_id", how="left", maintain_order="left")
    return work.with_columns(
        op=case.trace.spans["name"].gather(work["op_id"]).cast(pl.String),
        part=pl.Series(pieces(case.trace, work["op_id"].to_numpy())),
    )


def _attentions(mine: pl.DataFrame) -> list[_Attention]:
    """By the size of their scores, those with heads that are no wider than flash kernels take."""
    made = (
        mine.filter(pl.col("part") == PARTS.index(SCORES))
        .sort("dur_ns")
        .group_by("op_id", maintain_order=True)
    )
    found: dict[Matrices, _Attention] = {}
    for shapes, dtypes, task, backward in (
        made.last().select("shapes", "dtypes", "task", "backward").iter_rows()
    ):
        multiplied = product(shapes)
        if multiplied is None:
            continue
        made_here, width = multiplied.made, multiplied.left.columns
        turned = Matrices(made_here.batch, made_here.columns, made_here.rows)
        scores = turned if turned in found else made_here
        if width > _WIDEST:
            continue
        half = any(each in (dtypes or "") for each in _HALF)
        each = found.setdefault(scores, _Attention(scores, width, half))
        each.width = min(each.width, width)
        each.fused[task] = bool(backward)
    return list(found.values())


def _see_mask(each: _Attention, work: pl.DataFrame) -> None:
    """Whether its scores are masked, from the operands beside them and from operators that cut triangles."""
    count, rows, columns = each.scores
    if rows == 1:
        return  # one token a step: what it may see is all there is
    squares, others, cut = False, False, False
    for op, shapes in (
        work.filter(pl.col("part") != PARTS.index(SOFTMAX)).select("op", "shapes").unique().iter_rows()
    ):
        cut |= op in ("aten::tril", "aten::triu") and _first(shapes)[-2:] == (rows, columns)
        if each.scores not in operands(shapes):
            continue
        for tensor in tensor_shapes(shapes):
            if len(tensor) < 2 or tensor[-1] != columns or prod(tensor) >= count * rows * columns:
                continue
            alike = tensor[-2] == rows and (len(tensor) == 2 or tensor[-3] == 1)
            squares |= alike and rows == columns
            others |= tensor[-2] in (1, rows) and len(tensor) > 2 and not (alike and rows == columns)
    each.mask = _MASKED if others else _CAUSAL if squares or cut else _NO_MASK
    # That a mask from elsewhere is a triangle, or could be left to the kernel, shapes do not tell.
    each.certain = each.mask == _NO_MASK or (each.mask == _CAUSAL and cut)


def _touching(mine: pl.DataFrame, found: list[_Attention]) -> list[str]:
    """The shapes of operators that work on the scores of these."""
    scores = {each.scores for each in found} | {
        Matrices(n, b, a) for each in found for n, a, b in (each.scores,)
    }
    return [
        shapes
        for shapes in mine["shapes"].unique().drop_nulls()
        if not scores.isdisjoint(operands(shapes)) or ((made := product(shapes)) and made.made in scores)
    ]


def _companions(work: pl.DataFrame, mine: pl.DataFrame, found: list[_Attention]) -> pl.DataFrame:
    """Masks as large as one matrix of scores, heads copied or scaled for a multiply, and the result copied for what follows."""
    masks, heads, results = set(), set(), set()
    for each in found:
        (count, rows, columns), width = each.scores, each.width
        masks.add((rows, columns))
        heads |= {(count, *sides) for sides in ((width, columns), (columns, width))}
        if rows > 1:  # else what is written into a cache looks the same
            heads.add((count, rows, width))
            results.add((count, rows, width))
    rest = work.filter(~pl.col("task").is_in(mine["task"].implode()))
    kinds = rest.select("op", "shapes").unique().drop_nulls()
    goes = [
        (op in _MAKES_MASK and _is_mask(shapes, masks))
        or (
            op == "aten::copy_"
            and (_heads(shapes) in heads or _result(shapes) in results or _is_mask4(shapes, masks))
        )
        or (op in _SCALES and len(tensor_shapes(shapes)) == 1 and _scaled(shapes) in heads)
        for op, shapes in kinds.iter_rows()
    ]
    kinds = kinds.filter(pl.Series(goes, dtype=pl.Boolean))
    part = pl.lit(PARTS.index(SCORES)).cast(mine["part"].dtype).alias("part")
    return rest.join(kinds, on=["op", "shapes"], how="semi").with_columns(part).select(mine.columns)


def _first(shapes: str) -> tuple[int, ...]:
    return next(iter(tensor_shapes(shapes)), ())


def _is_mask(shapes: str, masks: set[tuple[int, int]]) -> bool:
    """[Tq, Tk], or the same for every head."""
    shape = _first(shapes)
    alone = len(shape) >= 2 and prod(shape[:-2]) == 1
    return (alone and tuple(shape[-2:]) in masks) or _is_mask4(shapes, masks)


def _is_mask4(shapes: str, masks: set[tuple[int, int]]) -> bool:
    """[B, 1, Tq, Tk]."""
    shape = _first(shapes)
    return len(shape) == 4 and shape[1] == 1 and shape[2] > 1 and tuple(shape[-2:]) in masks


def _heads(shapes: str) -> tuple[int, ...]:
    """[B, H, x, y], or with groups of heads between, as the multiply sees it: [B·H, x, y]."""
    shape = _first(shapes)
    return (prod(shape[:-2]), *shape[-2:]) if len(shape) >= 4 else ()


def _scaled(shapes: str) -> tuple[int, ...]:
    """Heads as `_heads` has them, or batch and heads as one already."""
    return _heads(shapes) or _first(shapes)


def _result(shapes: str) -> tuple[int, ...]:
    """[B, T, H, d], as the multiply saw it: [B·H, T, d]."""
    shape = _first(shapes)
    return (shape[0] * shape[2], shape[1], shape[3]) if len(shape) == 4 else ()


def _change(case: Case, device: Device, mine: pl.DataFrame, found: list[_Attention]) -> Change:
    """Only the tasks that stand for fused kernels stay; the operators' host time goes, less one call's each."""
    kept = {task: each.ns(device, back, each.mask) for each in found for task, back in each.fused.items()}
    gone = mine.filter(~pl.col("task").is_in(list(kept)))
    calls = mine.filter(pl.col("task").is_in(list(kept)))["call"].unique().to_list()
    edit = Edit(
        removed_host=host_time(case, mine["op_id"]),
        removed_tasks=gone["task"].to_numpy(),
        durations_ns=kept,
        modelled=frozenset(kept),
        added_host_ns=dict.fromkeys(calls, _HOST_NS),
    )
    others = []
    for mask in (_NO_MASK, _CAUSAL, _MASKED) if not all(each.certain for each in found) else ():
        other = {
            task: each.ns(device, back, each.mask if each.certain else mask)
            for each in found
            for task, back in each.fused.items()
        }
        others.append(replace(edit, durations_ns=other))
    doubt = "" if not any(_summed(each, mine) for each in found) else _SUMMED
    return Change("attention fused", edit, others=tuple(others), doubt=doubt)


def _summed(each: _Attention, mine: pl.DataFrame) -> bool:
    """Whether more products than one make the scores of one softmax, as terms of positions do."""
    forward = mine.filter((pl.col("part") == PARTS.index(SOFTMAX)) & ~pl.col("op").str.contains("backward"))
    normalised = forward.filter(
        pl.Series([each.scores in operands(shapes) for shapes in forward["shapes"]], dtype=pl.Boolean)
    )
    products = sum(not backward for backward in each.fused.values())
    return products > _SPARE_PRODUCTS * normalised["op_id"].n_unique()
