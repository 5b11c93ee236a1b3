"""GPU time: what it was spent on, how busy the GPU was, and how full.

Definitions are TraceLens's for the timeline (its parts sum to the span exactly) and the TensorBoard plugin's for
utilisation, SM efficiency and occupancy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.names.per_name import distinct_names
from foretrace.intervals import Intervals, Times
from foretrace.schema import KINDS
from foretrace.trace import Trace, once_per_trace
from foretrace.units import counted, format_value

# NCCL, RCCL, NVSHMEM, symmetric memory and vLLM's own; also where no collective's metadata was recorded. A name of
# a collective counts only where it begins the kernel's: "warp_all_reduce" within one is no communication.
COMMUNICATION = (
    r"(?i)nccl|rccl|nvshmem|cross_device_reduce|multimem_|(?:one|two)_?shot"
    r"|(?:^|::|\s)(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
)
ORPHAN = pl.col("launch_id").is_null() & pl.col("op_id").is_null()
_RECORDED_SHARE = 0.9


@dataclass(frozen=True)
class Timeline:
    """A stretch of device time in five parts that sum to it exactly, and two totals across overlaps."""

    computation_ns: int  # kernels that compute, and memsets
    exposed_communication_ns: int  # while nothing computes
    exposed_copy_ns: int  # while nothing computes or communicates
    idle_ns: int
    communication_ns: int
    copy_ns: int
    earlier_ns: int = 0  # while only work queued before the recording ran

    @property
    def busy_ns(self) -> int:
        """While anything ran that was launched in the recording."""
        return self.computation_ns + self.exposed_communication_ns + self.exposed_copy_ns

    @property
    def span_ns(self) -> int:
        """The whole stretch."""
        return self.busy_ns + self.earlier_ns + self.idle_ns


@dataclass(frozen=True)
class MeasuredPeriod:
    """A stretch of time that shares are taken of, and what to call it."""

    start_ns: int
    end_ns: int
    says: str

    @property
    def length_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


@once_per_trace
def device_work(trace: Trace) -> pl.DataFrame:
    """All device spans, with `communication` and `orphan`: queued before the recording began.

    Where no span has a launch, launches were not recorded, and nothing counts as queued before.
    """
    spans = trace.device_spans
    named = names_like(spans, COMMUNICATION)
    in_table = pl.col("id").is_in(trace.collectives["span_id"].unique().implode())
    linked = spans["launch_id"].null_count() < spans.height
    return spans.with_columns(
        communication=(pl.col("kind") == "kernel") & (pl.col("name").is_in(named) | in_table),
        orphan=ORPHAN if linked else pl.lit(value=False),
    )


def queued_before(count: int, length_ns: int | None = None, *, noun: str = "GPU task") -> str:
    """3 GPU tasks (1.20 ms) queued before the recording began."""
    length = "" if length_ns is None else f" ({format_value('_ns', length_ns)})"
    return f"{counted(count, noun)}{length} queued before the recording began"


def names_like(spans: pl.DataFrame, pattern: str) -> pl.Series:
    """The distinct names that match; looked up once per name, not once per span."""
    names = distinct_names(spans["name"])
    return names.filter(names.cast(pl.String).str.contains(pattern)).implode()


def covered(spans: pl.DataFrame) -> Intervals:
    """The time that any of the spans covers; they need `start_ns` and `end_ns`."""
    return intervals.union(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())


def timeline(work: pl.DataFrame) -> Timeline:
    """The timeline identity of rows of `device_work`, from the first start to the last end of what was launched."""
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    orphan, talks = work["orphan"].to_numpy(), work["communication"].to_numpy()
    copies = work["kind"].to_physical().to_numpy() == KINDS.index("copy")
    launched = ~orphan

    def during(rows: NDArray[np.bool_]) -> Intervals:
        return intervals.union(starts[rows], ends[rows])

    earlier = during(orphan)
    computation = during(launched & ~copies & ~talks)
    communication = during(launched & talks)
    copying = during(launched & copies)
    begin = int(starts[launched].min()) if launched.any() else 0
    end = int(ends[launched].max()) if launched.any() else 0
    kernels = intervals.either(computation, communication)
    exposed_communication = intervals.outside_ns(communication, computation)
    exposed_copy = intervals.outside_ns(copying, kernels)
    busy = computation.total_ns + exposed_communication + exposed_copy
    earlier = intervals.clip(earlier, begin, end)
    copied_then = intervals.intersect(earlier, copying)
    alone = intervals.outside_ns(earlier, kernels) - intervals.outside_ns(copied_then, kernels)
    return Timeline(
        computation_ns=computation.total_ns,
        exposed_communication_ns=exposed_communication,
        exposed_copy_ns=exposed_copy,
        idle_ns=max(end - begin, 0) - busy - alone,
        communication_ns=communication.total_ns,
        copy_ns=copying.total_ns,
        earlier_ns=alone,
    )


def kernel_fill(trace: Trace) -> pl.DataFrame:
    """Kernels with a sound duration, with `blocks_per_sm` and `occupancy_pct` where recorded."""
    kernels = trace.device_spans.filter(pl.col("kind") == "kernel")
    geometry = trace.kernels.select(
        pl.col("span_id").alias("id"), "grid_x", "grid_y", "grid_z", "blocks_per_sm", "occupancy_pct"
    )
    if kernels["id"].equals(geometry["id"]):  # as a rule, and quicker than a join
        joined = kernels.hstack(geometry.drop("id"))
    else:
        joined = kernels.join(geometry, on="id", how="left", maintain_order="left")
    if not joined["blocks_per_sm"].null_count():
        return joined.drop("grid_x", "grid_y", "grid_z")
    blocks = pl.col("grid_x").cast(pl.Float64) * pl.col("grid_y") * pl.col("grid_z")
    units = pl.col("device").replace_strict(_sm_counts(trace), default=None, return_dtype=pl.Float64)
    return joined.with_columns(blocks_per_sm=pl.coalesce("blocks_per_sm", blocks / units)).drop(
        "grid_x", "grid_y", "grid_z"
    )


def _sm_counts(trace: Trace) -> dict[int, float]:
    """Streaming multiprocessors (compute units) of each device, as recorded."""
    counts = {}
    for device, properties in device_properties(trace).items():
        count = properties.get("numSms", properties.get("multiProcessorCount"))
        if isinstance(count, int) and count > 0:
            counts[device] = float(count)
    return counts


@once_per_trace
def device_names(trace: Trace) -> dict[int | None, str]:
    """The recorded name of each device that worked, or its number."""
    properties = device_properties(trace)
    names: dict[int | None, str] = {}
    for device in trace.device_spans["device"].unique().sort().to_list():
        name = properties.get(device, {}).get("name")
        names[device] = (
            name if isinstance(name, str) and name else f"device {'?' if device is None else device}"
        )
    return names


def device_properties(trace: Trace) -> dict[int, Mapping[str, Any]]:
    """The recorded properties of each device."""
    listed = trace.meta.get("devices", ())
    worked = trace.device_spans["device"].drop_nulls().unique().to_list()
    if len(listed) == 1 and len(worked) == 1:
        # With HIP_VISIBLE_DEVICES the one device is listed as 0, but its work is under another number.
        return {worked[0]: listed[0]}
    numbered = ((device.get("id", place), device) for place, device in enumerate(listed))
    return {number: device for number, device in numbered if isinstance(number, int)}


def without_occupancy(kernels: pl.DataFrame) -> str | None:
    """What to say where no kernel has an occupancy, as in Kineto's recordings of ROCm; null where one has."""
    if kernels.is_empty() or kernels["occupancy_pct"].null_count() < kernels.height:
        return None
    return (
        "no occupancy recorded: it needs the registers of each kernel, which torch.profiler records on CUDA only; "
        "rocprofv3 records them on ROCm"
    )


