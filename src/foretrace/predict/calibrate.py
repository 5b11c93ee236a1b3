"""From the profiled host to the unprofiled one.

Recording an event costs the host time, and a recorded host is slower altogether. Both are taken out of the
dense parts of the host's line: those with events in them. A long stretch without any event (Python that
calls nothing, a sleep, a data loader) is pure: it costs the same with and without a profiler. A measured
step tells how fast both were together, unless the device hides them; then the host's own measured time tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import exp, log
from statistics import NormalDist

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.ingest.timed import DeviceTimes
from foretrace.predict import cpu_host
from foretrace.predict.builder import QUIET_NS
from foretrace.predict.costs.transfer import STAGED_BYTES
from foretrace.predict.program import Program
from foretrace.predict.replay import replay
from foretrace.predict.steady import host_step_ns, launching, settled
from foretrace.predict.steady import step_ns as steady_step_ns
from foretrace.sourced import JUDGEMENT, Factor, Nanoseconds, Share
from foretrace.trace import Trace


@dataclass(frozen=True)
class Overhead:
    """What recording costs, in nanoseconds an event, and how much slower the rest of the dense host is.

    Chosen so that the estimated step of every recording of the corpus and of the pairs of docs/accuracy.md fits best
    (benchmarks/steps.py prints how well); on one machine, benchmarks/overhead.py measures them.
    """

    op_ns: int
    call_ns: int
    frame_ns: int
    slowdown: float


_FITTED = "fitted to the steps of the corpus and of the pairs of docs/accuracy.md: benchmarks/steps.py"

LIGHT = Overhead(op_ns=500, call_ns=0, frame_ns=0, slowdown=1.9)
RICH = Overhead(op_ns=500, call_ns=0, frame_ns=400, slowdown=2.0)


@dataclass(frozen=True)
class Calibration:
    """A program as it would run without the profiler, and how that is known."""

    program: Program
    step_ns: float
    basis: str
    known: bool  # whether the unprofiled step time was given
    representative: bool  # whether the replay can reach that time at all
    host_bound: bool
    dense_told: bool = True  # whether the step says how fast the dense host is: where it is most of it
    host_told: bool = False  # whether its own measured time says so, where the device hides it
    scatter: float = 0.0  # how far two timings of the same program differ, as a share of the step
    _kept: dict[float, tuple[Program, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def replayed(self, host: float = 1.0) -> tuple[Program, float]:
        """The program on a host this much slower, and how long a step of it takes; replayed once."""
        if host not in self._kept:
            program = self.program if host == 1 else scaled_host(self.program, host)
            self._kept[host] = program, steady_step_ns(program)
        return self._kept[host]


def calibrate(
    trace: Trace,
    program: Program,
    *,
    step_ns: float | None = None,
    waits: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    host_ns: float | None = None,
    device: DeviceTimes | None = None,
) -> Calibration:
    """The program on an unprofiled host; with the measured `step_ns` where there is one.

    `waits` are calls and how long the host waits before them: they were measured without a profiler, and stay as they are.
    `host_ns` is what the host takes, without these, for a step that begins with an idle device. `device` tells how much of
    a step the device works where its streams overlap.
    """
    if cpu_host.of_moments(program):
        return _on_cpu(program, step_ns, waits)
    rich = trace.python.height > 0 or trace.allocations.height > 0
    program = _threads_ready(trace, program)
    dense = dense_ns(program)
    overhead = RICH if rich else LIGHT
    light = _debiased(program, dense, overhead)
    if step_ns is None:
        step = steady_step_ns(light)
        basis = (
            f"the step time without a profiler is estimated from {'a rich' if rich else 'a light'} recording"
        )
        return Calibration(light, step, basis, False, True, _host_bound(light, step))
    waited = np.zeros(len(program.kind), np.int64)
    if waits is not None:
        np.add.at(waited, *waits)
    host = _Host(light, _staged(trace, program), waited)
    if device is not None:
        host = host.with_device(_overlap_factor(host, device))
    made = _to_known(host, step_ns)
    if made.host_bound or host_ns is None:
        return made
    return _by_host_time(host, step_ns, host_ns) or made


def _on_cpu(
    program: Program, step_ns: float | None, waits: tuple[NDArray[np.int64], NDArray[np.int64]] | None
) -> Calibration:
    """The same for a program without a GPU, whose step is what its host does."""
    waited = np.zeros(len(program.kind), np.int64)
    if waits is not None:
        np.add.at(waited, *waits)
    made, basis, reached = cpu_host.fitted(program, step_ns, waited)
    return Calibration(
        made, step_ns or cpu_host.host_step_ns(made), basis, step_ns is not None, reached, host_bound=True
    )


def calibrate_pair(light: tuple[Trace, Program], rich: tuple[Trace, Program]) -> Calibration:
    """The light program, at the shorter of the steps that a light and a rich recording of it suggest.

    A host wanders, and then it is slower: of two estimates the shorter one is nearer to the truth (benchmarks/steps.py
    prints both for folders that hold both recordings).
    """
    made, other = calibrate(*light), calibrate(*rich)
    if other.step_ns < made.step_ns:
        fitted = calibrate(*light, step_ns=other.step_ns)
        made = replace(fitted, known=False, representative=True) if fitted.representative else made
    basis = "the step time without a profiler is estimated from a light and a rich recording"
    return replace(made, basis=basis)


_DENSE_NS_PER_EVENT = Nanoseconds(
    40_000, "the host between two events: more than an operator or call needs", JUDGEMENT
)
_PURE_FROM_NS = QUIET_NS


def dense_ns(program: Program) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each gap, the part that belongs to its events."""
    allowance = _DENSE_NS_PER_EVENT * (program.gap_ops.astype(np.int64) + 1)
    begin = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1]))
    busy = np.maximum(program.call_start_ns - begin - program.quiet_ns, 0) + _DENSE_NS_PER_EVENT
    allowance = np.where(program.quiet_ns > 0, np.minimum(allowance, busy), allowance)
    return np.where(program.gap_ns - allowance > _PURE_FROM_NS, allowance, program.gap_ns)


