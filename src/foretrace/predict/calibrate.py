"""From the profiled host to the unprofiled one.

Recording an event costs the host time, and a recorded host is slower altogether. Both are taken out of the
dense parts of the host's line: those with events in them. A long stretch without any event (Python that
calls nothing, a sleep, a data loader) is pure: it costs the same with and without a profiler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrace.predict.program import Program
from foretrace.predict.steady import step_ns as steady_step_ns
from foretrace.trace import Trace


@dataclass(frozen=True)
class Overhead:
    """What recording costs, in nanoseconds an event, and how much slower the rest of the dense host is.

    Chosen so that the estimated step of every recording of the corpus and of benchmarks/pairs fits best
    (benchmarks/steps.py prints how well); on one machine, benchmarks/overhead.py measures them.
    """

    op_ns: int
    call_ns: int
    frame_ns: int
    slowdown: float


LIGHT = Overhead(op_ns=500, call_ns=0, frame_ns=0, slowdown=1.8)
RICH = Overhead(op_ns=500, call_ns=0, frame_ns=400, slowdown=2.0)

_DENSE_NS_PER_EVENT = 40_000  # more than an operator or call needs: what is beyond it is not theirs
_PURE_FROM_NS = 200_000
_LEAST_SHARE = 0.3  # no correction takes more than this of what was recorded
_LATENCY_LIMIT_NS, _WAKE_LIMIT_NS = 6_000, 8_000
_SCALES = (0.3, 6.0)  # how far the host may be from the recorded one
_DEVICE_SCALES = (0.85, 1.15)
_PURE_SCALES = (0.9, 1.5)  # how far the host's own work may be from the recorded one
_LEAST_SLOWDOWN = 1.2  # of a recorded dense host
_REACHED = 0.02
_DEVICE_BOUND = 0.95  # of the measured step that the device's work fills by itself


@dataclass(frozen=True)
class Calibration:
    """A program as it would run without the profiler, and how that is known."""

    program: Program
    step_ns: float
    basis: str
    known: bool  # whether the unprofiled step time was given
    representative: bool  # whether the replay can reach that time at all
    host_bound: bool


def calibrate(trace: Trace, program: Program, *, step_ns: float | None = None) -> Calibration:
    """The program on an unprofiled host; with the measured `step_ns` where there is one."""
    rich = trace.python.height > 0 or trace.allocations.height > 0
    dense = dense_ns(program)
    overhead = RICH if rich else LIGHT
    light = _debiased(program, dense, overhead)
    if step_ns is None:
        step = steady_step_ns(light)
        basis = (
            f"the step time without a profiler is estimated from {'a rich' if rich else 'a light'} recording"
        )
        return Calibration(light, step, basis, False, True, _host_bound(light, step))
    return _to_known(light, step_ns, overhead.slowdown / _LEAST_SLOWDOWN)


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


def dense_ns(program: Program) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each gap, the part that belongs to its events."""
    allowance = _DENSE_NS_PER_EVENT * (program.gap_ops.astype(np.int64) + 1)
    excess = program.gap_ns - allowance
    return np.where(excess > _PURE_FROM_NS, allowance, program.gap_ns)


def scaled_host(program: Program, factor: float) -> Program:
    """The program with its dense host work this much longer."""
    dense = dense_ns(program)
    gap = program.gap_ns - dense + (dense * factor).astype(np.int64)
    base = np.where(program.in_driver, program.base_ns, program.base_ns * factor)
    return replace(program, gap_ns=gap, base_ns=base.astype(np.int64))


def _debiased(
    program: Program, dense: np.ndarray[tuple[int], np.dtype[np.int64]], overhead: Overhead
) -> Program:
    cost = overhead.op_ns * program.gap_ops + overhead.call_ns + overhead.frame_ns * program.gap_frames
    less = np.maximum(_LEAST_SHARE * dense, dense - cost)
    base = np.maximum(_LEAST_SHARE * program.base_ns, program.base_ns - overhead.call_ns)
    return replace(
        program,
        gap_ns=program.gap_ns - dense + (less / overhead.slowdown).astype(np.int64),
        base_ns=np.where(program.in_driver, program.base_ns, base / overhead.slowdown).astype(np.int64),
        task_latency_ns=np.minimum(program.task_latency_ns, _LATENCY_LIMIT_NS),
        wake_ns=np.minimum(program.wake_ns, _WAKE_LIMIT_NS),
    )


