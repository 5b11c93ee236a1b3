"""Sections of a profile whose kernels tell their own scopes, as Proton's do: sums by scope, with what users counted in them.

No host time is known there: a scope is where a kernel was launched, not a range on a timeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from foretrace import hardware
from foretrace.analyze.result import Result, Value
from foretrace.errors import MissingDataError
from foretrace.ingest import totals
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_FLOPS = ("flops", "flops8", "flops16", "flops32", "flops64")
_CYCLES = ("cycles", "normalized_cycles")
_DTYPES = {"flops8": "fp8", "flops16": "fp16", "flops32": "fp32"}


def has_scopes(trace: Trace) -> bool:
    """Whether the spans tell the scopes that they are of, or the file holds sums only. torch has arguments of that name too."""
    return bool(trace.meta.get("totals")) or trace.format.startswith("proton")


def scope_sums(trace: Trace) -> Result:
    """One row per scope: device time with and without inner scopes, kernels, FLOPs, bytes and cycles where counted."""
    work = totals.table(trace).filter(pl.col("kind").is_in(("kernel", "copy", "set")))
    if not trace.meta.get("totals"):
        work = work.with_columns(calls_count=pl.lit(1, pl.Int64))
    metrics = _metrics(trace)
    named = work.filter(pl.col("scope").is_not_null())
    sums = _sums(named)
    paths = {*sums, *(path for scope in metrics for path in _outer(scope))}
    if not paths:
        raise MissingDataError(f"{trace.path.name}: no scopes recorded; mark some with triton.profiler.scope")
    whole = int(work["total_ns"].sum())
    rows = [_row(trace, path, sums.get(path, _Sum()), metrics.get(path, {}), whole) for path in sorted(paths)]
    table = pl.DataFrame(rows, infer_schema_length=None)
    outside = whole - int(named["total_ns"].sum())
    values: dict[str, Value] = {
        "section_count": table.height, "device_ns": whole, "outside_ns": outside,
        "outside_pct": 100 * outside / whole if whole else None,
    }  # fmt: skip
    notes = ["scopes are of kernels: no host time is known"]
    if any(name in each for each in metrics.values() for name in _CYCLES):
        notes.append("cycles are of the GPU's clock, measured inside kernels: they are no time")
    return Result(says=_says(table, whole), table=table, values=values, notes=tuple(notes))


def _outer(path: str) -> list[str]:
    """The path and those of the scopes around it."""
    names = path.split(totals.BETWEEN)
    return [totals.BETWEEN.join(names[: count + 1]) for count in range(len(names))]


def _metrics(trace: Trace) -> dict[str, dict[str, float]]:
    """What users counted, by scope: recorded of the scope itself, and of a timeline's spans summed."""
    found: dict[str, dict[str, float]] = {path: dict(told) for path, told in trace.meta.get("scopes", ())}
    if trace.meta.get("totals"):
        return found
    scopes = trace.args.filter(pl.col("key") == totals.SCOPE).select(
        "span_id", scope=pl.col("text").cast(pl.String)
    )
    told = trace.args.filter(pl.col("key").cast(pl.String).is_in((*_FLOPS, "bytes"))).join(
        scopes, on="span_id"
    )
    for path, key, value in (
        told.select("scope", pl.col("key").cast(pl.String), "float").drop_nulls().iter_rows()
    ):
        for outer in _outer(path):
            amounts = found.setdefault(outer, {})
            amounts[key] = amounts.get(key, 0.0) + value
    return found


@dataclass
class _Sum:
    """What ran in a scope and in those inside it."""

    total_ns: int = 0
    exclusive_ns: int = 0
    calls: int | None = 0
    kernels: dict[str, int] = field(default_factory=dict)  # nanoseconds by name


def _sums(named: pl.DataFrame) -> dict[str, _Sum]:
    """The sum of each scope, by one pass over the rows."""
    sums: dict[str, _Sum] = {}
    for path, name, kind, total_ns, calls in named.select(
        "scope", "name", "kind", "total_ns", "calls_count"
    ).iter_rows():
        for outer in _outer(path):
            found = sums.setdefault(outer, _Sum())
            found.total_ns += total_ns or 0
            found.calls = None if calls is None or found.calls is None else found.calls + calls
            if kind == "kernel":
                found.kernels[name] = found.kernels.get(name, 0) + (total_ns or 0)
        sums[path].exclusive_ns += total_ns or 0
    return sums


def _row(
    trace: Trace, path: str, ran: _Sum, counted_here: dict[str, float], whole_ns: int
) -> dict[str, Value]:
    device_ns = ran.total_ns
    flops = next((counted_here[name] for name in _FLOPS if name in counted_here), None)
    moved = counted_here.get("bytes")
    row: dict[str, Value] = {
        "section": path,
        "device_ns": device_ns,
        "device_exclusive_ns": ran.exclusive_ns,
        "device_pct": 100 * device_ns / whole_ns if whole_ns else None,
        "work_count": ran.calls,
        "top_kernel": max(ran.kernels, key=lambda name: ran.kernels[name], default=None),
        "work_flops": flops,
        "achieved_flops_per_s": flops * 1e9 / device_ns if flops and device_ns else None,
        "traffic_bytes": moved,
        "achieved_bytes_per_s": moved * 1e9 / device_ns if moved and device_ns else None,
        "roof_pct": _roof_pct(trace, counted_here, device_ns),
        "cycles_count": next((counted_here[name] for name in _CYCLES if name in counted_here), None),
    }
    return row


def _roof_pct(trace: Trace, counted_here: dict[str, float], device_ns: int) -> float | None:
    """The larger share of the device's peaks that the counted work reaches; null where no peak is known."""
    devices = [each for each in trace.meta.get("devices", ()) if isinstance(each, dict)]
    if len(devices) != 1 or not device_ns:
        return None
    known = _candidates(devices[0])
    shares = []
    for name, dtype in _DTYPES.items():
        peaks = {hardware.peak_flops(each, dtype) for each in known}
        if name in counted_here and len(peaks) == 1 and (peak := peaks.pop()):
            shares.append(100 * counted_here[name] * 1e9 / device_ns / peak)
    bandwidth = devices[0].get("memoryBandwidth")
    if "bytes" in counted_here and isinstance(bandwidth, int) and bandwidth > 0:
        shares.append(100 * counted_here["bytes"] * 1e9 / device_ns / bandwidth)
    return max(shares, default=None)


def _candidates(device: dict[str, object]) -> list[hardware.Device]:
    """The devices with as many SMs and, within a twentieth, the recorded memory bandwidth."""
    bandwidth, units = device.get("memoryBandwidth"), device.get("numSms")
    if not isinstance(bandwidth, int):
        return []
    return [
        each
        for each in hardware.DEVICES
        if each.sm_count == units and abs(each.memory_bandwidth_bytes / bandwidth - 1) < 0.05
    ]


def _says(table: pl.DataFrame, whole_ns: int) -> str:
    what = counted(table.height, "section")
    if not whole_ns:
        return f"{what}, measured in cycles"
    top = table.sort("device_exclusive_ns", descending=True, maintain_order=True).row(0, named=True)
    return f"{what}; {top['section']} has the most exclusive time, {format_value('_ns', top['device_exclusive_ns'])} of GPU time"
