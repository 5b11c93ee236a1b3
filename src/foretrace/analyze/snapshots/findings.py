"""All that a snapshot tells of one device, put together, and the document that `foretrace memory --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from foretrace.analyze.snapshots import (
    composition,
    fragmentation,
    layers,
    leaks,
    lifetimes,
    optimizer_state,
    shortage,
    steps,
)
from foretrace.analyze.snapshots.fragmentation import Fragmentation
from foretrace.analyze.snapshots.layers import Layers
from foretrace.analyze.snapshots.leaks import Leak
from foretrace.analyze.snapshots.optimizer_state import OptimizerState
from foretrace.analyze.snapshots.origins import Origins
from foretrace.analyze.snapshots.places import Places
from foretrace.analyze.snapshots.shortage import Failed, Flush, OutOfMemory
from foretrace.analyze.snapshots.steps import Steps
from foretrace.errors import MissingDataError
from foretrace.snapshot import HOST, Snapshot
from foretrace.units import counted, format_value

SCHEMA = 1
OOM_FIELDS = (
    "at_ns", "asked_bytes", "device_free_bytes", "allocated_bytes", "reserved_bytes", "unused_bytes", "largest_hole_bytes",
    "missing_bytes", "where", "why", "would_fit",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceFindings:
    """What the snapshot tells of one device."""

    name: str
    origins: Origins
    steps: Steps | None
    leaks: list[Leak]
    layers: Layers | None
    optimizer: OptimizerState | None
    fragmentation: Fragmentation
    out_of_memory: list[OutOfMemory]
    flushes: list[Flush]

    @property
    def peak_step(self) -> int | None:
        """The step that the peak lies in."""
        return self.steps.of(self.origins.memory.peak) if self.steps else None

    @property
    def says(self) -> str:
        """The peak in one sentence."""
        memory = self.origins.memory
        when = f" in step {self.peak_step}" if self.peak_step is not None else ""
        if not memory.events.height:
            when = " when the snapshot was made (it has no history)"
        table = composition.composition(self.origins, memory.peak, "category")
        most = f", {table['share_pct'][0]:.1f} % of it {table['category'][0]}" if table.height else ""
        reserved = (
            f"; torch held at most {format_value('_bytes', memory.peak_reserved_bytes)} from the device"
        )
        blocks = counted(int(table["blocks_count"].sum()), "block")
        size = format_value("_bytes", memory.peak_bytes)
        return f"{self.name} peaked at {size} in {blocks}{when}{most}{reserved if memory.reserved_is_known else ''}"


@dataclass(frozen=True)
class SnapshotFindings:
    """What a snapshot tells of each device, the one with the largest peak first."""

    snapshot: Snapshot
    devices: tuple[DeviceFindings, ...]

    @property
    def says(self) -> str:
        """The largest peak in one sentence."""
        return self.devices[0].says

    @property
    def notes(self) -> tuple[str, ...]:
        """What reading had to leave out, and what the history does not tell."""
        return (
            *self.snapshot.notes,
            *(note for found in self.devices for note in found.origins.memory.notes),
        )

    def to_dict(self, by: composition.By | None = "category") -> dict[str, Any]:
        """Plain data, as `foretrace memory --format json` prints it; without `by`, the composition has every block."""
        requests = [request for found in self.devices for request in found.out_of_memory]
        return {
            "schema": SCHEMA,
            "devices": [_device(found, by) for found in self.devices],
            "leaks": [
                {
                    "device": found.name,
                    "where": leak.where,
                    "bytes_per_step": leak.bytes_per_step,
                    "kept_bytes": leak.kept_bytes,
                    "repetitions": [asdict(repetition) for repetition in leak.repetitions],
                }
                for found in self.devices
                for leak in found.leaks
            ],
            "fragmentation_pct": self._fragmentation_pct,
            "oom": _oom(requests[0], len(requests)) if requests else None,
        }

    @property
    def _fragmentation_pct(self) -> float | None:
        first = self.devices[0]
        return first.fragmentation.unused_pct if first.origins.memory.reserved_is_known else None


def device_name(device: int) -> str:
    """As torch names it; the host's caching allocator is no device."""
    return "host" if device == HOST else f"cuda:{device}"


def findings(
    snapshot: Snapshot,
    *,
    device: int | None = None,
    step_times_ns: Sequence[tuple[int, int]] | None = None,
    first_step: int = 0,
    failed: Mapping[int, Failed] | None = None,
) -> SnapshotFindings:
    """What the snapshot tells of each device, or of one.

    `step_times_ns` are the times of steps on the Unix clock, where the caller knows them, and `first_step` is the number of the
    first. `failed` are requests that did not fit, by device, as a Run knows them.
    """
    places = Places(snapshot)
    every = lifetimes.devices(snapshot)
    chosen = [memory for memory in every if device in (None, memory.device)]
    if not chosen:
        known = ", ".join(device_name(memory.device) for memory in every) or "none"
        wanted = "any device" if device is None else device_name(device)
        raise MissingDataError(f"{snapshot.path.name}: nothing of {wanted} in this snapshot; it has: {known}")
    told = []
    for memory in chosen:
        origins = Origins(memory, places)
        stepped = steps.find(origins, snapshot, step_times_ns, first_step=first_step)
        told.append(_of_device(snapshot, origins, stepped, (failed or {}).get(memory.device)))
    return SnapshotFindings(snapshot, tuple(told))


def _of_device(
    snapshot: Snapshot, origins: Origins, found: Steps | None, failed: Failed | None
) -> DeviceFindings:
    memory = origins.memory
    flushed = shortage.flushes(origins)
    grows = bool(snapshot.settings.get("expandable_segments")) or bool(memory.segments["expandable"].any())
    short = shortage.out_of_memory(origins, expandable=grows, failed=failed)
    return DeviceFindings(
        name=device_name(memory.device),
        origins=origins,
        steps=found,
        leaks=leaks.find(origins, found),
        layers=layers.find(origins, memory.peak),
        optimizer=optimizer_state.find(origins, memory.peak),
        fragmentation=fragmentation.fragmentation(
            origins, snapshot.settings, flushed, steps=found, failed=bool(short)
        ),
        out_of_memory=short,
        flushes=flushed,
    )


def _device(found: DeviceFindings, by: composition.By | None) -> dict[str, Any]:
    memory = found.origins.memory
    return {
        "device": found.name,
        "peak_allocated_bytes": memory.peak_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes if memory.reserved_is_known else None,
        "at_ns": memory.at_ns(memory.peak),
        "composition": _composition(found.origins, by),
        "optimizer": _optimizer(found.optimizer),
    }


def _optimizer(found: OptimizerState | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "bytes": found.size_bytes,
        "parameters_bytes": found.parameters_bytes,
        "held": [{"what": line, "bytes": size} for line, size in found.lines],
    }


def _composition(origins: Origins, by: composition.By | None) -> list[dict[str, Any]]:
    event = origins.memory.peak
    if by is None:
        held = pl.Series(origins.memory.lives.allocated_after(event), dtype=pl.Boolean)
        blocks = pl.DataFrame({"what": origins.lines, "bytes": origins.memory.lives.size}).filter(held)
        return blocks.sort("bytes", descending=True, maintain_order=True).to_dicts()
    table = composition.composition(origins, event, by)
    return table.select(pl.col(by).alias("what"), pl.col("held_bytes").alias("bytes")).to_dicts()


def _oom(short: OutOfMemory, count: int) -> dict[str, Any]:
    return {
        **{name: getattr(short, name) for name in OOM_FIELDS},
        "holders": [{"what": what, "bytes": size} for what, size in short.holders],
        "count": count,
    }
