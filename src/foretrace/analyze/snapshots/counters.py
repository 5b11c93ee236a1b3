"""What the allocator's counters tell where there is no snapshot: peaks, what torch held beyond them, retries and failures.

Counters know neither when a peak was nor who held it. The peaks of two counters may be of two moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrace.analyze.snapshots.findings import OOM_FIELDS, SCHEMA, device_name
from foretrace.analyze.snapshots.fragmentation import Advice, least_excess, times
from foretrace.errors import MissingDataError
from foretrace.ingest.allocator_counters import DeviceCounters
from foretrace.units import format_value


@dataclass(frozen=True)
class CountedMemory:
    """What was counted on one device; None is not recorded."""

    name: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_active_bytes: int  # blocks that a stream may still use count too
    allocated_bytes: int | None  # when the counters were taken, as the next three
    reserved_bytes: int | None
    unused_bytes: int | None  # reserved, and in no block
    inactive_split_bytes: int | None  # of that, beside blocks in use: it cannot be given back
    retries_count: int | None  # how often the cache was given back to make a request fit
    ooms_count: int | None

    @property
    def excess_bytes(self) -> int:
        """What torch held at its most and no block used then, at least: no moment had more blocks than the peak of those."""
        return max(self.peak_reserved_bytes - self.peak_active_bytes, 0)

    @property
    def excess_pct(self) -> float | None:
        """The same, of the most that torch held."""
        return 100 * self.excess_bytes / self.peak_reserved_bytes if self.peak_reserved_bytes else None

    @property
    def says(self) -> str:
        """The peak in one sentence."""
        peak, reserved = (
            format_value("_bytes", size) for size in (self.peak_allocated_bytes, self.peak_reserved_bytes)
        )
        return f"{self.name} peaked at {peak}; torch held at most {reserved} from the device"

    @property
    def advice(self) -> tuple[Advice, ...]:
        """Settings of the allocator that the counters speak for: where memory was short."""
        if self.excess_bytes < least_excess(self.peak_reserved_bytes) or not self.failures:
            return ()
        beyond = format_value("_bytes", self.excess_bytes)
        says = f"torch held {beyond} more than all blocks ever took at once: segments that grow in place leave fewer holes"
        return (Advice("expandable_segments:True", says),)

    @property
    def failures(self) -> tuple[str, ...]:
        """What the counters of retries and failures tell, in sentences."""
        told = []
        if self.retries_count:
            told.append(
                f"{times(self.retries_count)} torch gave its cache back to the device to make a request fit, which waits for the device"
            )
        if self.ooms_count:
            told.append(f"{times(self.ooms_count)} a request did not fit even then (out of memory)")
        return tuple(told)


@dataclass(frozen=True)
class CounterFindings:
    """What the counters tell of each device, the one with the largest peak first."""

    path: Path
    devices: tuple[CountedMemory, ...]
    notes: tuple[str, ...]

    @property
    def says(self) -> str:
        """The largest peak in one sentence."""
        return self.devices[0].says

    def to_dict(self) -> dict[str, Any]:
        """The document of a snapshot, as far as counters tell it, with the counters of each device."""
        return {
            "schema": SCHEMA,
            "devices": [_device(found) for found in self.devices],
            "leaks": [],
            "fragmentation_pct": self.devices[0].excess_pct,
            "oom": _oom(self.devices),
        }


def counter_findings(
    path: Path, counted: Sequence[DeviceCounters], *, device: int | None = None
) -> CounterFindings:
    """What the counters tell of each device, or of one."""
    chosen = [each for each in counted if device in (None, each.device)]
    if not chosen:
        known = ", ".join(device_name(each.device) for each in counted)
        raise MissingDataError(
            f"{path.name}: no counters of {device_name(device or 0)}; it has those of: {known}"
        )
    told = sorted(map(_counted, chosen), key=lambda found: -found.peak_allocated_bytes)
    notes = [note for each in chosen for note in each.notes]
    notes.append("counters know neither when the peak was nor who held it: a snapshot does")
    return CounterFindings(path, tuple(told), tuple(notes))


def _counted(read: DeviceCounters) -> CountedMemory:
    peak = read.counters["allocated_bytes.all.peak"]
    reserved, active = read.get("reserved_bytes.all.current"), read.get("active_bytes.all.current")
    return CountedMemory(
        name=device_name(read.device),
        peak_allocated_bytes=peak,
        peak_reserved_bytes=read.counters["reserved_bytes.all.peak"],
        peak_active_bytes=max(read.get("active_bytes.all.peak") or 0, peak),
        allocated_bytes=read.get("allocated_bytes.all.current"),
        reserved_bytes=reserved,
        unused_bytes=None if reserved is None or active is None else max(reserved - active, 0),
        inactive_split_bytes=read.get("inactive_split_bytes.all.current"),
        retries_count=read.get("num_alloc_retries"),
        ooms_count=read.get("num_ooms"),
    )


def _device(found: CountedMemory) -> dict[str, Any]:
    more = (
        "allocated_bytes", "reserved_bytes", "unused_bytes", "inactive_split_bytes", "retries_count", "ooms_count",
    )  # fmt: skip
    return {
        "device": found.name,
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "at_ns": None,
        "composition": [{"what": "unknown", "bytes": found.peak_allocated_bytes}],
        **{name: getattr(found, name) for name in more},
    }


def _oom(devices: Sequence[CountedMemory]) -> dict[str, Any] | None:
    """How many requests did not fit; of none of them is more known."""
    failed = [found for found in devices if found.ooms_count]
    if not failed:
        return None
    names = ", ".join(found.name for found in failed)
    return {
        **dict.fromkeys(OOM_FIELDS),
        "why": f"the counters of {names} tell that requests did not fit, not which",
        "holders": [],
        "count": sum(found.ooms_count or 0 for found in failed),
    }
