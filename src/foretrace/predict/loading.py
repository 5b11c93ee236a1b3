"""Waits for a DataLoader as the unprofiled steps had them, in place of those of the few steps that were recorded.

Waits come in bursts, and recorded steps are few: they hold too many waits or too few. Where all unprofiled waits were
measured, the recorded steps get these, spread as they were. Where they were not, but blocks of unprofiled steps differ
widely and workers load, the quickest blocks are taken to be without waits, and recorded ones are made longer until the step
is the measured one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import DATA_LOADING
from foretrace.ingest.timed import LoaderTimes, Timed
from foretrace.predict import edits
from foretrace.predict.calibrate import Calibration, calibrate, scaled_host
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Array, Calls, ProgramTime
from foretrace.predict.prediction import Prediction, no_shorter_than
from foretrace.predict.program import Program
from foretrace.predict.steady import step_ns as steady_step_ns
from foretrace.sourced import JUDGEMENT, Factor, Share
from foretrace.trace import Trace

LEAST_SHARE = Share(0.01, "the step, from which waits are looked at", JUDGEMENT)
LATE_SHARE = Share(0.05, "the step, from which waiting for data holds it up", JUDGEMENT)
_UNEVEN = Share(
    0.2, "the median block, by which unprofiled blocks differ where something comes in bursts", JUDGEMENT
)
_QUICK = Share(0.02, "the quickest block, within which others are as quick", JUDGEMENT)
_AGREES = Share(
    0.05,
    "the quickest blocks, by which the estimated step may differ and stay: the lowest of some is low by chance",
    JUDGEMENT,
)
_HOST_FACTORS = (
    Factor(0.6, "the estimated host, at its fastest: two times its scatter", "benchmarks/steps.py"),
    Factor(1.65, "the estimated host, at its slowest: two times its scatter", "benchmarks/steps.py"),
)
_REACHED = Share(0.1, "the quickest blocks, by which the step without waits may miss them", JUDGEMENT)
_WORKERS = "MultiProcessing"


@dataclass(frozen=True)
class Waits:
    """How long the host waits for data before calls of the program."""

    calls: Calls
    ns: Array

    def added(self, program: Program) -> Program:
        """The program with these waits."""
        gap = program.gap_ns.copy()
        np.add.at(gap, self.calls, self.ns)
        return replace(program, gap_ns=gap)

    def gone(self) -> Edit:
        """The edit that takes them out again."""
        together: dict[int, int] = {}
        for call, wait in zip(self.calls.tolist(), self.ns.tolist(), strict=True):
            together[call] = together.get(call, 0) - wait
        return Edit(added_host_ns=together)


@dataclass(frozen=True)
class Loaded:
    """A calibrated program with the waits of unprofiled steps."""

    calibration: Calibration
    waits: Waits
    workers: int | None  # now; 0 where the main process loads, None where nobody says
    made_ns: float | None  # what one process needs for the input of a step; None where nobody says

    @property
    def wait_ns(self) -> float:
        """How long a step waits, at the mean."""
        return float(self.waits.ns.mean())

    def limited(self, prediction: Prediction, changes: tuple[Change, ...]) -> Prediction:
        """Workers that are waited for set the pace: what leaves them as they are makes no step shorter than that."""
        waited = set(self.waits.calls.tolist())
        faster = any(
            added < 0 and call in waited
            for change in changes
            for call, added in change.edit.added_host_ns.items()
        )
        late = self.wait_ns >= LATE_SHARE * self.calibration.step_ns
        if faster or not late or not self.workers or self.made_ns is None:
            return prediction
        pace = self.made_ns / self.workers
        why = f"The loader's {self.workers} workers bring the input of a step every {pace / 1e6:.3g} ms: first they must be faster."
        return no_shorter_than(prediction, pace, why)


def loader_spans(trace: Trace, program: Program) -> pl.DataFrame:
    """The spans in which the program's threads wait for a DataLoader or DataPipe."""
    threads = trace.spans["track_id"].gather(program.call_span).unique().implode()
    return trace.spans.filter(
        pl.col("kind").is_in(("op", "annotation"))
        & (pl.col("dur_ns") > 0)
        & pl.col("name").cast(pl.String).str.contains(DATA_LOADING)
        & pl.col("track_id").is_in(threads)
    )


