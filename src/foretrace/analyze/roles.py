"""Roles: which kind of work GPU time is spent on, and in which phase of the step."""

from __future__ import annotations

from typing import Literal

import polars as pl

from foretrace.analyze.concepts.device import attention_pieces, device_roles, device_time
from foretrace.analyze.concepts.device.device_roles import ATTENTION_PIECES, FUSED_ATTENTION, ROLES
from foretrace.analyze.concepts.device.phases import PHASES
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.steps import step_windows
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from foretrace.units import format_value

_KEYS: dict[str, list[str]] = {"both": ["role", "phase"], "role": ["role"], "phase": ["phase"]}
_SHOWN = (
    "gemm", FUSED_ATTENTION, ATTENTION_PIECES, "convolution", "copy", "communication", "unknown_role", "forward",
    "backward", "recompute", "optimizer_phase",
)  # fmt: skip
_WORK = "of GPU time: the summed duration of the kernels, copies and memsets launched in the recording"


@analysis(
    Subject.WORK,
    denominators={
        "total_pct": _WORK,
        **{f"{name.replace(' ', '_')}_pct": _WORK for name in _SHOWN},
        "per_step_ns": "a mean over complete steps, of the work they launched",
    },
)
def roles(
    trace: Trace,
    *,
    by: Literal["both", "role", "phase"] = "both",
    per_step: bool = False,
    attention_parts: bool = False,
) -> Result:
    """GPU time by role (gemm, attention, elementwise, ...) and by phase (forward, backward, ...) of the step.

    Every kernel, copy and memset launched in the recording is in exactly one row.

    Roles, from the kernel's name and the operator that launched it:
        gemm, convolution: matrix multiplies with their split-k sums; anything that serves a convolution is
            convolution.
        fused attention: flash, memory-efficient, cuDNN and similar kernels, forward and backward.
        attention pieces: unfused attention. Found by structure: a softmax over [..., Tq, Tk] whose scores come
            from a batched multiply; every operator on a tensor of that size belongs to it (QK^T, scale, mask,
            softmax, dropout, PV, their gradients, copies and casts between them). With attention_parts, one row
            for each of these.
        norm, softmax, reduction, elementwise: as named; a loss is a reduction, dropout is elementwise.
        optimizer: multi-tensor (fused or foreach) kernels. A loop over parameters is elementwise, in the
            optimizer phase.
        embedding: embedding tables, gather, scatter and indexing.
        copy: copies between memories, memsets, casts, and kernels that copy, transpose or concatenate.
        communication: NCCL and similar libraries.
        other: sorting and scans.
        unknown: unrecognised kernel names.

    Phases, from the calls around the launch:
        backward: inside an autograd node.
        recompute: a forward operator inside an autograd node, as in activation checkpointing (and in a backward
            with create_graph=True).
        optimizer: inside Optimizer.step or zero_grad.
        forward: any other work with an operator.
        unknown: no operator is linked, as in a CUDA graph.

    Columns:
        total_ns: summed durations; kernels that overlap each count in full.
        total_pct: of the sum of all rows.
        per_step_ns: total_ns of the work launched by complete steps, per step; null without steps.
        top_kernel, top_kernel_ns, top_kernel_calls_count: the kernel with the largest total in the row.
    With per_step, rows are also split by the step that launched the work, and there is no per_step_ns.

    What it cannot tell: unfused attention where shapes were not recorded (record_shapes=True), where a compiler
    fused it, or where a single matrix holds all scores; what torch.compile's own partitioner recomputes.
    """
    work = device_roles.classified(trace)
    if work.is_empty():
        raise MissingDataError(
            f"{trace.path.name}: no GPU work launched in the recording; record with ProfilerActivity.CUDA"
        )
    named = _named(work, attention_parts=attention_parts)
    keys = [*(["step"] if per_step else []), *_KEYS[by]]
    table = _grouped(trace, named, keys)
    shares = _shares(work)
    values: dict[str, Value] = {"work_count": work.height, "total_ns": int(work["dur_ns"].sum())}
    values |= {f"{name.replace(' ', '_')}_pct": shares[name] for name in _SHOWN}
    return Result(says=_says(values, shares), table=table, values=values, notes=_notes(trace, work))


