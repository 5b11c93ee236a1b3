"""`roofline`: kernels as marks under the roofs of their device."""

from __future__ import annotations

from typing import Any

import polars as pl

from foretrace.analyze.concepts.device import device_peaks, device_time
from foretrace.analyze.concepts.device.device_peaks import DTYPES, Peaks
from foretrace.hardware import Device
from foretrace.present.web.kinds import kernel_kind
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.short_names import short
from foretrace.units import format_value

_MARKS = 400


def roofline(view: RecordingView) -> dict[str, Any]:
    """Marks for the kernels whose work is known, the roofs, and what has no mark."""
    result = view.result("roofline", group_by="kernel")
    peaks = next(iter(device_peaks.device_peaks(view.trace).values()))
    table = result.table
    placed = table.drop_nulls(("achieved_flops_per_s", "intensity_flops_per_byte")).filter(
        (pl.col("achieved_flops_per_s") > 0) & (pl.col("intensity_flops_per_byte") > 0)
    )
    examples = _examples(view)
    return {
        "says": result.says,
        "device": peaks.name,
        "roofs": _roofs(view, peaks),
        "marks": [_mark(row, examples) for row in placed.head(_MARKS).iter_rows(named=True)],
        "without": _without(table, placed),
    }


def _examples(view: RecordingView) -> dict[str, int]:
    """For each kernel name, its longest span."""
    spans = view.trace.device_spans.filter(pl.col("kind") == "kernel")
    longest = spans.sort("dur_ns", descending=True).group_by("name", maintain_order=True).first()
    return dict(zip(longest["name"].cast(pl.String), longest["id"], strict=True))


def _mark(row: dict[str, Any], examples: dict[str, int]) -> dict[str, Any]:
    name = str(row["kernel"])
    said = [format_value("_flops_per_s", row["achieved_flops_per_s"])]
    if row["achieved_bytes_per_s"] is not None:
        said.append(format_value("_bytes_per_s", row["achieved_bytes_per_s"]))
    if row["roof_pct"] is not None:
        said.append(f"{row['roof_pct']:.0f} % of its roof ({row['bound']})")
    if row["note"]:
        said.append(row["note"])
    return {
        "name": f"{short(name, 'kernel')}{_of(row)}",
        "kind": kernel_kind(name),
        "flops_per_byte": row["intensity_flops_per_byte"],
        "flops_per_s": row["achieved_flops_per_s"],
        "total_ns": row["total_ns"],
        "calls": row["calls_count"],
        "span": examples.get(name, 0),
        "says": ", ".join(said),
    }


def _of(row: dict[str, Any]) -> str:
    """The operator behind the kernel, where the row names one."""
    op = row.get("op")
    return f", {short(str(op), 'op')}" if op else ""


def _roofs(view: RecordingView, peaks: Peaks) -> list[dict[str, Any]]:
    device = _device(view)
    sources = device.sources if device else {}
    roofs = []
    if peaks.memory_bytes_per_s:
        label = f"memory {format_value('_bytes_per_s', peaks.memory_bytes_per_s)}"
        source = _source(sources, "memory_bandwidth_bytes")
        roofs.append({"label": label, "kind": "memory", "per_s": peaks.memory_bytes_per_s, "source": source})
    for dtype in DTYPES:
        peak = peaks.flops[dtype]
        if peak:
            label = f"{dtype} {format_value('_flops_per_s', peak)}"
            roofs.append(
                {
                    "label": label,
                    "kind": "compute",
                    "per_s": peak,
                    "source": _source(sources, f"{dtype}_flops"),
                }
            )
    return roofs


def _source(sources: Any, name: str) -> str:
    return str(sources.get(name) or sources.get("*") or next(iter(sources.values()), ""))


def _device(view: RecordingView) -> Device | None:
    for recorded in device_time.device_properties(view.trace).values():
        found = device_peaks.find_device(recorded)
        if found:
            return found
    return None


def _without(table: pl.DataFrame, placed: pl.DataFrame) -> str:
    """How much kernel time has no mark, and why."""
    whole, shown = int(table["total_ns"].sum()), int(placed["total_ns"].sum())
    if not whole or whole == shown:
        return ""
    unmodelled = table.filter(pl.col("model").is_null())
    reasons = unmodelled.group_by("note").agg(pl.col("total_ns").sum()).sort("total_ns", descending=True)
    listed = [
        f"{note or 'no model'} ({100 * spent / whole:.1f} %)" for note, spent in reasons.head(3).iter_rows()
    ]
    still = whole - shown - int(unmodelled["total_ns"].sum())
    if still > 0:
        listed.append(f"only moves data, so it has no FLOPs ({100 * still / whole:.1f} %)")
    return f"{100 * (whole - shown) / whole:.1f} % of kernel time has no mark: {'; '.join(listed)}"