def scaled_host(program: Program, factor: float) -> Program:
    """The program with its dense host work this much longer."""
    dense = dense_ns(program)
    gap = program.gap_ns - dense + (dense * factor).astype(np.int64)
    base = np.where(program.in_driver, program.base_ns, program.base_ns * factor)
    return replace(program, gap_ns=gap, base_ns=base.astype(np.int64))


def _threads_ready(trace: Trace, program: Program) -> Program:
    """The program without what the profiler does once when a thread, such as autograd's, makes its first call.

    That takes 0.1 to 3 ms of the first step. The same call of the other steps shows what is left without it.
    """
    track = trace.spans["track_id"].gather(program.call_span).to_numpy()
    gap = program.gap_ns.copy()
    for each in np.unique(track[track != track[:1]]):
        entered = np.flatnonzero(track == each)
        _, places = np.unique(program.step[entered], return_index=True)
        first, *others = entered[places].tolist()
        if others:
            gap[first] = min(gap[first], int(np.median(program.gap_ns[others])))
    return replace(program, gap_ns=gap)


def _staged(trace: Trace, program: Program) -> NDArray[np.bool_]:
    """Tasks that copy from or to pageable memory: the host's own processors move the bytes."""
    pageable = trace.copies.filter((pl.col("size_bytes") > STAGED_BYTES) & pl.col("pageable"))
    return np.isin(program.task_span, pageable["span_id"].to_numpy())


_LEAST_LEFT = Share(0.3, "a recorded duration that every correction leaves", JUDGEMENT)
_LATENCY_LIMIT_NS = Nanoseconds(6_000, "a launch's way to the device without a profiler", _FITTED)
_WAKE_LIMIT_NS = Nanoseconds(8_000, "a wait's return without a profiler", _FITTED)


