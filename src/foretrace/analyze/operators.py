"""Operators: torch.profiler's `key_averages()` table, from the saved recording.

Rows and columns are torch's (host for CPU, device for CUDA), including its surprises: an annotation has a second row
for its extent on the device, whose share exceeds 100 % where it covers idle time; a runtime call without an operator
counts on the main thread; overhead repeats the device time of the operator it interrupts.

What the file does not contain, so that torch's own table may differ:
- whether an event ended on another thread: torch gives such "async" events no self time;
- changes of no bytes in the allocator's log, which torch counts as calls of `[memory]`;
- a runtime call without External id whose correlation id equals an operator's id: torch mixes the two up;
  device work without External id, launched inside an operator, belongs to that operator here, not in torch;
- stacks of backward kernels: torch shows where the main thread stood, here they have none;
- names that were saved mangled stay so, and the FLOPs of with_flops are in no file that torch 2.x writes: they come
  from shapes here;
- torch knows stacks only with `_ExperimentalConfig(verbose=True)`, else its rows by stack are those by name;
  it puts an annotation under the frame that was open when it began, here it is the frame that contains it.
Kineto writes an annotation's extent on the device 2 ns too long; that is taken back.
"""

from __future__ import annotations

import json
from typing import Literal

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device.phases import tensor_core_eligible
from foretrace.analyze.concepts.trees import call_stacks, call_tree
from foretrace.analyze.concepts.trees.call_tree import CallTree
from foretrace.analyze.concepts.work import operator_work
from foretrace.analyze.concepts.work.operator_flags import flag_notes, with_flags
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError, UsageError, unknown
from foretrace.trace import Trace
from foretrace.units import format_value

_GROUPS = {"name": (), "shape": ("shapes",), "stack": ("stack",)}
_KEYS = ("name", "on", "annotation")
_ON = pl.Enum(("host", "device"))
_TIMES = ("host_self_ns", "host_total_ns", "device_self_ns", "device_total_ns")
# Sums per row, of which the shares on tensor cores and the FLOPs are made.
_WORK = ("flops", "has_flops", "core_self_ns", "told_self_ns", "core_total_ns", "told_total_ns")
_MEMORY = ("host_memory_bytes", "host_self_memory_bytes", "device_memory_bytes", "device_self_memory_bytes")
# Kineto's writer starts it 1 ns early and ends it 1 ns late, so that viewers draw it around its kernels.
_ANNOTATION_MARGIN_NS = 2
# The names that torch counts as device memory, and MTIA's; the rest of what is not "cpu" it counts nowhere.
_DEVICE_MEMORY = r"^(cuda|hip|xpu|mtia|privateuseone)(:|$)"


