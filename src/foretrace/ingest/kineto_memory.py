"""Counters and allocations of a Kineto recording as frames: what was written of memory, by allocator."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from foretrace import schema
from foretrace.ingest.columns import NULL_I64, NULL_U32, NULL_U64, Array, nullable

# c10::DeviceType, in its own order
DEVICE_TYPES = {
    0: "cpu",
    1: "cuda",
    6: "hip",
    9: "xla",
    12: "xpu",
    14: "meta",
    15: "hpu",
    19: "mtia",
    20: "privateuseone",
}


_FEW = 16  # values that are told apart without a sort


class MemoryEvents:
    """What was recorded of allocators, with the device of each event. What it no longer needs it lets go."""

    def __init__(self, memory: dict[str, Array]) -> None:
        self.columns = memory
        self.devices, self.which = _memory_devices(memory)
        del memory["device_type"], memory["device_id"]


def counter_table(
    events: MemoryEvents, group: dict[str, Array], names: pl.Series, texts: pl.Series, tracks: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Recorded counters and the allocators' totals, series by series; each allocator gets a track."""
    memory, devices, which = events.columns, events.devices, events.which
    columns_of = (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes"))
    known = [np.flatnonzero(memory[column] != NULL_I64).astype(np.uint32) for column, _ in columns_of]
    rows = np.concatenate(known)
    series = np.repeat(np.arange(len(known), dtype=np.uint8), [len(each) for each in known])
    if len(devices) > 1:  # else they are in order
        place = which[rows] * len(known) + series
        # Stable: within a series, in order of time; and the quickest of small numbers.
        order = np.argsort(place.astype(np.min_scalar_type(len(devices) * len(known))), kind="stable")
        rows, series = rows[order], series[order]
        del order, place
    used = np.flatnonzero(np.bincount(which[rows], minlength=len(devices)))
    track = np.zeros(max(len(devices), 1), np.uint32)
    track[used] = tracks.height + np.arange(len(used), dtype=np.uint32)
    label = pl.Series([name for _, name in columns_of], dtype=schema.TEXT)
    totals = pl.DataFrame(
        {
            "track_id": track[which[rows]],
            "at_ns": memory["at"][rows],
            "name": pl.Series(label.to_physical().to_numpy()[series]).cat.to(schema.TEXT),
            "value": _totals(memory.pop("allocated"), memory.pop("reserved"), rows, series),
        }
    )
    labels = [_memory_track(tracks.height + index, devices[code]) for index, code in enumerate(used)]
    tracks = pl.concat((tracks, pl.DataFrame(labels, schema=schema.polars_schema("tracks"))))
    return pl.concat((_recorded_counters(group, names, texts), totals)), tracks


def _totals(allocated: Array, reserved: Array, rows: Array, series: Array) -> Array:
    values = np.empty(len(rows), np.float64)
    first = series == 0
    values[first] = allocated[rows[first]]
    values[~first] = reserved[rows[~first]]
    return values


def _memory_track(track: int, device: str) -> dict[str, Any]:
    index = device.partition(":")[2]
    return {"id": track, "device": int(index) if index else None, "name": f"{device} memory"}


def _recorded_counters(group: dict[str, Array], names: pl.Series, texts: pl.Series) -> pl.DataFrame:
    """Counter events; one that holds several values is told apart by their keys."""
    name = names.gather(group["name"]).cast(pl.String)
    key = texts.gather(group["key"]).cast(pl.String)
    several = pl.struct("name", "key").n_unique() > pl.col("name").n_unique()
    frame = pl.DataFrame({"track_id": group["track"], "at_ns": group["at"], "name": name, "key": key,
                          "value": group["value"]})  # fmt: skip
    label = pl.when(several).then(pl.col("name") + " " + pl.col("key")).otherwise("name")
    return frame.select("track_id", "at_ns", label.cast(schema.TEXT).alias("name"), "value")


def _memory_devices(memory: dict[str, Array]) -> tuple[list[str], Array]:
    """The names of the allocators' devices (cpu, cuda:0, ...), and for each event which one it is of."""
    pairs = (
        memory["device_type"] * np.int64(1 << 32) + memory["device_id"]
    )  # a null wraps round, alike each time
    first, which = _distinct(pairs)
    names = [_device_name(int(memory["device_type"][at]), int(memory["device_id"][at])) for at in first]
    return names, which


def _distinct(values: Array) -> tuple[list[int], Array]:
    """For each distinct value, in order, where it first stands, and for each value which one it is.

    As np.unique, without a sort where there are few.
    """
    found: list[tuple[int, int]] = []
    which = np.zeros(len(values), np.uint32)
    left = np.ones(len(values), bool)
    while len(found) < _FEW and left.any():
        at = int(left.argmax())
        same = values == values[at]
        which[same] = len(found)
        left &= ~same
        found.append((int(values[at]), at))
    if left.any():
        _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        return first.tolist(), inverse.astype(np.uint32)
    order = sorted(range(len(found)), key=found.__getitem__)
    place = np.empty(max(len(found), 1), np.uint32)
    place[order] = np.arange(len(found), dtype=np.uint32)
    return [found[index][1] for index in order], place[which]


def _device_name(kind: int, index: int) -> str:
    if kind == NULL_I64:
        return "unknown"
    name = DEVICE_TYPES.get(kind, f"device type {kind}")
    return name if name == "cpu" or index == NULL_I64 or not 0 <= index < 2**31 else f"{name}:{index}"


def allocation_table(events: MemoryEvents) -> pl.DataFrame:
    """Allocations paired with the next free of the same address on the same device."""
    memory, devices, device_code = events.columns, events.devices, events.which
    at, size, address = memory["at"], memory["bytes"], memory["address"]
    order = np.lexsort((address, device_code)) if len(devices) > 1 else np.argsort(address, kind="stable")
    order = order.astype(np.uint32)
    begins, ends = order[:-1], order[1:]
    # A column at a time: in one expression, their copies were the peak of memory.
    sorted_column = address[order]
    paired = (sorted_column[:-1] == sorted_column[1:]) & (sorted_column[:-1] != NULL_U64)
    sorted_column = size[order]
    paired &= (sorted_column[:-1] > 0) & (sorted_column[1:] < 0)
    if len(devices) > 1:
        sorted_column = device_code[order]
        paired &= sorted_column[:-1] == sorted_column[1:]
    del sorted_column
    freed_at = np.full(len(at), NULL_I64, np.int64)
    freed_at[begins[paired]] = at[ends[paired]]
    matched_free = np.zeros(len(at), bool)
    matched_free[ends[paired]] = True
    del order, begins, ends, paired
    is_alloc = size > 0
    rows = np.flatnonzero(is_alloc | (~matched_free & (size < 0)))
    alloc = is_alloc[rows]
    known = address[rows] != NULL_U64
    return pl.DataFrame(
        {
            "start_ns": nullable(np.where(alloc, at[rows], NULL_I64)),
            "end_ns": nullable(np.where(alloc, freed_at[rows], at[rows])),
            "size_bytes": np.abs(size[rows]),
            "device": pl.Series(devices, dtype=pl.String).gather(device_code[rows]),
            "address": nullable(np.where(known, address[rows], np.uint64(NULL_U64))),
            "op_id": nullable(np.where(alloc, memory["op"][rows], np.uint32(NULL_U32))),
            "stack_id": nullable(np.where(alloc, memory["stack"][rows], np.uint32(NULL_U32))),
            "module_id": nullable(np.where(alloc, memory["module"][rows], np.uint32(NULL_U32))),
        }
    )
