"""Allocated and reserved bytes over time, the peak, and which blocks were live at the peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.trace import Trace, once_per_trace

_MOST_BYTES = 1 << 62  # more is no count of bytes
_ALLOCATED, _RESERVED = "allocated_bytes", "reserved_bytes"


@dataclass(frozen=True)
class Curve:
    """The memory of one device over time."""

    device: str
    points: pl.DataFrame  # at_ns, allocated_bytes, reserved_bytes (null where not recorded)
    absolute: bool  # False where totals were not recorded: the curve then starts at 0
    addressed: bool  # whether blocks can be followed from allocation to free
    baseline_bytes: int | None  # allocated before the first event; null where not known, as on the CPU
    peak_bytes: int
    peak_at_ns: int
    peak_step: int | None

    @property
    def reserved_peak_bytes(self) -> int | None:
        """The most that the allocator held from the device."""
        return _whole(self.points[_RESERVED].max())

    @property
    def reserved_at_peak_bytes(self) -> int | None:
        """What it held at the peak of allocated memory."""
        at = int(self.points[_ALLOCATED].arg_max() or 0)
        return _whole(self.points[_RESERVED][at])


@once_per_trace
def curves(trace: Trace) -> list[Curve]:
    """One curve per device with memory events: accelerators first, the largest peak first; not to be changed."""
    counters = trace.table("counters", keep=False)
    devices = trace.allocations["device"].unique().to_list()
    of_devices = [_curve(trace, device, counters) for device in devices]
    return sorted(of_devices, key=lambda curve: (curve.device == "cpu", -curve.peak_bytes, curve.device))


def blocks_of(trace: Trace, device: str) -> pl.DataFrame:
    """Rows of `allocations` of one device; the table itself, and no copy, where it has no others."""
    here = trace.allocations["device"] == device
    return trace.allocations if here.all() else trace.allocations.filter(here)


def live_at(blocks: pl.DataFrame, at_ns: int) -> pl.DataFrame:
    """The blocks that were live then; one that was allocated at that very moment is."""
    begun = pl.col("start_ns").is_null() | (pl.col("start_ns") <= at_ns)
    return blocks.filter(begun & (pl.col("end_ns").is_null() | (pl.col("end_ns") > at_ns)))


def changes(blocks: pl.DataFrame) -> pl.DataFrame:
    """When bytes were taken, or given back (negative), in order of time: `at_ns`, `bytes`."""
    size = pl.col("size_bytes")
    both = (blocks.select(at_ns="start_ns", bytes=size), blocks.select(at_ns="end_ns", bytes=-size))
    return pl.concat(both).drop_nulls("at_ns").sort("at_ns", maintain_order=True)


def _first_change(blocks: pl.DataFrame) -> int | None:
    """The bytes of the first of the changes; None where there is none."""
    began, ended = (_whole(blocks[column].min()) for column in ("start_ns", "end_ns"))
    if began is None and ended is None:
        return None
    taken = ended is None or (began is not None and began <= ended)
    size = int(blocks["size_bytes"][int(blocks["start_ns" if taken else "end_ns"].arg_min() or 0)])
    return size if taken else -size


def _curve(trace: Trace, device: str, counters: pl.DataFrame) -> Curve:
    blocks = blocks_of(trace, device)
    recorded = _recorded(trace, device, counters)
    absolute = recorded.height > 0
    if absolute:
        points = recorded
        # Totals are those after an event.
        first = _first_change(blocks)
        baseline = None if first is None else _whole(recorded[_ALLOCATED][0] - first)
    else:
        points = changes(blocks).select(
            "at_ns",
            pl.col("bytes").cum_sum().alias(_ALLOCATED),
            pl.lit(None, pl.Int64).alias(_RESERVED),
        )
        baseline = None
    at = int(points[_ALLOCATED].arg_max() or 0)
    at_ns = int(points["at_ns"][at])
    return Curve(
        device=device,
        points=points,
        absolute=absolute,
        addressed=blocks["address"].null_count() == 0,
        # The CPU's allocator counts from the profiler's start, whatever was allocated before.
        baseline_bytes=None if baseline is None or device == "cpu" else max(baseline, 0),
        peak_bytes=max(int(points[_ALLOCATED][at]), 0),
        peak_at_ns=at_ns,
        peak_step=next((step.number for step in trace.steps if step.start_ns <= at_ns < step.end_ns), None),
    )


def _recorded(trace: Trace, device: str, counters: pl.DataFrame) -> pl.DataFrame:
    """The allocator's own totals of one device, where they were recorded."""
    track = trace.tracks.filter(pl.col("name") == f"{device} memory")["id"]
    of_device = counters["track_id"].is_in(track.implode()) & counters["value"].is_between(
        -_MOST_BYTES, _MOST_BYTES
    )
    value = pl.col("value").cast(pl.Int64)
    rows = {name: of_device & (counters["name"] == name) for name in (_ALLOCATED, _RESERVED)}
    taken = counters.select("at_ns", "value").filter(rows[_ALLOCATED])
    allocated = taken.select("at_ns", value.alias(_ALLOCATED))
    reserved = counters["value"].filter(rows[_RESERVED]).cast(pl.Int64)
    # The CPU's allocator reserves nothing, and says 0.
    if len(reserved) == allocated.height and bool(np.any(reserved.to_numpy())):
        return allocated.with_columns(reserved.alias(_RESERVED))
    return allocated.with_columns(pl.lit(None, pl.Int64).alias(_RESERVED))


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None