def calibrate_loaded(
    trace: Trace, program: Program, step_ns: float | None, timed: Timed | None
) -> Loaded | None:
    """The program with the waits that unprofiled steps had; `None` where nothing more is known than it holds itself."""
    if step_ns is None or timed is None or not len(program.kind):
        return None
    spans = loader_spans(trace, program)
    start = (spans["start_ns"] - program.start_ns).to_numpy()
    recorded = intervals.union(start, start + spans["dur_ns"].to_numpy())
    recorded = intervals.clip(recorded, 0, program.measured_host_ns)
    without = edits.apply(program, Edit(removed_host=ProgramTime(recorded)))
    slots = _slots(program, recorded)
    if timed.loader is not None:
        mean = timed.loader.mean_ns
        if mean >= step_ns or max(mean, recorded.total_ns / len(slots.ns)) < LEAST_SHARE * step_ns:
            return None
        waits = _as_measured(slots, timed.loader.waits_ns)
        made = calibrate(
            trace,
            without,
            step_ns=step_ns,
            waits=(waits.calls, waits.ns),
            host_ns=timed.host_ns,
            device=timed.device,
        )
        made = replace(
            made, basis=f"{made.basis}; waits for data are those of {timed.loader.steps} unprofiled steps"
        )
        return Loaded(made, waits, timed.loader.workers, _made_ns(timed.loader, step_ns))
    if not spans["name"].cast(pl.String).str.contains(_WORKERS).any():
        return None
    told = _from_blocks(trace, without, slots, step_ns, timed.blocks_ns)
    workers = timed.named_workers
    return told and Loaded(*told, workers, workers * step_ns if workers else None)


def _made_ns(loader: LoaderTimes, step_ns: float) -> float:
    """What one process needs for the input of a step: measured there, else what workers that are waited for deliver."""
    if loader.made_ns is not None:
        return loader.made_ns * loader.batches
    return loader.workers * step_ns if loader.workers else loader.mean_ns


def _slots(program: Program, recorded: intervals.Intervals) -> Waits:
    """For each step the call before which it waits, and how long it did in the recording."""
    inside = program.step_calls < len(program.kind)
    marks = program.call_start_ns[program.step_calls[inside]]
    first = np.minimum(program.step_calls, len(program.kind) - 1).astype(np.int64)
    calls, ns, longest = first.copy(), np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    for start, end in zip(recorded.start.tolist(), recorded.end.tolist(), strict=True):
        step = max(int(np.searchsorted(marks, start, "right")) - 1, 0)
        call = min(int(np.searchsorted(program.call_start_ns, end)), len(program.kind) - 1)
        # Between two steps the wait is before the first call of the next.
        step = int(program.step[call]) if int(program.step[call]) < len(first) else step
        ns[step] += end - start
        if end - start > longest[step]:
            longest[step], calls[step] = end - start, call
    return Waits(Calls(calls), ns)


def _as_measured(slots: Waits, waits_ns: tuple[float, ...]) -> Waits:
    """The measured waits in as many steps as were recorded: the longest where the recording has its longest."""
    count = len(slots.ns)
    upto = np.concatenate(([0.0], np.cumsum(waits_ns)))
    edges = np.linspace(0, len(waits_ns), count + 1)
    parts = np.diff(np.interp(edges, np.arange(len(upto)), upto)) * count / len(waits_ns)
    ns = np.zeros(count, np.int64)
    ns[np.argsort(slots.ns, kind="stable")] = parts.round().astype(np.int64)
    return Waits(slots.calls, ns)


def _from_blocks(
    trace: Trace, without: Program, slots: Waits, step_ns: float, blocks_ns: tuple[float, ...]
) -> tuple[Calibration, Waits] | None:
    """Waits told from blocks of unprofiled steps that differ widely."""
    if not blocks_ns or max(blocks_ns) - min(blocks_ns) < _UNEVEN * median(blocks_ns):
        return None
    quick = fmean(block for block in blocks_ns if block <= (1 + _QUICK) * min(blocks_ns))
    estimated = calibrate(trace, without).program
    factor = 1.0
    if abs(steady_step_ns(estimated) / quick - 1) > _AGREES:
        factor = _meets(lambda tried: steady_step_ns(scaled_host(estimated, tried)), quick, *_HOST_FACTORS)
    rest = scaled_host(estimated, factor)
    if abs(steady_step_ns(rest) / quick - 1) > _REACHED:
        return None
    shape = slots.ns if slots.ns.any() else np.ones_like(slots.ns)

    def waits(mean_ns: float) -> Waits:
        return Waits(slots.calls, (shape * (mean_ns / shape.mean())).astype(np.int64))

    mean = _meets(lambda tried: steady_step_ns(waits(tried).added(rest)), step_ns, 1.0, 4 * step_ns)
    found = waits(mean)
    fitted = found.added(rest)
    step = steady_step_ns(fitted)
    basis = (
        f"the quickest unprofiled blocks take {quick / 1e6:.3g} ms a step, the host {factor:.2f} times the estimate; what "
        "the measured step takes longer is taken to be waiting for data"
    )
    host_bound = steady_step_ns(scaled_host(rest, 0.5)) < 0.98 * quick
    made = Calibration(fitted, step_ns, basis, True, abs(step / step_ns - 1) < _QUICK, host_bound)
    return made, found


def _meets(step: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a growing step is as long as wanted, or the nearer end."""
    for _ in range(24):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if step(middle) < wanted else (low, middle)
    return high