def utilisation_pct(kernels: pl.DataFrame, window: MeasuredPeriod) -> float | None:
    """Share of the window with at least one kernel running; copies and memsets do not count."""
    if window.length_ns <= 0:
        return None
    busy = intervals.clip(covered(kernels), window.start_ns, window.end_ns)
    return 100 * busy.total_ns / window.length_ns


def sm_efficiency_pct(kernels: pl.DataFrame, window: MeasuredPeriod) -> float | None:
    """Estimated share of SMs with a block, over the window; null where too few grids were recorded.

    The plugin's code, not its text: blocks per SM of concurrent kernels add up before the cut at 1.
    """
    at, load = _sm_load(kernels)
    if window.length_ns <= 0 or not len(at) or not mostly_recorded(kernels, "blocks_per_sm"):
        return None
    edges = np.clip(at, window.start_ns, window.end_ns)
    return float(100 * (np.diff(edges) * load[:-1]).sum() / window.length_ns)


def occupancy_pct(kernels: pl.DataFrame, window: MeasuredPeriod) -> float | None:
    """Estimated occupancy while kernels ran: the mean over kernel time in the window, not over the window."""
    if not mostly_recorded(kernels, "occupancy_pct"):
        return None
    known = kernels.drop_nulls("occupancy_pct")
    length = (
        known["end_ns"].clip(upper_bound=window.end_ns) - known["start_ns"].clip(lower_bound=window.start_ns)
    ).clip(lower_bound=0)
    total = int(length.sum())
    return float((known["occupancy_pct"] * length).sum()) / total if total else None