def _debiased(
    program: Program, dense: np.ndarray[tuple[int], np.dtype[np.int64]], overhead: Overhead
) -> Program:
    cost = overhead.op_ns * program.gap_ops + overhead.call_ns + overhead.frame_ns * program.gap_frames
    less = np.maximum(_LEAST_LEFT * dense, dense - cost)
    base = np.maximum(_LEAST_LEFT * program.base_ns, program.base_ns - overhead.call_ns)
    return replace(
        program,
        gap_ns=program.gap_ns - dense + (less / overhead.slowdown).astype(np.int64),
        base_ns=np.where(program.in_driver, program.base_ns, base / overhead.slowdown).astype(np.int64),
        task_latency_ns=np.minimum(program.task_latency_ns, _LATENCY_LIMIT_NS),
        wake_ns=np.minimum(program.wake_ns, _WAKE_LIMIT_NS),
    )


_TRIED_LONGER = Factor(1.1, "times the host's work, to see whether the step follows it", JUDGEMENT)
_FOLLOWS = Factor(1.02, "times the step, from which it does", JUDGEMENT)


def _host_bound(program: Program, step: float) -> bool:
    """Whether the step follows the host: a tenth more of it shows."""
    return steady_step_ns(scaled_host(program, _TRIED_LONGER)) > step * _FOLLOWS


# How far the host, the device and what the recording does not slow may be from the recorded ones.
_HOST_FACTORS = (
    Factor(0.3, "the debiased host, at its fastest", JUDGEMENT),
    Factor(6.0, "the debiased host, at its slowest", JUDGEMENT),
)
_DEVICE_FACTORS = (
    Factor(0.85, "the recorded device, at its fastest", JUDGEMENT),
    Factor(1.15, "the recorded device, at its slowest", JUDGEMENT),
)
_REACHED = Share(0.02, "the measured step, by which a fitted one may miss it", JUDGEMENT)
_SLOWEST_HOST = Factor(
    1.5, "times the debiased host; recording slows a dense host by 1.2 times at least", _FITTED
)
_DEVICE_BOUND = Share(0.95, "the measured step, filled by the device's work alone", JUDGEMENT)


def _to_known(host: _Host, wanted: float) -> Calibration:
    """The program whose steady step is the measured one: by its host if that moves it, else by its device."""
    program = replace(host.program, gap_ns=host.program.gap_ns + host.waited)
    fastest, slowest = (steady_step_ns(host.scaled(factor)) for factor in _HOST_FACTORS)
    without_host = steady_step_ns(host.scaled(_HOST_FACTORS[0], pure=0.0))
    device_fills_it = without_host > _DEVICE_BOUND * wanted  # then a slower host explains nothing
    device_fills_it = device_fills_it or _met_without_host(program, wanted)
    if fastest <= wanted <= slowest and slowest > fastest * 1.01 and not device_fills_it:
        factor = _host_factor(lambda tried: steady_step_ns(host.scaled(tried)), wanted)
        if factor > _SLOWEST_HOST and fastest * _DEVICE_FACTORS[1] > _DEVICE_BOUND * wanted:
            return _by_device(program, wanted, fastest, slowest)  # slower than while it was recorded
        fitted = host.scaled(factor)
        step = steady_step_ns(fitted)
        floor = steady_step_ns(scaled_host(fitted, 0.5))
        basis = f"the host is fitted to the measured step: {factor:.2f} times the estimate"
        if host.pure.any() or host.tail or host.staged.any():
            basis += f", {host.pure_factor(factor):.2f} times for what the recording does not slow"
        return Calibration(
            fitted,
            wanted,
            basis,
            True,
            abs(step / wanted - 1) < _REACHED,
            floor < wanted * 0.98,
            host.dense_told,
        )
    return _by_device(program, wanted, fastest, slowest)


def _host_factor(time_ns: Callable[[float], float], wanted: float) -> float:
    """How much longer than estimated the host is where a time that grows with it is as long as wanted."""
    low, high = _HOST_FACTORS
    for _ in range(30):
        middle = (low * high) ** 0.5
        if time_ns(middle) < wanted:
            low = middle
        else:
            high = middle
    return high


