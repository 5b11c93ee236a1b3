"""Matrix products whose sizes are no multiple of eight fall back to slower kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import rule
from foretrace.errors import MissingDataError
from foretrace.predict.changes import Change
from foretrace.predict.costs import gemm
from foretrace.predict.edits import Edit

_LEAST_SHARE, _LEAST_SAVED = 0.03, 0.02  # of the GPU's time
_LOADED_BYTES = 16  # what a tensor core's load takes at once
_ITEM_BYTES = {"fp16": 2, "bf16": 2, "tf32": 4}
# Kernels that load 16 bytes at once, by TMA or by their own account: their operands are aligned, whatever M is.
_LOADS_ALIGNED = r"^nvjet|align8|ldg8|sm90_xmma_gemm.*warpgroup"
# TF32 is judged by these alone: its kernels' names do not all tell what they load.
_LOADS_PIECES = r"(?:align|ldg)[12](?:\D|$)"
_PADDED = 64
_ROWS_FROM = 64  # below, rows are a batch of requests or tokens, and kernels pad them themselves
_LARGE_FLOPS = 1e9  # smaller products tell nothing about the rate that the device reaches
_RATES = (0.6, 0.9)  # of the peak, what aligned products may be taken to reach


@rule(
    title="Matrix sizes do not fit the tensor cores",
    topic="Matrix sizes",
    see="roofline",
)
def misaligned_gemm(case: Case) -> Iterator[Finding]:
    """Products on tensor cores with a size that is no multiple of 16 bytes: 8 in fp16 or bf16, 4 in TF32.

    What it does
    Looks for matrix products in half precision with a K or N, or an M above 64, that is no multiple of 8 (in TF32,
    of 4), and that run in kernels which do not load 16 bytes at once, by their names. Each is replaced by a product with
    these sizes rounded up to 64, at the rate that aligned products of the same recording reach.

    Why it matters
    Tensor cores load 16 bytes at once. Rows that do not begin at a multiple of that are loaded piece by piece.
    The usual culprit is a vocabulary of 50257 words.

    Use instead
    nn.Embedding(50304, width): pad vocabularies and widths to a multiple of 64.
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    device_ns = max(int(case.program.task_dur_ns.sum()), 1)
    found = case.products.filter(pl.col("tensor_cores").fill_null(value=True))
    if found.filter(pl.col("dur_ns") > 0)["dur_ns"].sum() < _LEAST_SHARE * device_ns:
        return
    if found["shapes"].null_count() == found.height:
        raise MissingDataError(f"{case.trace.path.name}: no shapes recorded; record with record_shapes=True")
    found = found.filter(pl.col("operand_dtype").is_in(list(_ITEM_BYTES)))
    sizes = [gemm.size(op or "", shapes) for op, shapes in found.select("op", "shapes").iter_rows()]
    odd = [
        size is not None and _misaligned(size, dtype)
        for size, dtype in zip(sizes, found["operand_dtype"], strict=True)
    ]
    bad = pl.Series(odd, dtype=pl.Boolean) & ~found["text"].str.contains(_LOADS_ALIGNED)
    bad &= (found["operand_dtype"] != "tf32") | found["text"].str.contains(_LOADS_PIECES)
    mine = found.filter(bad)
    spent = int(mine["dur_ns"].sum())
    if spent < _LEAST_SHARE * device_ns:
        return
    if case.device is None:
        raise MissingDataError(f"{case.trace.path.name}: the peaks of this device are not known")
    shorter = _shorter(case, found, sizes, bad)
    saved = spent - sum(shorter.values())
    if saved < _LEAST_SAVED * device_ns:
        return
    chosen = zip(sizes, found["operand_dtype"], bad, strict=True)
    sides = sorted(
        {number for size, dtype, is_bad in chosen if is_bad and size for _, number in _odd_sides(size, dtype)}
    )
    yield _finding(case, mine, sides, shorter)


def _finding(case: Case, mine: pl.DataFrame, odd: list[int], shorter: dict[int, int]) -> Finding:
    spent, device_ns = int(mine["dur_ns"].sum()), int(case.program.task_dur_ns.sum())
    return Finding(
        says=f"{mine.height / case.step_count:.0f} matrix products a step have a size that is no multiple of 16 bytes "
        f"({', '.join(str(each) for each in odd[-3:])}) and take {100 * spent / device_ns:.0f} % of the GPU's time.",
        why="Tensor cores load 16 bytes at once; such rows are loaded piece by piece.",
        fix=Fix(
            f"Pad to a multiple of 64: {odd[-1]} to {_up(odd[-1])}.",
            f"size = {_up(odd[-1])}  # was {odd[-1]}",
        ),
        evidence={
            "products_ns": spent // case.step_count,
            "products_pct": 100 * spent / device_ns,
            "products_per_step_count": mine.height / case.step_count,
            "sizes": odd[-5:],
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().to_list()),
        change=Change(
            "sizes padded to multiples of 64", Edit(durations_ns=shorter, modelled=frozenset(shorter))
        ),
        unless="the size is given from outside, so that padding it costs a copy.",
    )


def _misaligned(size: gemm.Size, dtype: str) -> bool:
    return any(side != "m" or number > _ROWS_FROM for side, number in _odd_sides(size, dtype))


def _up(number: int) -> int:
    return -(-number // _PADDED) * _PADDED


def _shorter(
    case: Case, found: pl.DataFrame, sizes: list[gemm.Size | None], bad: pl.Series
) -> dict[int, int]:
    """The misaligned products' tasks, with the time of the padded product."""
    assert case.device is not None
    rows = list(zip(found["task"], found["dur_ns"], found["operand_dtype"], sizes, bad, strict=True))
    ideal = recorded = 0
    for _, dur, dtype, size, is_bad in rows:
        if size and not is_bad and size.flops >= _LARGE_FLOPS:
            ideal += gemm.time_ns(case.device, dtype, size, _ITEM_BYTES[dtype], share=1.0) or 0
            recorded += dur
    rate = min(max(ideal / recorded, _RATES[0]), _RATES[1]) if recorded else gemm.PEAK_SHARE
    shorter = {}
    for task, dur, dtype, size, is_bad in rows:
        if size and is_bad:
            padded = replace(size, **{side: _up(number) for side, number in _odd_sides(size, dtype)})
            shorter[task] = min(
                dur,
                gemm.time_ns(case.device, dtype, padded, _ITEM_BYTES[dtype], share=rate) or dur,
            )
    return shorter


def _odd_sides(size: gemm.Size, dtype: str) -> list[tuple[str, int]]:
    at_once = _LOADED_BYTES // _ITEM_BYTES[dtype]
    return [(side, number) for side in ("m", "n", "k") if (number := getattr(size, side)) % at_once]
