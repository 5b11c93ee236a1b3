"""Attention computed operator by operator makes a matrix of scores in memory that a fused kernel never makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from foretrace.analyze.concepts.device.attention_pieces import NO_PART, PARTS, SOFTMAX
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.finding import Finding
from foretrace.diagnose.patterns import attention_advice, attention_in_pieces, attention_seen
from foretrace.diagnose.patterns.attention_in_pieces import Attention
from foretrace.diagnose.patterns.attention_seen import Seen
from foretrace.diagnose.removal import host_time
from foretrace.diagnose.rule import SHAPES, headline, healthy, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.hardware import Device
from foretrace.predict.changes import Change
from foretrace.predict.costs import attention
from foretrace.predict.costs.attention import Mask
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.03, "GPU time", JUDGEMENT)
_SUMS_PRODUCTS = (
    "more than one product makes the scores, and a fused kernel takes the others only as a bias from memory"
)


def _no_issue(values: Mapping[str, Any]) -> str | None:
    fused, pieces = values.get("fused_attention_pct"), values.get("attention_pieces_pct")
    if fused is None or pieces is None:
        return None
    if not fused and not pieces:
        return "no attention seen"
    return f"fused, {fused:.0f} % of GPU time" if fused else f"{pieces:.0f} % of GPU time in pieces"


@needs(SHAPES)
@headline("{attention_pct:.0f} % of GPU time goes to attention that is not fused")
@healthy("roles", _no_issue)
@rule("Attention is not fused", "Attention", see="roles --attention-parts")
def unfused_attention(case: Case) -> Iterator[Finding]:
    """Attention computed operator by operator, with its scores in memory.

    Finds softmaxes over [..., Tq, Tk], whole or spelled out with exp, whose scores one matrix product makes and the next
    one sums up, with all operators that touch those scores, where they take at least {LEAST_SHARE} of GPU time. Heads
    wider than {attention.WIDEST_HEAD} are left out, because flash kernels do not take them.

    Masks of [Tq, Tk], copies of the heads that only the product needs, and the copy of the result that puts the heads
    side by side belong to it.

    The code that a finding proposes is for the mask, scale and dropout that the recording shows, and says what it does not
    show: only a triangle that the step itself cuts is known to be causal.

    Slow
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(mask, float("-inf"))
        y = scores.softmax(-1) @ v

    Fast
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)

    Why
    Every operator reads and writes the whole matrix of scores, whose size grows with the square of the sequence. A fused
    kernel keeps it on the chip.

    How the worth is predicted
    Each attention becomes one fused kernel. It takes the longer of two times: to move queries, keys, values and results
    once, and to compute 4·B·H·Tq·Tk·d operations at {attention.PEAK_SHARE} of the tensor cores' peak with an exponential for each
    score, in blocks of {attention.BLOCK} x {attention.BLOCK}. Backward it is 2.5 times the operations at {attention.BACKWARD_PEAK_SHARE}. In fp32 no
    tensor cores are used: {attention.FP32_PEAK_SHARE} of the peak without them, for heads filled up to {attention.FILLED_WIDTH} values.

    A mask of [Tq, Tk] counts as causal and halves the work. Any other mask or bias needs other kernels, which reach
    {attention.MASKED_SHARE} of the peak forward and {attention.MASKED_BACKWARD_SHARE} backward, for filled heads; in fp32 they take
    {attention.FP32_MASK_COST} times as long. On the host, each fused call takes {attention.HOST_NS}.

    When not
    The scores themselves are needed, or the mask is one that the fused kernels do not take. Nothing is promised where several
    products are added up to make the scores, as for relative positions, where another function such as tanh stands between the
    scores and the softmax, or where something else reads the weights or multiplies them.
    """
    work = attention_in_pieces.device_work(case)
    parts = work.where(pl.col("part") != NO_PART)
    if not len(parts) or too_little(case, "unfused attention", parts.gpu_share, LEAST_SHARE):
        return
    device = case.known_device
    sizes = attention_in_pieces.by_size(parts, work)
    if not sizes:
        return
    unfused = attention_in_pieces.whole_work(work, parts, sizes)
    softmax = unfused.where(pl.col("part") == PARTS.index(SOFTMAX))
    seen = attention_seen.seen(case, work, sizes)
    yield Finding(
        says=f"Unfused attention takes {unfused.gpu_pct:.0f} % of GPU time: {unfused.per_step_count:.0f} kernels and "
        f"{unfused.per_step_ms:.3g} ms a step.",
        why="Each operator reads and writes the whole matrix of scores, which a fused kernel keeps on the chip.",
        fix=attention_advice.fix(case, seen),
        evidence={
            **unfused.evidence("attention", counted="kernels"),
            "mask": attention_advice.mask_in_words(seen),
            "spans": softmax.spans(),
        },
        where=case.places(softmax.rows["op_id"].unique().to_list()),
        change=_change(case, device, unfused, sizes, seen),
        unless=attention_advice.unless(seen),
    )


def _change(case: Case, device: Device, unfused: DeviceWork, sizes: list[Attention], seen: Seen) -> Change:
    """One fused kernel in place of each product that makes scores; all other work goes, with the operators' host time."""
    kept = _times_ns(device, sizes, None)
    stays = pl.col("task").is_in(list(kept))
    calls = unfused.where(stays).rows["call"].unique().to_list()
    edit = Edit(
        removed_host=host_time(case, unfused.ops),
        removed_tasks=unfused.where(~stays).tasks,
        durations_ns=kept,
        modelled=frozenset(kept),
        added_host_ns=dict.fromkeys(calls, attention.HOST_NS),
    )
    known = all(size.mask_known for size in sizes)
    others = (
        () if known else tuple(replace(edit, durations_ns=_times_ns(device, sizes, mask)) for mask in Mask)
    )
    doubtful = any(attention_in_pieces.sums_products(size, unfused) for size in sizes)
    doubt = _SUMS_PRODUCTS if doubtful else seen.doubt
    return Change("attention fused", edit, others=others, doubt=doubt)


def _times_ns(device: Device, sizes: list[Attention], unknown: Mask | None) -> dict[int, int]:
    """What each fused kernel takes, with this mask where the mask is not known, or with the likely one."""
    return {
        task: size.fused_ns(
            device, backward=backward, mask=size.mask if size.mask_known or unknown is None else unknown
        )
        for size in sizes
        for task, backward in size.products.items()
    }
