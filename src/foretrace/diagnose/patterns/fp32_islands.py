"""Layers that compute in fp32 within a program of half precision, between a cast up and a cast back."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns.casts import ASKED, BACKWARD, passing_copies
from foretrace.predict.costs import gemm
from foretrace.predict.costs.precision import HALF_BYTES_TIME, ITEM_BYTES

_MULTIPLIES = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_HALVES = ("bf16", "fp16")
_FP32 = '"float"'  # among the types of an operator's arguments


class Island(NamedTuple):
    """Work in fp32 between a cast up and one back: tasks."""

    casts: list[int]
    between: list[int]
    backward: bool


class _Cast(NamedTuple):
    source: str
    target: str
    asked: bool  # by the program itself
    backward: bool  # by autograd, for a cast of the forward pass


def islands(case: Case, *, widest: int) -> list[Island]:
    """Casts to fp32 and back with a matrix product among the kernels between them, of which there are at most `widest`.

    The program asks for them itself, or they are gradients of such.
    """
    copies = passing_copies(case).rows.select("task", "source", "target", "op_id")
    casts: dict[int, _Cast] = {}
    for task, source, target, op in copies.iter_rows():
        outer = case.name(case.callers(op)[-1])
        casts[task] = _Cast(source, target, outer in ASKED, BACKWARD in outer)
    ops, streams = case.tasks["op_id"].to_list(), case.tasks["stream"].to_list()
    listed: list[Island] = []
    for task, cast in casts.items():
        begins = cast.target == "fp32" and cast.source in _HALVES and (cast.asked or cast.backward)
        if not begins or (listed and task <= listed[-1].casts[-1]):
            continue
        if island := _island_from(case, range(task, min(task + 1 + widest, len(ops))), casts, ops, streams):
            listed.append(island)
    return listed


def _island_from(
    case: Case, tasks: range, casts: dict[int, _Cast], ops: list[int | None], streams: list[int]
) -> Island | None:
    """The work from a cast up to the first one back on its stream, if it multiplies; None where something else runs."""
    first = tasks[0]
    up = casts[first]
    inner, between = [first], []
    for task in tasks[1:]:
        op, cast = ops[task], casts.get(task)
        if streams[task] != streams[first] or op is None:
            return None
        if not cast and _FP32 not in case.argument(op, "dtypes"):
            return None
        if not cast or cast.source == cast.target:
            between.append(task)
            continue
        inner.append(task)
        if cast.target == up.source and (cast.backward if up.backward else cast.asked):
            known = (ops[task] for task in between)
            multiplies = any(op is not None and case.name(op) in _MULTIPLIES for op in known)
            return Island(inner, between, up.backward) if multiplies else None
    return None


def in_half(case: Case, tasks: list[int]) -> dict[int, int]:
    """How long kernels take that compute in half precision: products on tensor cores, others on half the bytes."""
    work = case.with_arguments(case.tasks[tasks])
    work = work.with_columns(
        op=case.op_names(work["op_id"]),
        of_op_ns=pl.col("dur_ns").sum().over("op_id"),
    )
    durations = {}
    for task, dur, of_op_ns, op, shapes in work.select(
        "task", "dur_ns", "of_op_ns", "op", "shapes"
    ).iter_rows():
        share: float = HALF_BYTES_TIME
        if op in _MULTIPLIES:
            size = gemm.size(op, shapes)
            needed_ns = (
                gemm.time_ns(case.device, "bf16", size, ITEM_BYTES["bf16"]) if case.device and size else None
            )
            share = min((needed_ns or of_op_ns) / max(of_op_ns, 1), 1.0)
        durations[task] = round(dur * share)
    return durations