@analysis(
    Subject.WORK,
    keep=(
        "name",
        "device_self_ns",
        "device_self_pct",
        "host_self_ns",
        "host_self_pct",
        "calls_count",
        "kind",
        "device_total_ns",
        "host_total_ns",
    ),
    denominators={
        "host_self_pct": "of the self time of all host calls",
        "host_total_pct": "of the self time of all host calls",
        "device_self_pct": "of the time of all kernels, copies and memsets, excluding annotations",
        "tensor_core_self_pct": "of the row's own kernels whose names tell",
        "tensor_core_total_pct": "of the row's kernels, those of the calls inside it included, whose names tell",
    },
)
def operators(
    trace: Trace,
    *,
    group_by: Literal["name", "shape", "stack"] = "name",
    stack_depth: int = 5,
    python: Literal["auto", "yes", "no"] = "auto",
) -> Result:
    """Operators, calls and kernels with self and total time and memory, as in torch's table; by name, shape or stack.

    Rows and columns are those of torch.profiler's key_averages(), computed from the saved file.

    Columns:
        host_total_ns: sum of the durations on the host.
        host_self_ns: total minus the calls directly inside. It can be negative where a child outlives its parent.
        device_self_ns: summed duration of the kernels, copies and memsets that the operator itself launched.
        device_total_ns: the same, including those launched by the operators inside it.
        host_mean_ns, device_mean_ns: total / calls_count.
        host_self_pct, host_total_pct: of the self time of all host calls.
        device_self_pct: of the time of all kernels, copies and memsets, excluding annotations. An annotation's row on
            the device includes idle time, so it can exceed 100 %.
        host_memory_bytes, device_memory_bytes: allocated minus freed between start and end; negative where more was
            freed. The self columns exclude the calls inside.
        total_flops: FLOPs of the operator and of those inside it: as counted by with_flops where the file contains
            it, else from recorded shapes (as in `roofline`). A product counts once, however many operators wrap it.
        tensor_core_eligible: whether tensor cores can run the operator (conv*, mm, bmm, addmm, linear, RNNs, ...: the
            TensorBoard plugin's list), or its own kernels use them, as fused attention's do.
        tensor_core_self_pct, tensor_core_total_pct: the time of the row's kernels that use tensor cores (matrix cores
            on AMD) by name; null where no name tells.
        flags: what is odd: "total far above self" (an operator of at least 5 % of the host time whose total
            is 10 times its self time), "many calls" (at least 1,000 a step), "negative self time".

    Kernels that overlap each count in full, so sums can exceed the elapsed time.

    What it cannot tell, because the file does not contain it, so that torch's own table may differ: whether an event
    ended on another thread (torch gives it no self time); zero-byte changes in the allocator's log; stacks of backward
    kernels (torch shows where the main thread was); FLOPs, in files of torch 2.x. GPU work without an id of its own
    that was launched inside an operator is attributed to that operator here.
    """
    if group_by not in _GROUPS:
        raise unknown(f"operators cannot group by {group_by!r}", group_by, _GROUPS, listed="choose from")
    if python not in ("auto", "yes", "no"):
        raise UsageError(f"python must be auto, yes or no, not {python!r}")
    if stack_depth < 1:
        raise UsageError(f"stack_depth must be at least 1, not {stack_depth}")
    tree = call_tree.build(trace, python=python == "yes" or (python == "auto" and _counts_python(trace)))
    device = _device_events(trace)
    if not len(tree.span_id) and device.is_empty():
        raise MissingDataError(
            f"{trace.path.name}: no operators or kernels recorded; record with ProfilerActivity.CPU"
        )
    events = [_host_events(trace, tree), device]
    if group_by == "shape":
        events = [_with_shapes(trace, frame) for frame in events]
    elif group_by == "stack":
        events = call_stacks.add(trace, tree, *events, depth=stack_depth)
    table = _grouped([*events, _loose_memory(trace, tree)], _GROUPS[group_by])
    table, values = _shares(with_flags(trace, _blank(trace, table, has_device=device.height > 0)))
    return Result(says=_says(table, values), table=table, values=values, notes=_notes(table))


def _counts_python(trace: Trace) -> bool:
    """Whether the torch that made the recording counts Python functions as rows: 2.13 does, 2.11 does not.

    No version is in the file. Files of 2.13 have a host name in their header, those of 2.11 have none; which
    way 2.12 goes was not tried.
    """
    return "host_name" in trace.meta.get("header", ())


def _host_events(trace: Trace, tree: CallTree) -> pl.DataFrame:
    """One row per host call."""
    total = tree.end_ns - tree.start_ns
    columns = {
        "host_self_ns": total - tree.per_parent(total),
        "host_total_ns": total,
        "device_self_ns": tree.device_ns,
        "device_total_ns": tree.with_callees(tree.device_ns),
    }
    for where, changes in _memory_changes(trace).items():
        held = _within(changes, tree)
        columns[f"{where}_memory_bytes"] = held
        columns[f"{where}_self_memory_bytes"] = held - tree.per_parent(held)
    work = operator_work.operator_work(trace, tree)
    columns |= {
        "flops": tree.with_callees(work.flops),
        "has_flops": tree.with_callees(work.has_flops),
        "core_self_ns": work.tensor_core_ns,
        "told_self_ns": work.told_ns,
        "core_total_ns": tree.with_callees(work.tensor_core_ns),
        "told_total_ns": tree.with_callees(work.told_ns),
    }
    frame = trace.spans.select("id", "name", "kind")[tree.span_id]
    events = frame.with_columns(on=pl.lit("host", _ON), annotation=pl.col("kind") == "annotation")
    return events.hstack(pl.DataFrame(columns))


def _device_events(trace: Trace) -> pl.DataFrame:
    """One row per GPU task, and per annotation's extent on a device."""
    on_device = trace.tracks.filter(pl.col("device").is_not_null())["id"]
    annotation = pl.col("kind") == "annotation"
    work = pl.col("kind").is_in(("kernel", "copy", "set", "sync"))
    spans = trace.spans.filter(work | (annotation & pl.col("track_id").is_in(on_device.implode())))
    zero = pl.lit(0, pl.Int64)
    dur = pl.col("dur_ns").fill_null(0)
    if trace.meta.get("base_ns") is not None:  # files in nanoseconds; older ones are in whole microseconds
        dur = pl.when(annotation).then((dur - _ANNOTATION_MARGIN_NS).clip(lower_bound=0)).otherwise(dur)
    cores = pl.Series(operator_work.tensor_cores(spans["name"]))
    runs = pl.col("kind") == "kernel"
    used = pl.when(runs & (cores == operator_work.YES)).then(dur).otherwise(zero)
    told = pl.when(runs & (cores != operator_work.UNTOLD)).then(dur).otherwise(zero)
    return spans.select(
        "id", "name", "kind", "launch_id", "op_id", on=pl.lit("device", _ON), annotation=annotation,
        host_self_ns=zero, host_total_ns=zero, device_self_ns=dur, device_total_ns=dur,
        core_self_ns=used, core_total_ns=used, told_self_ns=told, told_total_ns=told, flops=zero, has_flops=zero,
        **dict.fromkeys(_MEMORY, zero),
    )  # fmt: skip


