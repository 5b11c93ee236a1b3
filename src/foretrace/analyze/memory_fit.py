"""The largest batch that fits into a device's memory, from one recording of a smaller one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.memory import allocator_replay, batch_bytes, device_memory, memory_replay
from foretrace.analyze.concepts.memory.allocator_replay import Requests, held_bytes
from foretrace.analyze.concepts.memory.memory_replay import Memory, MemoryChange, factors
from foretrace.analyze.concepts.work import batch_size
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError, UsageError
from foretrace.trace import Trace
from foretrace.units import format_value

_GIB = 2**30
_MOST_GIB, _MOST_TIMES = 1e6, 1e6


@dataclass(frozen=True)
class Room:
    """What the allocator can have of a device, in bytes."""

    usual_bytes: float
    least_bytes: float
    most_bytes: float


@dataclass(frozen=True)
class Fit:
    """How many times the recorded batch fits."""

    times: float
    low: float
    high: float
    replayed: bool  # through the allocator; otherwise by the curve of allocated bytes


@analysis(
    Subject.MEMORY,
    denominators={
        "largest_batch_pct": "of the recorded batch",
        "largest_batch_low_pct": "of the recorded batch",
        "largest_batch_high_pct": "of the recorded batch",
        "peak_pct": "of the bytes live on the device at its peak",
    },
    keep=("category", "peak_bytes", "grows_bytes"),
)
def memory_fit(trace: Trace, *, device_gib: float | None = None) -> Result:
    """The largest batch that fits into the device's memory, and what of the peak grows with the batch.

    From the allocator's events (profile_memory=True). What the forward pass allocates, and the backward pass other than
    gradients of parameters, is taken to grow in proportion to the batch; parameters, gradients, the optimizer's state, and
    what is never freed, are taken not to. The recorded requests are given to torch's caching allocator again, larger, with the
    beginning of the program before them: what it wastes by splitting blocks is found where it is wasted. Where that does not
    give what the allocator held when recorded (other settings, such as expandable segments), the curve of allocated memory is
    replayed instead.

    device_gib: the memory of another device, in GiB; by default that of the recorded one.

    Columns:
        peak_bytes: live at the recorded peak, by category, as in `memory`.
        peak_pct: of the bytes live on the device at its peak.
        grows_bytes: what of it grows with the batch.

    Values:
        batch_count: items of a recorded step; empty where the shapes do not tell.
        largest_batch_count: items of the largest step that fits, with the ends of its range.
        largest_batch_pct: the same, of the recorded batch, with the ends of its range.
        device_bytes: the device's memory; context_bytes: what of it the CUDA context and kernels take.

    What is assumed: the CUDA context takes 600 MiB (400 to 1,000), what grows may be off by 3 %, every item is of the same size,
    and kernels choose the same workspaces. The upper end of the range wastes nothing. By the curve alone, the allocator is
    taken to hold 2 % (0 to 8) more than is allocated when it runs full.
    """
    memory = memory_replay.find(trace)
    if device_gib is not None and not 0 < device_gib < _MOST_GIB:
        raise UsageError(f"device_gib {device_gib}: needs a size in GiB, such as 80")
    recorded = device_memory.recorded_bytes(trace, memory.curve.device)
    device = recorded if device_gib is None else round(device_gib * _GIB)
    if device is None:
        raise MissingDataError(
            f"{trace.path.name}: the size of the device's memory was not recorded; give it: --device-gib 80"
        )
    if not len(batch_bytes.growing(trace)):
        raise MissingDataError(f"{trace.path.name}: nothing that was allocated grows with the batch")
    context = (
        device_memory.CONTEXT_BYTES,
        device_memory.CONTEXT_MOST_BYTES,
        device_memory.CONTEXT_LEAST_BYTES,
    )
    fit = fit_into(trace, memory, Room(*(max(device - taken, 0) for taken in context)))
    values = _values(trace, memory, device, fit)
    return Result(says=_says(values), table=_table(trace, memory), values=values, notes=_notes(values, fit))


def fit_into(trace: Trace, memory: Memory, room: Room) -> Fit:
    """How many times the recorded batch fits: by the allocator replayed, or by the curve of allocated bytes where that is no guide."""
    requests = allocator_replay.replayable(trace)
    more, fewer = 1 + device_memory.GROWTH_OFF, 1 - device_memory.GROWTH_OFF
    highest = _largest(_by_curve(trace, memory, room.most_bytes, slope=fewer))
    if requests is None:
        usual = room.usual_bytes / (1 + device_memory.UNUSABLE)
        fewest = room.least_bytes / (1 + device_memory.UNUSABLE_MOST)
        point = _largest(_by_curve(trace, memory, usual))
        lowest = _largest(_by_curve(trace, memory, fewest, slope=more))
    else:
        point = _largest(_by_allocator(trace, memory, requests, room.usual_bytes))
        lowest = _largest(_by_allocator(trace, memory, requests, room.least_bytes, slope=more))
    return Fit(point, min(lowest, point), max(highest, point), replayed=requests is not None)


def _largest(fits: Callable[[float], bool]) -> float:
    """The largest multiple of the batch that fits; less than 1 where the recorded one does not."""
    low, high = 0.0, 2.0
    while fits(high) and high < _MOST_TIMES:
        low, high = high, 2 * high
    while high - low > 1e-3 * max(low, 1.0):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _by_curve(
    trace: Trace, memory: Memory, available_bytes: float, *, slope: float = 1.0
) -> Callable[[float], bool]:
    rows = batch_bytes.growing(trace)

    def fits(times: float) -> bool:
        grown = factors(rows, max(1 + (times - 1) * slope, 0.0))
        return memory.peak_with([MemoryChange("a larger batch", factors=grown)]) <= available_bytes

    return fits


def _by_allocator(
    trace: Trace, memory: Memory, requests: Requests, available_bytes: float, *, slope: float = 1.0
) -> Callable[[float], bool]:
    rows = batch_bytes.growing(trace)

    def fits(times: float) -> bool:
        sizes = memory.size_bytes.astype(np.float64)
        sizes[rows] *= max(1 + (times - 1) * slope, 0.0)
        return held_bytes(requests, sizes.astype(np.int64), most_bytes=available_bytes) is not None

    return fits


def _values(trace: Trace, memory: Memory, device: int, fit: Fit) -> dict[str, Value]:
    batch = batch_size.find(trace)
    step = memory.curve.peak_step
    items = (
        None
        if batch is None
        else batch.items.get(step if step is not None else -1, next(iter(batch.items.values())))
    )
    ends = {"": fit.times, "_low": fit.low, "_high": fit.high}
    return {
        "device_name": memory.curve.device,
        "batch_count": items,
        **{
            f"largest_batch{end}_count": None if items is None else int(times * items + 1e-9)
            for end, times in ends.items()
        },
        **{f"largest_batch{end}_pct": 100 * times for end, times in ends.items()},
        "peak_bytes": memory.peak_bytes,
        "device_bytes": device,
        "context_bytes": int(device_memory.CONTEXT_BYTES),
        "batch_from": None if batch is None else batch.source,
    }


def _table(trace: Trace, memory: Memory) -> pl.DataFrame:
    live = memory.live_at(memory.peak_at_ns)
    grows = np.isin(live, batch_bytes.growing(trace))
    kinds = batch_bytes.category(trace).gather(live)
    size = memory.size_bytes[live]
    listed = pl.DataFrame({"category": kinds, "peak_bytes": size, "grows_bytes": np.where(grows, size, 0)})
    left = memory.peak_bytes - int(size.sum())
    rest = pl.DataFrame(
        {"category": ["before the recording"], "peak_bytes": [max(left, 0)], "grows_bytes": [0]},
        schema=listed.schema,
    )
    table = pl.concat((listed, rest)).group_by("category", maintain_order=True).agg(pl.all().sum())
    table = table.filter(pl.col("peak_bytes") > 0).sort("peak_bytes", descending=True, maintain_order=True)
    share = 100 * pl.col("peak_bytes") / max(memory.peak_bytes, 1)
    return table.select("category", "peak_bytes", share.alias("peak_pct"), "grows_bytes")


def _says(values: dict[str, Value]) -> str:
    device = format_value("_bytes", values["device_bytes"])
    times = float(values["largest_batch_pct"] or 0) / 100
    low, high = (float(values[f"largest_batch_{end}_pct"] or 0) / 100 for end in ("low", "high"))
    if values["batch_count"] is None:
        return f"{times:.2f} times the recorded batch ({low:.2f} to {high:.2f}) fits into {device}"
    return (
        f"a batch of {values['largest_batch_count']} ({values['largest_batch_low_count']} to "
        f"{values['largest_batch_high_count']}) fits into {device}: {times:.2f} times the recorded {values['batch_count']}"
    )


def _notes(values: dict[str, Value], fit: Fit) -> tuple[str, ...]:
    notes = []
    if not fit.replayed and values["device_name"] != "cpu":
        notes.append(
            "torch's allocator, replayed, does not hold what it held when recorded: what it wastes is assumed (0 to 8 %)"
        )
    if values["device_name"] == "cpu":
        notes.append(
            "cpu: what was allocated before the recording is not in its totals, and counts as nothing here"
        )
    if values["batch_count"] is None:
        notes.append("the recorded shapes do not tell how many items a step holds")
    return tuple(notes)