def mostly_recorded(kernels: pl.DataFrame, column: str) -> bool:
    """Whether a column is known for enough of the kernels' time to stand for all of it."""
    known = int(kernels.drop_nulls(column)["dur_ns"].sum())
    return known >= _RECORDED_SHARE * int(kernels["dur_ns"].sum())


def _sm_load(kernels: pl.DataFrame) -> tuple[Times, NDArray[np.float64]]:
    """Times at which the estimated load of the SMs changes, and the load from then on, 0 to 1."""
    known = kernels.drop_nulls("blocks_per_sm").filter(pl.col("end_ns") > pl.col("start_ns"))
    blocks = known["blocks_per_sm"].to_numpy()
    times = np.concatenate((known["start_ns"].to_numpy(), known["end_ns"].to_numpy()))
    order = np.argsort(times, kind="stable")
    running = np.cumsum(np.repeat((1, -1), len(blocks))[order])
    load = np.cumsum(np.concatenate((blocks, -blocks))[order])
    load[running == 0] = 0  # the sum of floats comes back to zero only nearly
    times = times[order]
    last = np.flatnonzero(np.append(times[1:] > times[:-1], True)) if len(times) else order
    return times[last], np.clip(load[last], 0, 1)


def sm_efficiency_within(kernels: pl.DataFrame, edges: Times) -> NDArray[np.float64] | None:
    """Estimated SM efficiency of one device's kernels between each two edges, in per cent; None where grids are missing."""
    at, load = _sm_load(kernels)
    if not len(at) or not mostly_recorded(kernels, "blocks_per_sm"):
        return None
    filled = np.concatenate(
        ([0.0], np.cumsum(np.diff(at) * load[:-1]))
    )  # ns with all SMs filled, up to each time
    upto = np.interp(edges, at, filled)
    share: NDArray[np.float64] = 100 * np.diff(upto) / np.maximum(np.diff(edges), 1)
    return share


def by_device(spans: pl.DataFrame) -> list[tuple[int | None, pl.DataFrame]]:
    """The spans of each device that has any, by its number."""
    devices = spans["device"].unique().sort().to_list()
    if len(devices) == 1:
        return [(devices[0], spans)]
    return [(device, spans.filter(pl.col("device").eq_missing(device))) for device in devices]