def _host_bound(program: Program, step: float) -> bool:
    """Whether the step follows the host: a tenth more of it shows."""
    return steady_step_ns(scaled_host(program, 1.1)) > step * 1.02


def _to_known(program: Program, wanted: float, slowest_host: float) -> Calibration:
    """The program whose steady step is the measured one: by its host if that moves it, else by its device."""
    program = _pure_fitted(program, wanted, slowest_host)
    low, high = _SCALES
    fastest, slowest = (steady_step_ns(scaled_host(program, factor)) for factor in (low, high))
    device_fills_it = fastest > _DEVICE_BOUND * wanted  # then a slower host explains nothing
    if fastest <= wanted <= slowest and slowest > fastest * 1.01 and not device_fills_it:
        for _ in range(30):
            middle = (low * high) ** 0.5
            if steady_step_ns(scaled_host(program, middle)) < wanted:
                low = middle
            else:
                high = middle
        fitted = scaled_host(program, high)
        step = steady_step_ns(fitted)
        floor = steady_step_ns(scaled_host(fitted, 0.5))
        basis = f"the host is fitted to the measured step: {high:.2f} times the estimate"
        return Calibration(
            fitted, wanted, basis, True, abs(step / wanted - 1) < _REACHED, floor < wanted * 0.98
        )
    return _by_device(program, wanted, fastest, slowest)


def _pure_fitted(program: Program, wanted: float, slowest_host: float) -> Program:
    """The program with other pure host time where no likely dense host explains the measured step.

    Recording makes the dense host slower: where even `slowest_host` times the debiased one gives too short a step, what
    is missing is in what the recording does not touch. Loading, sleeping and Python that calls nothing take longer or
    shorter on other data or beside other processes.
    """
    pure = program.gap_ns - dense_ns(program)
    if not pure.any():
        return program
    slow = scaled_host(program, slowest_host)
    if steady_step_ns(slow) >= wanted:
        unreached = steady_step_ns(scaled_host(program, _SCALES[0])) > wanted
        return _with_pure(program, pure, _PURE_SCALES[0]) if unreached else program
    low, high = 1.0, _PURE_SCALES[1]
    for _ in range(20):
        middle = (low + high) / 2
        if steady_step_ns(_with_pure(slow, pure, middle)) < wanted:
            low = middle
        else:
            high = middle
    return _with_pure(program, pure, high)


def _with_pure(program: Program, pure: np.ndarray[tuple[int], np.dtype[np.int64]], factor: float) -> Program:
    return replace(program, gap_ns=program.gap_ns + (pure * (factor - 1)).astype(np.int64))


def _by_device(program: Program, wanted: float, fastest: float, slowest: float) -> Calibration:
    """Where the host cannot explain the step, the device's tasks are scaled a little; beyond that, nothing fits."""
    host_factor = 1.0
    while (
        host_factor > _SCALES[0]
        and steady_step_ns(_device_scaled(scaled_host(program, host_factor), 0.01)) > wanted
    ):
        host_factor *= 0.9
    fitted = scaled_host(program, host_factor)
    factor = float(np.clip(wanted / steady_step_ns(fitted), *_DEVICE_SCALES))
    fitted = _device_scaled(fitted, factor)
    step = steady_step_ns(fitted)
    reached = abs(step / wanted - 1) < _REACHED
    basis = (
        f"the device's work is scaled by {factor:.2f} to the measured step"
        if reached
        else f"the window is not representative: replayed steps take {fastest / 1e6:.3g} to {slowest / 1e6:.3g} ms, "
        f"measured {wanted / 1e6:.3g} ms"
    )
    return Calibration(fitted, wanted, basis, True, reached, False)


def _device_scaled(program: Program, factor: float) -> Program:
    return replace(program, task_dur_ns=(program.task_dur_ns * factor).astype(np.int64))
