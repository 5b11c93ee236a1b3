"""Layers that compute in fp32 within a program of half precision, between a cast up and a cast back.

Not a rule itself; `dtype-casts` looks for them.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.predict.costs import gemm

ASKED = ("aten::to", "aten::_to_copy", "aten::type_as", "aten::float", "aten::half", "aten::bfloat16")
HALF_TIME = 0.55  # of the same operator on half the bytes: activations on an H200
_MULTIPLIES = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_HALVES = ("bf16", "fp16")
_WIDEST = 24  # kernels between a cast up and the one back: of a layer or two, and their gradients


class Island(NamedTuple):
    """Work in fp32 between a cast up and one back."""

    casts: list[int]
    between: list[int]
    backward: bool


def found(case: Case, copies: pl.DataFrame) -> list[Island]:
    """Casts to fp32 and back with a matrix product between them, in the program's own words or as gradients of such."""
    names = case.names
    casts = {row[0]: row[1:] for row in copies.select("task", "source", "target", "op_id").iter_rows()}
    ops = case.tasks["op_id"].to_list()
    streams = case.tasks["stream"].to_list()
    islands: list[Island] = []
    last = -1
    for task, (source, target, op) in casts.items():
        if task <= last or target != "fp32" or source not in _HALVES:
            continue
        around = names[case.callers(op)[-1]]
        backward = "ToCopyBackward" in around
        if not (backward or around in ASKED):
            continue
        inner, between = [task], []
        for at in range(task + 1, min(task + 1 + _WIDEST, len(ops))):
            cast = casts.get(at)
            if (
                streams[at] != streams[task]
                or ops[at] is None
                or (not cast and '"float"' not in case.argument(ops[at], "dtypes"))
            ):
                break
            if not cast or cast[0] == cast[1]:
                between.append(at)
                continue
            inner.append(at)
            ends = names[case.callers(cast[2])[-1]]
            if cast[1] == source and ("ToCopyBackward" in ends if backward else ends in ASKED):
                if any(names[ops[each]] in _MULTIPLIES for each in between):
                    islands.append(Island(inner, between, backward))
                    last = at
                break
    return islands


def in_half(case: Case, tasks: list[int]) -> dict[int, int]:
    """How long kernels take that compute in half precision: products on tensor cores, others on half the bytes."""
    work = case.tasks[tasks].join(
        case.trace.ops.select(pl.col("span_id").alias("op_id"), pl.col("shapes").cast(pl.String)),
        on="op_id", how="left", maintain_order="left",
    )  # fmt: skip
    work = work.with_columns(
        op=case.trace.spans["name"].gather(work["op_id"]).cast(pl.String),
        whole=pl.col("dur_ns").sum().over("op_id"),
    )
    shorter = {}
    for task, dur, whole, op, shapes in work.select("task", "dur_ns", "whole", "op", "shapes").iter_rows():
        share = HALF_TIME
        if op in _MULTIPLIES:
            size = gemm.size(op, shapes)
            needed = gemm.time_ns(case.device, "bf16", size, 2) if case.device and size else None
            share = min((needed or whole) / max(whole, 1), 1.0)
        shorter[task] = round(dur * share)
    return shorter