def _memory_changes(trace: Trace) -> dict[str, pl.DataFrame]:
    """For host and device, the bytes allocated (or, negative, freed) over time, in order."""
    blocks = trace.allocations.select("start_ns", "end_ns", "size_bytes", "device")
    size = pl.col("size_bytes")
    changes = pl.concat(
        (
            blocks.select("device", at_ns="start_ns", bytes=size),
            blocks.select("device", at_ns="end_ns", bytes=-size),
        )
    )
    changes = changes.drop_nulls("at_ns").sort("at_ns", maintain_order=True)
    return {
        "host": changes.filter(pl.col("device") == "cpu"),
        "device": changes.filter(pl.col("device").str.contains(_DEVICE_MEMORY)),
    }


def _within(changes: pl.DataFrame, tree: CallTree) -> call_tree.Array:
    """For each call, the bytes allocated between its start and end, on any thread: torch goes by time alone."""
    at = changes["at_ns"].to_numpy()
    held = np.concatenate(([0], np.cumsum(changes["bytes"].to_numpy())))
    upto = np.searchsorted(at, tree.end_ns, side="right")
    within: call_tree.Array = held[upto] - held[np.searchsorted(at, tree.start_ns, side="left")]
    return within


def _loose_memory(trace: Trace, tree: CallTree) -> pl.DataFrame:
    """One row per memory change outside all host calls; torch names them `[memory]`."""
    order = np.argsort(tree.start_ns, kind="stable")  # a few sorted runs: quick to merge
    start = tree.start_ns[order]
    reach = np.maximum.accumulate(tree.end_ns[order])
    frames = []
    for where, changes in _memory_changes(trace).items():
        at = changes["at_ns"].to_numpy()
        before = np.searchsorted(start, at, side="right") - 1
        loose = before < 0
        if len(start):
            loose |= reach[before] < at
        taken = pl.col("bytes")
        frames.append(
            changes.filter(pl.Series(loose, dtype=pl.Boolean)).select(
                name=pl.lit("[memory]"), kind=pl.lit("memory"), on=pl.lit("host", _ON), annotation=pl.lit(False),
                **dict.fromkeys((*_TIMES, *_WORK), pl.lit(0, pl.Int64)),
                **{
                    column: taken if column.startswith(where) else pl.lit(0, pl.Int64) for column in _MEMORY
                },
            )
        )  # fmt: skip
    return pl.concat(frames)


