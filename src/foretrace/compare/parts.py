"""The parts of a step: every moment of it belongs to exactly one, so that they sum to its time.

While the GPU works, a moment belongs to what it works on; of work that runs at the same time, to the first of `_WORK`. While
it waits, the moment belongs to what it waits for (see `idle`). Without a GPU, a moment belongs to what the thread that takes
the steps does. Of several steps the parts are those of the one in the middle by length, or the mean of the two in the middle:
these sum to the median step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device import device_roles, device_time
from foretrace.analyze.concepts.device.device_roles import ATTENTION_PIECES, FUSED_ATTENTION
from foretrace.analyze.concepts.host import host_activity, runtime_calls
from foretrace.analyze.concepts.host.idle_causes import Explainer, find_gaps
from foretrace.analyze.concepts.host.runtime_calls import NOBODY, HostSpans
from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.steps import measured_window, step_windows
from foretrace.intervals import Intervals
from foretrace.trace import Trace, once_per_trace

GPU, WAIT, HOST, RECORDING = "GPU", "wait", "host", "recording"  # kinds of parts
PRODUCTS, ATTENTION, HOST_COPIES = "matrix products", "attention", "copies to and from the host"
COMMUNICATION, ELEMENTWISE = "communication", "elementwise"
DATA, SYNC, LAUNCHING = "waiting for data", "waiting in a sync", "launching: operators and calls"
PYTHON, RECORDED = "Python between operators", "unprofiled less recorded"

# What roles of GPU work are called here, in the order in which they claim a moment: computing, then talking, then copying.
_WORK: Mapping[str, str] = {
    "gemm": PRODUCTS,
    FUSED_ATTENTION: ATTENTION,
    ATTENTION_PIECES: ATTENTION,
    "convolution": "convolutions",
    "elementwise": ELEMENTWISE,
    "reduction": "reductions",
    "norm": "norms",
    "softmax": "softmax",
    "optimizer": "optimizer kernels",
    "embedding": "embedding and indexing",
    "other": "other kernels",
    "unknown": "unrecognised kernels",
    "copy": "copies on the GPU",
    "communication": COMMUNICATION,
}
_EARLIER = "work of earlier steps"
# What causes of idle time are called here.
_WAITS: Mapping[str, str] = {
    "input": DATA,
    "sync": SYNC,
    "copy": HOST_COPIES,
    "allocator": "allocating memory",
    "communication": COMMUNICATION,
    "profiler": "the profiler's own work",
    "code loading": "loading GPU code",
    "host: operator": LAUNCHING,
    "host: runtime call": LAUNCHING,
    "launch call": LAUNCHING,
    "launch latency": LAUNCHING,
    "host: Python": PYTHON,
    "host: not recorded": PYTHON,
    "kernel-to-kernel": "pauses between kernels",
    "queued": "queued work that did not start",
    "unexplained": "idle, unexplained",
}
_ON_HOST: Mapping[str, str] = {
    "gemm": PRODUCTS,
    "convolution": "convolutions",
    "attention": ATTENTION,
    "norm": "norms",
    "softmax": "softmax",
    "dropout": ELEMENTWISE,
    "elementwise": ELEMENTWISE,
    "copy": "copies",
    "concatenation": "copies",
    "reduction": "reductions",
    "loss": "reductions",
    "pooling": "pooling",
    "indexing": "embedding and indexing",
    "optimizer": "optimizer kernels",
    "triton": ELEMENTWISE,
}
_OTHER_OPERATORS = "other operators"
_HOST_COPY = r"HtoD|DtoH|Host -> |-> Host|HostTo|ToHost"
_COLLECTIVE = r"^(?:gloo|mpi|ucc|nccl|xccl):"
_SHORTEST_NS = 1_000  # as `idle` has it: shorter gaps are pauses between kernels


@dataclass(frozen=True)
class StepParts:
    """The recorded steps, and the parts of the one in the middle."""

    times_ns: tuple[float, ...]  # of all whole steps, or of the recording
    parts: Mapping[tuple[str, str], float]  # by kind and name, in ns; they sum to the median of the times
    marked: bool  # whether these are steps; else the recording is taken for one
    clock: str  # whose: "GPU" or "host"

    @property
    def step_ns(self) -> float:
        """The median."""
        return float(np.median(self.times_ns)) if self.times_ns else 0.0

    @property
    def busy_ns(self) -> float:
        """How long the GPU works in the step."""
        return sum(ns for (kind, _), ns in self.parts.items() if kind == GPU)


@once_per_trace
def step_parts(trace: Trace) -> StepParts:
    """The steps of a recording and their parts."""
    starts, ends, marked, clock = _periods(trace)
    lengths = ends - starts
    order = np.argsort(lengths, kind="stable")
    middle = order[(len(order) - 1) // 2 : len(order) // 2 + 1]
    divided = _by_device if trace.has_device else _by_thread
    sums: dict[tuple[str, str], float] = {}
    for row in middle:
        for name, ns in divided(trace, int(starts[row]), int(ends[row])).items():
            sums[name] = sums.get(name, 0.0) + ns / len(middle)
    return StepParts(
        tuple(lengths.astype(float)), {name: ns for name, ns in sums.items() if ns}, marked, clock
    )


def _periods(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64], bool, str]:
    """When the whole steps were, on the GPU's clock where they launched work; the recording where none are marked."""
    averaged = [window for window in step_windows(trace) if window.averaged]
    on_gpu = [
        (w.done_ns - w.gpu_ns, w.done_ns) for w in averaged if w.gpu_ns is not None and w.done_ns is not None
    ]
    numbers = {window.number for window in averaged}
    on_host = [(step.start_ns, step.end_ns) for step in trace.steps if step.number in numbers]
    found = [period for period in on_gpu or on_host if period[1] > period[0]]
    marked = bool(found)
    if not found:
        whole = measured_window(trace, ())
        found = [(whole.start_ns, whole.end_ns)] if whole.length_ns > 0 else []
    times = np.array(found, np.int64).reshape(-1, 2)
    return times[:, 0], times[:, 1], marked, "GPU" if on_gpu or (trace.has_device and not marked) else "host"