def _met_without_host(program: Program, wanted: float) -> bool:
    """Whether the estimate meets the measured step, which hardly follows the host: what is left tells nothing of it.

    A host fitted to the last hundredth of such a step may be half as fast again, and would bound what the device gains.
    """
    estimated = steady_step_ns(program)
    return abs(estimated / wanted - 1) < _REACHED and not _host_bound(program, estimated)


_HIDDEN = Share(
    0.9, "the measured step, up to which the host's own time shows that the device hides it", JUDGEMENT
)
_WAITING = Share(
    0.25, "the host's own time, up to which it may wait for the device and still tell the host", JUDGEMENT
)


def _by_host_time(host: _Host, wanted: float, host_ns: float) -> Calibration | None:
    """The program whose host takes what was measured, and its device what is left to explain the step.

    `None` where that time does not tell the host: it may be mostly waiting, or the launch queue may have been full.
    """
    program = host.program
    steps = max(len(program.step_calls), 1)
    most_launches = np.bincount(program.step[launching(program)].clip(0), minlength=1).max()
    if host_ns > _HIDDEN * wanted or most_launches >= program.queue_calls:
        return None
    waited_ns = float(host.waited.sum()) / steps
    fastest, slowest = (host_step_ns(host.scaled(factor)) - waited_ns for factor in _HOST_FACTORS)
    if not fastest <= host_ns <= slowest:
        return None
    slower = _host_factor(lambda tried: host_step_ns(host.scaled(tried)) - waited_ns, host_ns)
    fitted = host.scaled(slower)
    idle = settled(fitted)
    own_ns = float(idle.gap_ns.sum() + idle.base_ns.sum() + idle.tail_gap_ns) / steps - waited_ns
    fitted, factor = _device_fitted(fitted, wanted)
    if own_ns < (1 - _WAITING) * host_ns or abs(steady_step_ns(fitted) / wanted - 1) >= _REACHED:
        return None
    basis = (
        f"the host is fitted to its own measured time, {host_ns / 1e6:.3g} ms a step: {slower:.2f} times the estimate; "
        f"the device's work is scaled by {factor:.2f} to the measured step"
    )
    return Calibration(fitted, wanted, basis, True, True, False, host_told=host.dense_told)


_PURE_FACTORS = (
    Factor(0.5, "the host's own work, at its fastest", JUDGEMENT),
    Factor(1.5, "the host's own work, at its slowest", JUDGEMENT),
)


_OVERLAPPING = Share(
    0.02, "the device's busy time, by which streams overlap less than in the replay", JUDGEMENT
)


def _overlap_factor(host: _Host, device: DeviceTimes) -> float:
    """How much longer the device's work is than replayed, where streams that run side by side take turns.

    Told by how long any stream is at work, in a replayed step as long as the one that was recorded with the device alone.
    """
    factor = _host_factor(lambda tried: steady_step_ns(host.scaled(tried)), device.step_ns)
    run = replay(settled(host.scaled(factor)), tiles=2)
    busy_ns = intervals.union(run.task_start_ns, run.task_end_ns).total_ns / max(
        len(host.program.step_calls), 1
    )
    longer = float(np.clip(device.busy_ns / max(busy_ns, 1.0), 1.0, _DEVICE_FACTORS[1]))
    return longer if longer > 1 + _OVERLAPPING else 1.0