def _with_shapes(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """The events with their input shapes as torch prints them; null where there are none."""
    shapes = trace.ops.select(pl.col("span_id").alias("id"), "shapes").drop_nulls()
    if shapes.is_empty():
        raise MissingDataError(f"{trace.path.name}: no input shapes recorded; record with record_shapes=True")
    texts = shapes["shapes"].unique().cast(pl.String).to_list()
    shown = {text: _shapes_text(text) for text in texts}
    shapes = shapes.with_columns(
        pl.col("shapes").cast(pl.String).replace_strict(shown, return_dtype=pl.String)
    )
    return events.join(shapes, on="id", how="left", maintain_order="left")


def _shapes_text(recorded: str) -> str | None:
    """Shapes as torch prints them: a list of tensors shows as []."""
    try:
        shapes = json.loads(recorded)
    except ValueError:
        return recorded
    if not isinstance(shapes, list):
        return recorded
    flat = [
        [] if isinstance(shape, list) and any(isinstance(size, list) for size in shape) else shape
        for shape in shapes
    ]
    return str(flat) if flat else None


def _grouped(events: list[pl.DataFrame], extra: tuple[str, ...]) -> pl.DataFrame:
    """One row per group; summed per recorded name first, then with all steps under one name."""
    keys = (*_KEYS, *extra)
    sums = [pl.col(column).sum() for column in (*_TIMES, *_MEMORY, *_WORK)]
    frames = [
        frame.group_by((key for key in keys if key in frame.columns), maintain_order=True)
        .agg(pl.col("kind").first(), pl.len().cast(pl.Int64).alias("calls_count"), *sums)
        .with_columns(pl.col("name", "kind", "on").cast(pl.String))
        for frame in events
    ]
    joined = pl.concat(frames, how="diagonal")
    if missing := [key for key in extra if key not in joined.columns]:
        joined = joined.with_columns(pl.lit(None, pl.String).alias(key) for key in missing)
    name = pl.when(pl.col("name").str.starts_with("ProfilerStep#")).then(pl.lit("ProfilerStep*"))
    merged = joined.with_columns(name=name.otherwise(pl.col("name"))).group_by(keys, maintain_order=True)
    return merged.agg(pl.col("kind").first(), pl.col("calls_count").sum(), *sums)


def _blank(trace: Trace, table: pl.DataFrame, *, has_device: bool) -> pl.DataFrame:
    """The table with nulls in the columns of what was not recorded."""
    has_memory = trace.allocations.height > 0 or "profile_memory" in trace.meta.get("recorded", ())
    on_device = trace.allocations["device"].str.contains(_DEVICE_MEMORY).any() or has_device
    absent: list[str] = []
    if not has_device:
        absent += ["device_self_ns", "device_total_ns"]
    if not has_memory:
        absent += _MEMORY
    elif not on_device:
        absent += ["device_memory_bytes", "device_self_memory_bytes"]
    return table.with_columns(pl.lit(None, pl.Int64).alias(column) for column in absent)


def _shares(table: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, Value]]:
    """The table with shares and means, the largest self time first, and its totals."""
    work = table.filter((pl.col("on") == "device") & ~pl.col("annotation"))
    host_ns = int(table["host_self_ns"].sum())
    has_device = table["device_self_ns"].null_count() < table.height
    device_ns = int(work["device_self_ns"].sum()) if has_device else None
    values: dict[str, Value] = {
        "host_self_ns": host_ns,
        "device_self_ns": device_ns,
        "rows_count": table.height,
        "calls_count": int(table["calls_count"].sum()),
    }
    calls = pl.col("calls_count")
    extra = [column for column in ("shapes", "stack") if column in table.columns]
    shown = table.select(
        "name", "kind", "on", *extra,
        _share("host_self_ns", host_ns).alias("host_self_pct"), "host_self_ns",
        _share("host_total_ns", host_ns).alias("host_total_pct"), "host_total_ns",
        (pl.col("host_total_ns") / calls).alias("host_mean_ns"),
        "device_self_ns", _share("device_self_ns", device_ns or 0).alias("device_self_pct"), "device_total_ns",
        (pl.col("device_total_ns") / calls).alias("device_mean_ns"),
        *_MEMORY, "calls_count", *_work(has_device=has_device), "flags",
    )  # fmt: skip
    by = ("device_self_ns", "host_self_ns") if has_device else ("host_self_ns", "host_total_ns")
    return shown.sort(by, descending=True, maintain_order=True), values


def _share(column: str, total: int) -> pl.Expr:
    return pl.col(column) * (100 / total) if total else pl.lit(None, pl.Float64)


def _work(*, has_device: bool) -> list[pl.Expr]:
    """FLOPs, and the use of tensor cores; null where it is not known, or where the row is no operator."""
    return [
        pl.when(pl.col("has_flops") > 0).then(pl.col("flops")).alias("total_flops"),
        pl.when((pl.col("kind") == "op") & has_device)
        .then(tensor_core_eligible() | (pl.col("core_self_ns") > 0))
        .alias("tensor_core_eligible"),
        *(
            pl.when(pl.col(f"told_{part}_ns") > 0)
            .then(100 * pl.col(f"core_{part}_ns") / pl.col(f"told_{part}_ns"))
            .alias(f"tensor_core_{part}_pct")
            for part in ("self", "total")
        ),
    ]


def _says(table: pl.DataFrame, values: dict[str, Value]) -> str:
    host = format_value("_ns", values["host_self_ns"])
    if values["device_self_ns"] is None:
        return f"{table.height} rows cover {host} of host time; no GPU work was recorded."
    device = format_value("_ns", values["device_self_ns"])
    return f"{table.height} rows cover {host} of host time and {device} of GPU time."


def _notes(table: pl.DataFrame) -> tuple[str, ...]:
    notes = []
    if table.filter((pl.col("on") == "device") & (pl.col("kind") == "annotation")).height:
        notes.append(
            "an annotation's row on the device runs from its first to its last kernel, including idle time"
        )
    if table.filter((pl.col("kind") == "overhead") & (pl.col("device_self_ns") > 0)).height:
        notes.append(
            "overhead rows repeat the device time of the operator they interrupted, as in torch's table"
        )
    if table.filter(pl.col("kind") == "sync").height:
        notes.append("recorded synchronisations count as device time, as in torch's table")
    if table["host_memory_bytes"].null_count():
        notes.append("memory was not recorded: record with profile_memory=True")
    return (*notes, *flag_notes(table))
