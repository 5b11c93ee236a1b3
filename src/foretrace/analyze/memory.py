"""Memory: how much was allocated over time, the peak, and what was live at the peak."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import polars as pl

from foretrace.analyze.concepts.memory import device_memory, memory_categories, memory_curve
from foretrace.analyze.concepts.memory.memory_curve import Curve
from foretrace.analyze.concepts.trees import attribution, module_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from foretrace.units import format_value

By = Literal["category", "op", "module", "curve"]

# Operators that only allocate: what they allocate belongs to the operator that called them.
_ALLOCATORS = (
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::resize_", "aten::resize_as_", "aten::_resize_output_",
)  # fmt: skip
_BEFORE = memory_categories.CATEGORIES[memory_categories.BEFORE]
_UNKNOWN = memory_categories.CATEGORIES[memory_categories.UNKNOWN]
_NO_OPERATOR, _NO_MODULE = "(no operator)", "(outside modules)"


@analysis(
    Subject.MEMORY,
    denominators={
        "peak_pct": "of the bytes live on the device at its peak",
        "device_peak_pct": "of the device's memory",
    },
)
def memory(trace: Trace, *, by: By = "category") -> Result:
    """Peak memory of each device and what was live at the peak by category, operator or module; or the curve over time.

    From the allocator's events (profile_memory=True). The peak is the highest total that the allocator reported during
    the recording; the rows of a device sum to it. Blocks allocated before the recording are not listed one by one: at
    the peak they are the baseline minus what had been freed of it by then.

    Columns:
        peak_bytes, peak_count: bytes and blocks live at the peak.
        peak_pct: of the bytes live on the device at its peak.
        allocated_bytes, allocated_count: allocated during the recording, freed or not; with by="op", inside the
            operator, including the operators it calls.
        self_allocated_bytes, self_allocated_count: excluding the operators it calls. What operators that only allocate
            (aten::empty) allocate belongs to their caller.
        increase_bytes, self_increase_bytes: memory held at the end of the operator minus at its start, summed over
            calls (one directly inside another of the same name counts once); by time, on any thread, as in torch's
            table.
        baseline_bytes: memory held before the first event.
        device_peak_pct: the peak, of the device's memory.
        reserved_bytes: memory that the caching allocator holds.
        unused_at_peak_bytes: reserved minus allocated at the peak: cached or fragmented.

    Categories, inferred from lifetimes:
        activation: allocated in the forward pass and live when a backward pass began; includes inputs.
        gradient: allocated in a backward pass and live after it, or freed by zero_grad.
        autograd: allocated and freed in the same backward pass.
        optimizer state: allocated in an optimizer's step and kept.
        temporary: freed within the outermost operator, or the optimizer step, that allocated it.
        intermediate: allocated in the forward pass and freed before any backward pass.
        before the recording: usually parameters and optimizer state.
        unknown: allocated outside operators, or never freed and never live in a backward pass.

    torch's own `_memory_profiler` follows tensors. Its gradients, optimizer state and autograd detail are the same bytes. What
    it calls activations also holds what an optimizer computes in the first recorded step, as much as the parameters take, and
    what is `intermediate` here; it lists inputs apart. Where parameters are as large as activations it shows twice as much.

    by="module" assigns a block to the module whose forward, or whose operators' backward, allocated it.

    What it cannot tell: which tensor a block held, and parameters apart from optimizer state if both were allocated
    before the recording.
    """
    curves = _curves(trace)
    tables = {"category": _by_category, "op": _by_op, "module": _by_module, "curve": _by_curve}
    table = tables[by](trace, curves)
    values = _values(trace, curves[0])
    return Result(says=_says(curves[0], table), table=table, values=values, notes=_notes(curves))


def _curves(trace: Trace) -> list[Curve]:
    if trace.allocations.is_empty():
        asked = "profile_memory" in trace.meta.get("recorded", ())
        why = (
            "profile_memory was on, but no allocation happened in the recording"
            if asked
            else "no memory events recorded; record with profile_memory=True"
        )
        raise MissingDataError(f"{trace.path.name}: {why}")
    return memory_curve.curves(trace)


def _blocks(trace: Trace, curve: Curve) -> pl.DataFrame:
    """The listed blocks of a device, with `live`: whether each was live at the peak."""
    blocks = memory_curve.blocks_of(trace, curve.device).with_row_index("row")
    live = memory_curve.live_at(blocks, curve.peak_at_ns)["row"]
    return blocks.with_columns(live=pl.col("row").is_in(live.implode()))


def _at_peak(curve: Curve, blocks: pl.DataFrame, key: str) -> pl.DataFrame:
    """Live bytes and blocks at the peak by a column of the blocks, plus what is not listed: the rows sum to the peak."""
    if not curve.addressed:
        return _rows(key, [(_UNKNOWN, curve.peak_bytes, None)])
    live = blocks.filter("live").group_by(key, maintain_order=True)
    listed = live.agg(peak_bytes=pl.col("size_bytes").sum(), peak_count=pl.len().cast(pl.Int64))
    left = curve.peak_bytes - int(listed["peak_bytes"].sum())
    freed_later = int(blocks.filter(pl.col("start_ns").is_null())["size_bytes"].sum())
    unlisted = min(max((curve.baseline_bytes or 0) - freed_later, 0), max(left, 0))
    rest = [(_BEFORE, unlisted, None), (_UNKNOWN, left - unlisted, None)]
    rows = pl.concat((listed, _rows(key, [row for row in rest if row[1] > 0])))
    return rows.group_by(key, maintain_order=True).agg(
        pl.col("peak_bytes").sum(),
        pl.when(pl.col("peak_count").null_count() == 0).then(pl.col("peak_count").sum()),
    )


def _rows(key: str, rows: list[tuple[str, int, None]]) -> pl.DataFrame:
    return pl.DataFrame(
        rows, schema={key: pl.String, "peak_bytes": pl.Int64, "peak_count": pl.Int64}, orient="row"
    )


def _joined(curve: Curve, blocks: pl.DataFrame, key: str) -> pl.DataFrame:
    """What was live at the peak and what was allocated in the recording, by a column of the blocks."""
    made = blocks.filter(pl.col("start_ns").is_not_null()).group_by(key, maintain_order=True)
    allocated = made.agg(allocated_bytes=pl.col("size_bytes").sum(), allocated_count=pl.len().cast(pl.Int64))
    table = _at_peak(curve, blocks, key).join(allocated, on=key, how="full", coalesce=True)
    return _finished(curve, table, key)


def _finished(curve: Curve, table: pl.DataFrame, key: str) -> pl.DataFrame:
    """Device first, shares added, the largest part of the peak first."""
    zero = [name for name in ("allocated_bytes", "allocated_count") if name in table.columns]
    live = [name for name in ("peak_bytes",) if curve.addressed]
    table = table.with_columns(pl.col(name).fill_null(0) for name in (*zero, *live))
    whole = int(table["peak_bytes"].sum())
    share = 100 * pl.col("peak_bytes") / whole if whole else pl.lit(None, pl.Float64)
    first: list[Any] = [
        pl.lit(curve.device).alias("device_name"),
        key,
        "peak_bytes",
        share.alias("peak_pct"),
        "peak_count",
    ]
    table = table.select(*first, pl.exclude(key, "peak_bytes", "peak_count"))
    order = [name for name in ("peak_bytes", "allocated_bytes") if name in table.columns]
    return table.sort(
        *order, key, descending=(*[True] * len(order), False), nulls_last=True, maintain_order=True
    )


def _by_category(trace: Trace, curves: list[Curve]) -> pl.DataFrame:
    blocks = [_blocks(trace, curve) for curve in curves]
    category = memory_categories.categories(trace, pl.concat(blocks))
    tables = []
    for curve, of_device in zip(curves, blocks, strict=True):
        label = category.head(of_device.height) if curve.addressed else pl.lit(_UNKNOWN)
        category = category.slice(of_device.height)
        tables.append(_joined(curve, of_device.with_columns(label.alias("category")), "category"))
    return pl.concat(tables)


def _by_module(trace: Trace, curves: list[Curve]) -> pl.DataFrame:
    tree = module_tree.find(trace)
    given = attribution.attribute(trace, tree.carried)
    names = pl.Series([*tree.paths, "(optimizer)", "(backward of no module)", _NO_MODULE], dtype=pl.String)
    tables = []
    for curve in curves:
        blocks = _blocks(trace, curve)
        ops = blocks["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
        owner = np.where(ops == NOBODY, NOBODY, given.owner[ops])
        module = names.gather(np.where(owner == NOBODY, len(names) - 1, owner))
        tables.append(_joined(curve, _labelled(blocks, module, "module", curve), "module"))
    return pl.concat(tables)


def _labelled(blocks: pl.DataFrame, label: pl.Series, key: str, curve: Curve) -> pl.DataFrame:
    """The blocks with a label; those allocated before the recording are labelled as such."""
    old = pl.col("start_ns").is_null() if curve.addressed else pl.lit(value=False)
    return blocks.with_columns(label.alias(key)).with_columns(
        pl.when(old).then(pl.lit(_BEFORE)).otherwise(pl.col(key)).alias(key)
    )


def _by_op(trace: Trace, curves: list[Curve]) -> pl.DataFrame:
    calls = _op_calls(trace)
    tables = []
    for curve in curves:
        blocks = _blocks(trace, curve)
        rows = blocks["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
        caller = np.where(rows == NOBODY, NOBODY, calls["around"][rows])
        caller = np.where(caller == NOBODY, rows, caller)  # an allocator that no operator called
        name = calls["name"].gather(pl.Series(caller).set(pl.Series(caller == NOBODY), None)).cast(pl.String)
        blocks = _labelled(blocks, name.fill_null(_NO_OPERATOR), "op", curve)
        table = _at_peak(curve, blocks, "op").join(
            _op_statistics(calls, blocks), on="op", how="full", coalesce=True
        )
        tables.append(_finished(curve, table, "op"))
    return pl.concat(tables)


def _op_calls(trace: Trace) -> dict[str, Any]:
    """Operators that do more than allocate, or have no caller: their ids, callers, names and times."""
    spans = trace.spans
    parent = attribution.parents(trace)
    is_op = (spans["kind"] == "op").to_numpy()
    names = spans["name"].unique()
    only_allocates = spans["name"].is_in(names.filter(names.cast(pl.String).is_in(_ALLOCATORS)).implode())
    around = attribution.nearest(parent, is_op & ~only_allocates.to_numpy())
    ids = np.flatnonzero(is_op & ((around == np.arange(len(parent))) | (around == NOBODY)))
    above = np.where(parent[ids] == NOBODY, NOBODY, around[parent[ids]])
    start = spans["start_ns"].to_numpy()[ids]
    return {
        "around": around, "name": spans["name"], "ids": ids, "above": above, "start": start,
        "end": start + spans["dur_ns"].fill_null(0).to_numpy()[ids],
    }  # fmt: skip


def _op_statistics(calls: dict[str, Any], blocks: pl.DataFrame) -> pl.DataFrame:
    """By operator name: bytes and blocks allocated, and the increase, self and total."""
    ids, above = calls["ids"], calls["above"]
    events = memory_curve.changes(blocks)
    at, amount = events["at_ns"].to_numpy(), events["bytes"].to_numpy()
    low, high = (
        np.searchsorted(at, calls["start"], side="left"),
        np.searchsorted(at, calls["end"], side="right"),
    )
    active = np.flatnonzero(high > low)  # most calls touch no memory
    low, high = low[active], high[active]
    total = {
        "increase_bytes": _summed(amount, low, high),
        "allocated_bytes": _summed(np.maximum(amount, 0), low, high),
        "allocated_count": _summed((amount > 0).astype(np.int64), low, high),
    }
    place = np.full(len(calls["around"]) + 1, NOBODY)
    place[ids[active]] = np.arange(len(active))
    caller = place[above[active]]
    codes = calls["name"].to_physical().to_numpy()
    name_code = codes[ids[active]]
    again = (caller != NOBODY) & (name_code == name_code[caller])
    columns: dict[str, Array] = {}
    for name, held in total.items():
        columns[f"self_{name}"] = held - attribution.sums(caller, held, len(held))
        columns[name] = np.where(again, 0, held)
    frame = pl.DataFrame(columns).with_columns(op=calls["name"].gather(ids[active]))
    order = ("self_allocated_bytes", "self_allocated_count", "allocated_bytes", "allocated_count",
             "self_increase_bytes", "increase_bytes")  # fmt: skip
    grouped = frame.group_by("op", maintain_order=True).agg(pl.col(name).sum() for name in order)
    return grouped.with_columns(pl.col("op").cast(pl.String))


def _summed(amount: Array, low: Array, high: Array) -> Array:
    running = np.concatenate(([0], np.cumsum(amount)))
    within: Array = running[high] - running[low]
    return within


def _by_curve(trace: Trace, curves: list[Curve]) -> pl.DataFrame:
    return pl.concat(
        curve.points.select(
            pl.lit(curve.device).alias("device_name"), "at_ns", "allocated_bytes", "reserved_bytes"
        )
        for curve in curves
    )


def _values(trace: Trace, curve: Curve) -> dict[str, Value]:
    reserved = curve.reserved_at_peak_bytes
    capacity = device_memory.recorded_bytes(trace, curve.device)
    last = int(curve.points["allocated_bytes"][-1])
    return {
        "device_name": curve.device,
        "peak_bytes": curve.peak_bytes,
        "device_peak_pct": 100 * curve.peak_bytes / capacity if capacity and curve.absolute else None,
        "peak_at_ns": curve.peak_at_ns,
        "peak_step": curve.peak_step,
        "baseline_bytes": curve.baseline_bytes,
        "end_bytes": last if curve.absolute else None,
        "reserved_peak_bytes": curve.reserved_peak_bytes,
        "reserved_at_peak_bytes": reserved,
        "unused_at_peak_bytes": None if reserved is None else max(reserved - curve.peak_bytes, 0),
        "allocated_bytes": int(memory_curve.blocks_of(trace, curve.device).select(
            pl.col("size_bytes").filter(pl.col("start_ns").is_not_null()).sum()).item()),
    }  # fmt: skip


def _says(curve: Curve, table: pl.DataFrame) -> str:
    when = f" in step {curve.peak_step}" if curve.peak_step is not None else ""
    above = "" if curve.absolute else " above the level at the start of the recording"
    says = f"{curve.device} peaked at {format_value('_bytes', curve.peak_bytes)}{above}{when}"
    if "peak_pct" not in table.columns or not curve.addressed:
        return says
    largest = table.filter(pl.col("device_name") == curve.device).drop_nulls("peak_pct").head(1)
    parts = [f"{row['peak_pct']:.1f} % of it: {row[table.columns[1]]}" for row in largest.to_dicts()]
    return "; ".join((says, *parts))


def _notes(curves: list[Curve]) -> tuple[str, ...]:
    notes = []
    if unaddressed := [curve.device for curve in curves if not curve.addressed]:
        notes.append(
            f"{', '.join(unaddressed)}: addresses were not recorded, so what was live at the peak is not known"
        )
    if relative := [curve.device for curve in curves if not curve.absolute]:
        notes.append(
            f"{', '.join(relative)}: totals were not recorded; the curve starts from 0 at the first event"
        )
    if any(curve.device == "cpu" for curve in curves):
        notes.append("cpu: totals count from the start of the profiler and exclude earlier allocations")
    held = {curve.device: curve.baseline_bytes for curve in curves if curve.baseline_bytes}
    if held:
        listed = ", ".join(f"{format_value('_bytes', size)} on {device}" for device, size in held.items())
        notes.append(f"allocated before the recording, so not listed by origin: {listed}")
    return tuple(notes)
