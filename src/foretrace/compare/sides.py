"""A Side: what a comparison asks of one recording, per step and as plain numbers, so that a baseline can hold it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from foretrace import analyze
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.work import flops, throughput
from foretrace.analyze.concepts.work.work_models import MATRIX_FAMILIES
from foretrace.analyze.steps import step_windows
from foretrace.compare.device_speed import Kernels, kernel_times
from foretrace.compare.environment import environment_of
from foretrace.compare.memory import snapshot_beside
from foretrace.compare.parts import step_parts
from foretrace.diagnose.case import Case
from foretrace.errors import InputError, MissingDataError
from foretrace.trace import Trace

PARTS = tuple[str, str]  # kind and name


@dataclass(frozen=True)
class Side:
    """One recording, or a baseline made from one."""

    name: str
    device: str  # names of the devices; empty where the program has none
    times_ns: tuple[
        float, ...
    ]  # the recorded whole steps; one time, of the whole recording, where none are marked
    parts: Mapping[PARTS, float]  # of the recorded step in the middle, in ns
    marked: bool  # whether steps are marked
    clock: str  # "GPU" or "host"
    blocks_ns: tuple[float, ...] = ()  # steps timed without a profiler, in blocks
    unprofiled_ns: float | None = None  # the step by these
    taken_in: Mapping[str, float] = field(default_factory=dict)  # items and tokens of a step
    product_flops: float | None = None  # of matrix products, convolutions and attention in a step
    dtype: str | None = None  # of the products with most FLOPs
    counts: Mapping[str, float] = field(
        default_factory=dict
    )  # kernels, launches and peak_bytes, where they are known
    values: Mapping[str, float] = field(default_factory=dict)  # of analyses, as a baseline keeps them
    has_stacks: bool = False
    kernels: Kernels = field(default_factory=dict)  # to see how fast the GPU ran; a baseline has none
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  # processor and versions, where they are known

    @property
    def recorded_ns(self) -> float:
        """The median of the recorded steps."""
        return float(np.median(self.times_ns)) if self.times_ns else 0.0

    @property
    def busy_ns(self) -> float:
        """How long the GPU works in a step."""
        return sum(ns for (kind, _), ns in self.parts.items() if kind == "GPU")

    @property
    def steps_count(self) -> int:
        """How many whole steps were recorded."""
        return len(self.times_ns) if self.marked else 0

    @property
    def step_ns(self) -> float | None:
        """The step by the best that is known of it; None where no steps are marked."""
        if self.unprofiled_ns is not None:
            return self.unprofiled_ns
        return self.recorded_ns if self.marked and self.times_ns else None


def side_of(recording: Case | Trace, name: str) -> Side:
    """The side that a recording is; a Case knows what was timed without the profiler."""
    trace = recording.whole if isinstance(recording, Case) else recording
    timed = recording.timed if isinstance(recording, Case) else None
    unprofiled_ns = recording.measured_step_ns if isinstance(recording, Case) else None
    blocks = tuple(block for block in timed.blocks_ns if block > 0) if timed is not None else ()
    known = step_parts(trace)
    windows = step_windows(trace)
    computed, dtype = _products(trace)
    return Side(
        name=name,
        device=device_names(trace),
        times_ns=known.times_ns,
        parts=known.parts,
        marked=known.marked,
        clock=known.clock,
        blocks_ns=blocks if unprofiled_ns is not None else (),
        unprofiled_ns=unprofiled_ns,
        taken_in=throughput.taken_in(trace, windows),
        product_flops=computed,
        dtype=dtype,
        counts={**_counts(trace), **_peak(recording)},
        has_stacks=trace.python.height > 0,
        kernels=kernel_times(trace) if trace.has_device else {},
        environment=environment_of(trace),
    )


def device_names(trace: Trace) -> str:
    """The devices that did work, or that are listed where none did."""
    names = list(device_time.device_names(trace).values()) if trace.has_device else []
    names = names or [str(device.get("name")) for device in trace.meta.get("devices", ())]
    return ", ".join(dict.fromkeys(names))


def whole_steps(trace: Trace) -> list[int]:
    """The numbers of the steps that averages are of."""
    return [window.number for window in step_windows(trace) if window.averaged]


def _products(trace: Trace) -> tuple[float | None, str | None]:
    """FLOPs of the products of a step, and the type that most of them are computed in; None where shapes do not tell."""
    work = flops.op_work(trace).filter(pl.col("model").is_in(MATRIX_FAMILIES) & (pl.col("flops") > 0))
    numbers = whole_steps(trace)
    if numbers:
        steps = trace.spans["step"].gather(work["span_id"])
        work = work.filter(steps.is_in(numbers))
    if work.is_empty():
        return None, None
    most = work.group_by("dtype").agg(pl.col("flops").sum()).sort("flops", "dtype", descending=True)
    return float(work["flops"].sum()) / max(len(numbers), 1), most["dtype"][0]


def _counts(trace: Trace) -> dict[str, float]:
    """Kernels and launches of a step, where they are known."""
    found: dict[str, float] = {}
    numbers = whole_steps(trace)
    if trace.has_device:
        work = device_time.device_work(trace).filter(~pl.col("orphan"))
        work = work.filter(pl.col("step").is_in(numbers)) if numbers else work
        share = max(len(numbers), 1)
        found["kernels"] = int((work["kind"] == "kernel").sum()) / share
        if launches := work["launch_id"].drop_nulls().n_unique():
            found["launches"] = launches / share
    return found


def _peak(recording: Case | Trace) -> dict[str, float]:
    """The peak of memory, where it was recorded: in the Run's snapshot, else in its light pass, else in the rich one."""
    snapshot, _ = snapshot_beside(recording)
    if snapshot is not None:
        return {"peak_bytes": float(snapshot.devices[0].origins.memory.peak_bytes)}
    trace = recording.whole if isinstance(recording, Case) else recording
    try:
        if trace.allocations.is_empty() and isinstance(recording, Case) and recording.rich is not None:
            trace = recording.rich.whole
        peak = analyze.run(trace, "memory").values.get("peak_bytes")
    except (MissingDataError, InputError):
        return {}  # no memory was recorded, or the rich pass cannot be read: that is told where it is needed
    return {"peak_bytes": float(peak)} if isinstance(peak, int | float) else {}