def _named(work: pl.DataFrame, *, attention_parts: bool) -> pl.DataFrame:
    """The work with role and phase as text."""
    role = device_roles.role_names()
    if attention_parts:
        parts = dict(enumerate(attention_pieces.PARTS))
        part = pl.col("part").replace_strict(parts, default=None, return_dtype=pl.String)
        pieces = pl.col("role") == ROLES.index(ATTENTION_PIECES)
        role = pl.when(pieces).then(pl.lit("attention: ") + part).otherwise(role)
    columns = ("name", "dur_ns", "step")
    return work.select(*columns, role.alias("role"), device_roles.phase_names().alias("phase"))


def _grouped(trace: Trace, work: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """One row per group, the longest total first; steps in order."""
    whole = [window.number for window in step_windows(trace) if window.averaged]
    in_step = pl.col("dur_ns").filter(pl.col("step").is_in(whole)).sum()
    by_kernel = work.group_by(*keys, "name").agg(pl.len().alias("calls"), pl.col("dur_ns").sum().alias("ns"))
    top = (
        by_kernel.sort("ns", pl.col("name").cast(pl.String), descending=[True, False])
        .group_by(keys, maintain_order=True)
        .first()
        .rename({"name": "top_kernel", "ns": "top_kernel_ns", "calls": "top_kernel_calls_count"})
    )
    table = work.group_by(keys).agg(
        calls_count=pl.len(),
        total_ns=pl.col("dur_ns").sum(),
        per_step_ns=in_step / len(whole) if whole else pl.lit(None, pl.Float64),
    )
    share = 100 * pl.col("total_ns") / pl.col("total_ns").sum()
    table = table.with_columns(total_pct=pl.when(pl.col("total_ns").sum() > 0).then(share))
    table = table.join(top, on=keys, how="left", nulls_equal=True)
    measures = ["calls_count", "total_ns", "total_pct", "per_step_ns"]
    kernel = ["top_kernel", "top_kernel_calls_count", "top_kernel_ns"]
    order = [*(["step"] if "step" in keys else []), "total_ns", *_KEYS["both"]]
    order = [name for name in order if name in (*keys, "total_ns")]
    down = [name == "total_ns" for name in order]
    table = table.sort(order, descending=down, nulls_last=True).select(*keys, *measures, *kernel)
    return table.drop("per_step_ns") if "step" in keys else table


def _shares(work: pl.DataFrame) -> dict[str, float | None]:
    """The share of each role and phase."""
    total = int(work["dur_ns"].sum())
    shares = {}
    for column, names in (("role", ROLES), ("phase", PHASES)):
        sums = dict(work.group_by(column).agg(pl.col("dur_ns").sum()).iter_rows())
        for place, name in enumerate(names):
            twice = name == "unknown" or (column == "phase" and name == "optimizer")
            label = f"{name}_{column}" if twice else name
            shares[label] = 100 * int(sums.get(place, 0)) / total if total else None
    return shares


def _says(values: dict[str, Value], shares: dict[str, float | None]) -> str:
    present = [(shares[role], role) for role in ROLES[:-1] if shares[role]]
    largest = sorted(((share or 0, role) for share, role in present), reverse=True)
    parts = ", ".join(f"{role} {share:.1f} %" for share, role in largest[:4])
    says = f"{format_value('_ns', values['total_ns'])} of GPU work" + (f": {parts}" if parts else "")
    pieces, fused = shares[ATTENTION_PIECES] or 0, shares[FUSED_ATTENTION] or 0
    return f"{says}; attention is not fused" if pieces >= 1 and pieces > fused else says


def _notes(trace: Trace, work: pl.DataFrame) -> tuple[str, ...]:
    notes = []
    orphans = trace.device_spans.height - work.height
    if orphans:
        notes.append(f"{device_time.queued_before(orphans)}: excluded from all totals")
    if trace.ops["shapes"].null_count() == trace.ops.height and not _has(work, FUSED_ATTENTION):
        notes.append("no shapes recorded: unfused attention counts as gemm, softmax and elementwise")
    unknown = int(work.filter(pl.col("role") == ROLES.index("unknown"))["dur_ns"].sum())
    if unknown:
        notes.append(f"{format_value('_ns', unknown)} is in kernels with unrecognised names")
    return tuple(notes)


def _has(work: pl.DataFrame, role: str) -> bool:
    return bool((work["role"] == ROLES.index(role)).any())