def _by_device(trace: Trace, start_ns: int, end_ns: int) -> dict[tuple[str, str], float]:
    """A stretch of time by what the GPU works on, and by what it waits for."""
    near = (pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns)
    launched = _named_work(trace).filter(near)
    found: dict[tuple[str, str], float] = {}
    claimed = intervals.EMPTY
    names = [*dict.fromkeys(_WORK.values()), HOST_COPIES, _EARLIER]
    for name in names:
        rows = _earlier(trace).filter(near) if name == _EARLIER else launched.filter(pl.col("part") == name)
        busy = intervals.clip(device_time.covered(rows), start_ns, end_ns)
        found[GPU, name] = float(intervals.subtract(busy, claimed).total_ns)
        claimed = intervals.either(claimed, busy)
    for name, ns in _idle(trace, intervals.gaps(claimed, start_ns, end_ns)).items():
        found[WAIT, name] = found.get((WAIT, name), 0.0) + ns
    return found


@once_per_trace
def _named_work(trace: Trace) -> pl.DataFrame:
    """The launched GPU work with the part that it belongs to."""
    work = device_roles.classified(trace)
    role = device_roles.role_names().replace_strict(dict(_WORK), return_dtype=pl.String)
    outward = (pl.col("kind") == "copy") & pl.col("name").is_in(device_time.names_like(work, _HOST_COPY))
    return work.with_columns(part=pl.when(outward).then(pl.lit(HOST_COPIES)).otherwise(role))


def _earlier(trace: Trace) -> pl.DataFrame:
    return device_time.device_work(trace).filter(pl.col("orphan"))


@once_per_trace
def _explainer(trace: Trace) -> Explainer:
    return Explainer(trace, HostSpans(trace))


def _idle(trace: Trace, free: Intervals) -> dict[str, float]:
    """Idle time by what the GPU waited for."""
    if not len(free.start):
        return {}
    work = device_time.device_work(trace)
    causes = _explainer(trace).explain(find_gaps(work, free), _SHORTEST_NS)
    named = pl.col("cause").cast(pl.String).replace_strict(dict(_WAITS), return_dtype=pl.String)
    rows = causes.group_by(named.alias("what")).agg(pl.col("part_ns").sum()).sort("what")
    return {what: float(ns) for what, ns in rows.iter_rows()}


def _by_thread(trace: Trace, start_ns: int, end_ns: int) -> dict[tuple[str, str], float]:
    """A stretch of time by what the thread with most operators in it does."""
    host = HostSpans(trace)
    track = trace.spans["track_id"].cast(pl.Int64).to_numpy()
    operators = host.kind("op") & (host.end_ns > start_ns) & (host.start_ns < end_ns)
    if not operators.any():
        return {(HOST, PYTHON): float(end_ns - start_ns)}
    thread = int(np.bincount(track[operators]).argmax())
    edges = (np.array([start_ns], np.int64), np.array([end_ns], np.int64))
    pieces = host_activity.doing(host, np.flatnonzero(track == thread), *edges)
    loading = host.nearest(pieces.span_id, host.named(runtime_calls.DATA_LOADING, "op", "annotation"))
    talking = host.nearest(pieces.span_id, host.named(_COLLECTIVE, "op", "annotation"))
    operator = host.nearest(pieces.span_id, host.kind("op"))
    names = trace.spans["name"].gather(np.maximum(operator, 0)).cast(pl.String).to_list()
    found: dict[tuple[str, str], float] = {}
    for row, ns in enumerate((pieces.end_ns - pieces.start_ns).tolist()):
        if loading[row] != NOBODY:
            part = (WAIT, DATA)
        elif talking[row] != NOBODY:
            part = (WAIT, COMMUNICATION)
        elif operator[row] == NOBODY:
            part = (HOST, PYTHON)
        else:
            part = (HOST, operator_part(names[row]))
        found[part] = found.get(part, 0.0) + ns
    return found


def operator_part(name: str) -> str:
    """What an operator that runs on the processor is part of."""
    name = name.removesuffix("_") if work_models.find(name) is None else name
    known = work_models.find(name)
    if known is not None:
        return _ON_HOST.get(known[0], _OTHER_OPERATORS)
    if "conv" in name:
        return "convolutions"
    return "norms" if "norm" in name else _OTHER_OPERATORS
