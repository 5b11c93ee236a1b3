"""Layers: GPU time of each block of a model in a step, for prefill and decode apart."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_roles, device_time, model_layers
from foretrace.analyze.concepts.device.step_kinds import step_kinds
from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_OUTSIDE = "(outside layers)"
_EXPERT_OPS = r"moe_forward|fused_experts|fused_moe"
_EXPERT_KERNELS = r"(?i)moe|expert|matmul_ogs|topk_forward|bitmatrix|combined_routing|finalize_matmul"
_PARTS = {
    "attention_ns": (device_roles.FUSED_ATTENTION, device_roles.ATTENTION_PIECES),
    "product_ns": ("gemm", "convolution"),
    "norm_ns": ("norm",),
    "communication_ns": ("communication",),
}
_SOURCES = {
    "modules": "layers are modules of one class beside one another",
    "kernels": "no modules recorded: a layer is found by its attention kernels, and begins where the same work precedes them",
}


@analysis(
    Subject.CODE,
    keep=(
        "kind",
        "layer",
        "device_ns",
        "device_pct",
        "attention_ns",
        "product_ns",
        "experts_ns",
        "steps_count",
    ),
    denominators={
        "device_pct": "of the GPU time of a step of this kind",
        "layers_pct": "of the summed duration of all GPU work launched in steps",
    },
)
def layers(trace: Trace, *, by: Literal["layer", "kind"] = "layer") -> Result:
    """GPU time of each layer in a step, for prefill and decode steps apart, by attention, products, experts and the rest.

    One row per kind of step and layer, and one for the work outside layers; with --by kind, one row per kind of step, with
    the mean of its layers. Kernels of CUDA graphs count, with modules where the capture is known (`--capture-trace`).

    Columns:
        kind: prefill, decode or mixed, by the name of the step (vLLM, SGLang, ranges called so), else by kernels that are
            called prefill or decode, else by the queries of attention operators; null where nothing tells.
        layer: the module, or the number of the layer where there are no modules.
        layers_count: with --by kind, the layers of a step.
        steps_count: steps of that kind. All times are means over them.
        kernels_count: kernels, copies and memsets in a step.
        device_ns: their summed duration; by the step that launched them.
        attention_ns, product_ns, norm_ns, communication_ns: the parts of it, by role.
        experts_ns: what runs the experts of a mixture: routing, products and sums; not in the other parts.
        other_ns: the rest.

    Layers are the modules of one class under one parent that take most GPU time. Without modules, each run of attention
    kernels in a step is a layer: it begins with the norms, products and collectives that precede every run in the same order.

    What it cannot tell: layers without attention where no modules were recorded; a draft model's layers apart from those of
    the model, without modules.
    """
    work = device_roles.classified(trace)
    if work.is_empty():
        raise MissingDataError(f"{trace.path.name}: no GPU work recorded; record with ProfilerActivity.CUDA")
    found = model_layers.find(trace, work)
    kinds = step_kinds(trace, work)
    rows = _rows(trace, work, found, kinds)
    rows = rows.filter(pl.col("step").is_not_null()) if kinds else rows
    steps = _steps_of(kinds, rows)
    table = _table(rows, found, steps)
    values = _values(rows, found, steps)
    if by == "kind":
        table = _by_kind(table)
    return Result(
        says=_says(values, _by_kind(table) if by == "layer" else table),
        table=table,
        values=values,
        notes=(_SOURCES[found.source], *_notes(steps)),
    )


def _rows(
    trace: Trace, work: pl.DataFrame, found: model_layers.Layers, kinds: dict[int, str | None]
) -> pl.DataFrame:
    """All work with its layer, its kind of step and its part."""
    role = device_roles.role_names()
    part = pl.lit("other_ns")
    for name, roles in _PARTS.items():
        part = pl.when(role.is_in(roles)).then(pl.lit(name)).otherwise(part)
    experts = pl.Series(_of_experts(trace, work)) & (
        work["role"] != device_roles.ROLES.index("communication")
    )
    part = pl.when(experts).then(pl.lit("experts_ns")).otherwise(part)
    return work.select("step", "dur_ns", part=part).with_columns(
        layer=pl.Series(found.layer),
        kind=pl.col("step").replace_strict(kinds, default=None, return_dtype=pl.String),
    )


def _of_experts(trace: Trace, work: pl.DataFrame) -> Array:
    """Whether work runs the experts of a mixture: inside such an operator, or by its name."""
    spans = trace.spans.select("kind", "name")
    expert_ops = device_time.names_like(spans.filter(pl.col("kind") == "op"), _EXPERT_OPS)
    marked = ((spans["kind"] == "op") & spans["name"].is_in(expert_ops)).to_numpy()
    around = attribution.nearest(trace.spans["parent_id"].cast(pl.Int32).fill_null(NOBODY).to_numpy(), marked)
    op = work["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    inside = np.append(around, NOBODY)[op] != NOBODY  # NOBODY is the last place
    by_name = work["name"].is_in(device_time.names_like(work, _EXPERT_KERNELS)).to_numpy()
    return np.asarray(inside | by_name)


def _steps_of(kinds: dict[int, str | None], rows: pl.DataFrame) -> dict[str | None, int]:
    """Steps with work of each kind; one step where none are marked."""
    if not kinds:
        return {None: 1}
    counted_steps: dict[str | None, int] = {}
    for step in rows["step"].unique().to_list():
        kind = kinds.get(step)
        counted_steps[kind] = counted_steps.get(kind, 0) + 1
    return counted_steps


def _table(rows: pl.DataFrame, found: model_layers.Layers, steps: dict[str | None, int]) -> pl.DataFrame:
    """One row per kind and layer, in the order of layers, what is outside last."""
    parts = (*_PARTS, "experts_ns", "other_ns")
    sums = rows.group_by("kind", "layer", maintain_order=True).agg(
        kernels_count=pl.len(),
        device_ns=pl.col("dur_ns").sum(),
        **{name: pl.col("dur_ns").filter(pl.col("part") == name).sum() for name in parts},
    )
    steps_count = pl.DataFrame(
        {"kind": list(steps), "steps_count": list(steps.values())},
        schema={"kind": pl.String, "steps_count": pl.Int64},
    )
    table = sums.join(steps_count, on="kind", how="left", nulls_equal=True, maintain_order="left")
    means = ("kernels_count", "device_ns", *parts)
    table = table.with_columns(device_pct=100 * pl.col("device_ns") / pl.col("device_ns").sum().over("kind"))
    table = table.with_columns(pl.col(name) / pl.col("steps_count") for name in means)
    outside = pl.col("layer") == NOBODY
    table = table.sort("kind", outside, "layer", nulls_last=True)
    names = [_OUTSIDE if place == NOBODY else found.names[place] for place in table["layer"].to_list()]
    first = ("kind", "layer", "steps_count", "kernels_count", "device_ns", "device_pct")
    return table.with_columns(pl.Series("layer", names, pl.String)).select(*first, *parts)


def _by_kind(table: pl.DataFrame) -> pl.DataFrame:
    """One row per kind of step: the mean of its layers, and what is outside them."""
    inside = table.filter(pl.col("layer") != _OUTSIDE)
    measures = [name for name in table.columns if name.endswith("_ns") or name == "kernels_count"]
    means = inside.group_by("kind", maintain_order=True).agg(
        pl.col("steps_count").first(),
        *(pl.col(name).mean() for name in measures),
        layers_count=pl.len(),
        layers_ns=pl.col("device_ns").sum(),
    )
    outside = table.filter(pl.col("layer") == _OUTSIDE).select("kind", outside_ns="device_ns")
    first = ("kind", "layers_count", "steps_count", "device_ns", "layers_ns", "outside_ns")
    joined = means.join(outside, on="kind", how="left", nulls_equal=True, maintain_order="left")
    return joined.select(*first, pl.exclude(first))


def _values(rows: pl.DataFrame, found: model_layers.Layers, steps: dict[str | None, int]) -> dict[str, Value]:
    total = int(rows["dur_ns"].sum())
    inside = int(rows.filter(pl.col("layer") != NOBODY)["dur_ns"].sum())
    return {
        "layers_count": len(found.names),
        "source": found.source,
        "steps_count": sum(steps.values()),
        "layers_pct": 100 * inside / total if total else None,
    }


def _says(values: dict[str, Value], kinds: pl.DataFrame) -> str:
    share = values["layers_pct"]
    inside = f"{share:.1f} % of GPU time" if isinstance(share, float) else "no GPU time"
    each = "; ".join(
        f"{row['kind'] or 'a step'}: {format_value('_ns', row['device_ns'])} a layer"
        for row in kinds.iter_rows(named=True)
    )
    return f"{inside} is in {counted(int(values['layers_count'] or 0), 'layer')}" + (
        f"; {each}" if each else ""
    )


def _notes(steps: dict[str | None, int]) -> tuple[str, ...]:
    if any(steps) or not steps:
        return ()
    return (
        "nothing tells prefill from decode here: mark steps with ranges that are called prefill and decode",
    )