class _Host:
    """The host of a program at other speeds: of all that explain a measured step, the likeliest.

    Recording slows the dense host, by how much is known roughly; loading, sleeping, Python that calls nothing and copies
    of pageable memory take longer or shorter on other data or beside other processes. A step tells only their sum,
    D·a + P·b where a and b are the logarithms of the two factors. In the recordings at hand both scatter alike, by about
    0.2 (steps that are mostly dense are half of the time within 10 % of the estimate, steps that are mostly pure 0.7 to
    1.4 times as long): a² + b² is least, for a given sum, where b/a = P/D.
    """

    def __init__(self, program: Program, staged: NDArray[np.bool_], waited: NDArray[np.int64]) -> None:
        self.program, self.dense, self.staged, self.waited = program, dense_ns(program), staged, waited
        self.pure = program.gap_ns - self.dense
        between = np.zeros(len(self.pure), np.int64)
        inside = program.step_calls < len(between)
        np.add.at(between, program.step_calls[inside], program.between_ns[inside])
        self.tail = program.tail_gap_ns if program.tail_gap_ns > _PURE_FROM_NS else 0
        pure = float(np.maximum(self.pure - between, 0).sum() + self.tail + program.task_dur_ns[staged].sum())
        dense = float(self.dense.sum() + program.base_ns[~program.in_driver].sum())
        self._exponent = pure / max(dense, 1.0)
        self.dense_told = dense >= pure

    def with_device(self, factor: float) -> _Host:
        """The same host before a device whose work takes this much longer."""
        return (
            _Host(_device_scaled(self.program, factor), self.staged, self.waited) if factor != 1.0 else self
        )

    def pure_factor(self, factor: float) -> float:
        """How much longer the pure host is where the dense one is this much longer."""
        return float(np.exp(np.clip(self._exponent * np.log(factor), *np.log(_PURE_FACTORS))))

    def scaled(self, factor: float, *, pure: float | None = None) -> Program:
        """The program with its dense host this much longer, and the pure one as much as is likely then, or as is said."""
        moved = self.pure_factor(factor)
        pure = moved if pure is None else pure
        scaled = scaled_host(self.program, factor)
        return replace(
            scaled,
            gap_ns=scaled.gap_ns - self.pure + (self.pure * pure).astype(np.int64) + self.waited,
            tail_gap_ns=scaled.tail_gap_ns - self.tail + round(self.tail * pure),
            task_dur_ns=np.where(self.staged, scaled.task_dur_ns * moved, scaled.task_dur_ns).astype(
                np.int64
            ),
        )


def _by_device(program: Program, wanted: float, fastest: float, slowest: float) -> Calibration:
    """Where the host cannot explain the step, the device's tasks are scaled a little; beyond that, nothing fits."""
    fitted = scaled_host(program, _hidden_factor(steady_step_ns(_device_scaled(program, 0.01)), wanted))
    fitted, factor = _device_fitted(fitted, wanted)
    step = steady_step_ns(fitted)
    reached = abs(step / wanted - 1) < _REACHED
    basis = (
        f"the device's work is scaled by {factor:.2f} to the measured step"
        if reached
        else f"the window is not representative: replayed steps take {fastest / 1e6:.3g} to {slowest / 1e6:.3g} ms, "
        f"measured {wanted / 1e6:.3g} ms"
    )
    return Calibration(fitted, wanted, basis, True, reached, False)


def _device_fitted(program: Program, wanted: float) -> tuple[Program, float]:
    """The program with its device's work scaled towards the measured step, and by how much."""
    factor = float(np.clip(wanted / steady_step_ns(program), *_DEVICE_FACTORS))
    return _device_scaled(program, factor), factor


_HOST_SCATTER = Factor(0.25, "the logarithm of the host's time around its estimate", "benchmarks/steps.py")


def _hidden_factor(host_ns: float, step_ns: float) -> float:
    """How much longer than its estimate the host is that the device hides.

    The estimate scatters, and the host takes no longer than the step: the median of what that leaves. Far below the step
    it is the estimate itself.
    """
    normal = NormalDist()
    shorter = normal.cdf(log(step_ns / max(host_ns, 1.0)) / _HOST_SCATTER)
    return max(exp(_HOST_SCATTER * normal.inv_cdf(max(shorter, 1e-6) / 2)), _HOST_FACTORS[0])


def _device_scaled(program: Program, factor: float) -> Program:
    return replace(program, task_dur_ns=(program.task_dur_ns * factor).astype(np.int64))
