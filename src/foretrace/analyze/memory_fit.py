"""The largest batch that fits into a device's memory, from one recording of a smaller one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.memory import batch_bytes, device_memory, memory_replay
from foretrace.analyze.concepts.memory.memory_replay import Memory
from foretrace.analyze.concepts.work import batch_size
from foretrace.analyze.result import Result, Value, analysis
from foretrace.errors import MissingDataError, UsageError
from foretrace.trace import Trace
from foretrace.units import format_value

_GIB = 2**30
_MOST_GIB, _MOST_TIMES = 1e6, 1e6


@dataclass(frozen=True)
class _Fit:
    """How many times the recorded batch fits, and what the device then holds."""

    times: float
    low: float
    high: float


@analysis(
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
    what is never freed, are taken not to. The curve of allocated memory is replayed with more of what grows, so that a peak
    that moves to another place of the step is found there.

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

    What is assumed: the CUDA context takes 600 MiB (400 to 1,000), the allocator holds 2 % (0 to 8) more than is allocated
    when it runs full, what grows may be off by 3 %, every item is of the same size, and kernels choose the same workspaces.
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
    fit = _fit(trace, memory, device)
    values = _values(trace, memory, device, fit)
    return Result(says=_says(values), table=_table(trace, memory), values=values, notes=_notes(values))


def largest_times(trace: Trace, memory: Memory, available_bytes: float, *, slope: float = 1.0) -> float:
    """How many times the recorded batch has a peak of no more than this; less than 1 where the recorded one has more."""
    rows = batch_bytes.growing(trace).tolist()

    def peak(times: float) -> int:
        grown = max(1 + (times - 1) * slope, 0.0)
        return memory.peak_with(
            [memory_replay.MemoryChange("a larger batch", factors=dict.fromkeys(rows, grown))]
        )

    low, high = 0.0, 2.0
    while peak(high) <= available_bytes and high < _MOST_TIMES:
        low, high = high, 2 * high
    while high - low > 1e-3 * max(low, 1.0):
        middle = (low + high) / 2
        low, high = (middle, high) if peak(middle) <= available_bytes else (low, middle)
    return low


def _fit(trace: Trace, memory: Memory, device: int) -> _Fit:
    point, least, most = (
        largest_times(trace, memory, max(device - context, 0) / (1 + unusable), slope=slope)
        for context, unusable, slope in (
            (device_memory.CONTEXT_BYTES, device_memory.UNUSABLE, 1.0),
            (device_memory.CONTEXT_MOST_BYTES, device_memory.UNUSABLE_MOST, 1 + device_memory.GROWTH_OFF),
            (device_memory.CONTEXT_LEAST_BYTES, 0.0, 1 - device_memory.GROWTH_OFF),
        )
    )
    return _Fit(point, min(least, point), max(most, point))


def _values(trace: Trace, memory: Memory, device: int, fit: _Fit) -> dict[str, Value]:
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


def _notes(values: dict[str, Value]) -> tuple[str, ...]:
    notes = []
    if values["device_name"] == "cpu":
        notes.append(
            "cpu: what was allocated before the recording is not in its totals, and counts as nothing here"
        )
    if values["batch_count"] is None:
        notes.append("the recorded shapes do not tell how many items a step holds")
    return tuple(notes)
