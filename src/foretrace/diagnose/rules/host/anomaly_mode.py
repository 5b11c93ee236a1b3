"""Autograd's anomaly detection was left on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import NOBODY
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import SHOWN_SPANS
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.patterns import host_waits
from foretrace.diagnose.patterns.host_waits import LEAST_SHARE, HostWaits
from foretrace.diagnose.removal import without_time
from foretrace.diagnose.rule import RUNTIME_CALLS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs.dispatch import LEAD_NS
from foretrace.predict.edits import merge
from foretrace.predict.numbers import RecordingTime, joined
from foretrace.sourced import JUDGEMENT, Factor, Share

MOSTLY = Share(0.5, "autograd's functions that launch, and of the waits: those with a check", JUDGEMENT)
LONG_LEAD = Factor(
    3, "the usual time from an operator's start to its first call: less is the host's own scatter", JUDGEMENT
)
MOST_SLOWED = Factor(2.0, "the host's time, that cold caches may cost at most", JUDGEMENT)
_FUNCTION = r"^autograd::engine::evaluate_function: "
_CHECK = r"^aten::_is_any_true$"


@needs(RUNTIME_CALLS)
@rule("Anomaly detection is on", "Anomaly detection", see="syncs")
def anomaly_mode(case: Case) -> Iterator[Finding]:
    """torch.autograd's anomaly detection left on: each function is checked for NaN, and each operator's stack is kept.

    Finds steps in which more than {MOSTLY} of autograd's functions that launch work are followed by a check for NaN, and
    more than {MOSTLY} of the waits lie in such functions, where the waits and the operators around them take at least
    {LEAST_SHARE} of the host's time.

    Slow
        torch.autograd.set_detect_anomaly(True)
        loss.backward()

    Fast
        torch.autograd.set_detect_anomaly(False)
        loss.backward()

    Why
    Each check launches three kernels and waits for them, so that the backward pass runs function by function. In the
    forward pass each operator walks the Python stack, to say later which line made a NaN.

    How the worth is predicted
    The checks go with their waits, and so does keeping the stack: what forward operators take before their first call
    beyond what others take there, where it is more than {LONG_LEAD} times as much. Walking the stack also leaves the
    caches cold, which slows down the launches of the forward pass: the prediction takes them to become as fast as those of
    the backward pass, by at most {MOST_SLOWED} times. The range includes that they stay as slow.

    When not
    A NaN is being looked for, or functions of the program's own make the checks.
    """
    waits = host_waits.host_waits(case)
    if waits is None or not _checked(case, waits):
        return
    if too_little(case, "anomaly detection is on, and reads values", waits.host_share, LEAST_SHARE):
        return
    program, stacks = case.program, _keeping_stacks(case)
    both = merge(without_time(case, program.in_program(times)) for times in (waits.reading, stacks))
    slowed = _slowed(case, joined(waits.reading, stacks))
    warm = replace(both, removed_host=program.in_program(slowed.removed))
    yield Finding(
        says=f"Autograd looks for NaN after each of its functions, {len(waits.readers) / case.step_count:.3g} times a "
        "step, and waits for the answer: anomaly detection is on. Keeping the stacks of the forward pass takes another "
        f"{stacks.total_ns / case.step_count / 1e6:.3g} ms.",
        why="Each check launches three kernels and waits for them, and each operator walks the Python stack.",
        fix=Fix("Turn it off, except to look for a NaN.", "torch.autograd.set_detect_anomaly(False)"),
        evidence={
            "calls_per_step_count": len(waits.readers) / case.step_count,
            "wait_ns": waits.wait_ns // case.step_count,
            "traced_ns": stacks.total_ns // case.step_count,
            "spans": waits.readers[:SHOWN_SPANS].tolist(),
        },
        where=(Place(None, None, "torch.autograd.set_detect_anomaly"),),
        change=Change("no checks and no stacks kept", warm, others=(both,), upside=slowed.factor),
        unless="the checks are made by functions of your own.",
        claims=waits.calls,
    )


def _checked(case: Case, waits: HostWaits) -> bool:
    """Whether most waits lie in autograd's functions, each behind a check."""
    host = case.host
    functions = host.named(_FUNCTION, "op")

    def around(spans: NDArray[np.int64]) -> NDArray[np.int64]:
        nearest = np.unique(host.nearest(spans, functions))
        return np.delete(nearest, nearest == NOBODY)

    checked = around(np.flatnonzero(host.named(_CHECK, "op")))
    launching = around(case.program.call_span.astype(np.int64))
    waiting = np.isin(host.nearest(waits.readers, functions), checked)
    return bool(len(checked) > MOSTLY * max(len(launching), 1) and waiting.mean() > MOSTLY)


def _keeping_stacks(case: Case) -> RecordingTime:
    """The host's time at the beginning of operators that autograd follows, beyond what others take there."""
    host = case.host
    children = np.flatnonzero(host.kind("op", "runtime") & (host.parent != NOBODY))
    first = host.end_ns.copy()
    np.minimum.at(first, host.parent[children], host.start_ns[children])
    lead_ns = first - host.start_ns
    followed = np.unique(case.trace.ops["forward_id"].drop_nulls().cast(pl.Int64).to_numpy())
    others = np.setdiff1d(np.flatnonzero(host.named("^aten::", "op")), followed)
    usual_ns = int(np.median(lead_ns[others])) if len(others) else int(LEAD_NS)
    long = followed[lead_ns[followed] > LONG_LEAD * usual_ns]
    return RecordingTime(intervals.union(host.start_ns[long] + usual_ns, first[long]))


@dataclass(frozen=True)
class _Slowed:
    """How much longer than needed the forward pass takes besides, and what goes with it."""

    factor: float
    removed: RecordingTime  # with what goes anyway


def _slowed(case: Case, removed: RecordingTime) -> _Slowed:
    """The host's time that goes when `removed` does, and forward launches take no longer than backward ones.

    Walking the stack at each operator leaves the caches cold: a launch itself, which keeps no stack, then takes longer
    in the forward pass than in the backward pass. So does what lies between launches.
    """
    program, host = case.program, case.host
    launches = np.diff(program.task_from) > 0
    backward = host.nearest(program.call_span.astype(np.int64), host.named(_FUNCTION, "op")) != NOBODY
    took_ns = program.call_end_ns - program.call_start_ns
    if not (launches & backward).any() or not (launches & ~backward).any():
        return _Slowed(1.0, removed)
    usual_ns = max(float(np.median(took_ns[launches & backward])), 1.0)
    factor = min(max(float(np.median(took_ns[launches & ~backward])) / usual_ns, 1.0), float(MOST_SLOWED))
    begin = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1])) + program.start_ns
    end = np.maximum(program.call_start_ns + program.start_ns, begin)
    covered = intervals.covered_ns(removed, begin, end)
    more = covered + np.where(backward, 0, (end - begin - covered) * (1 - 1 / factor)).astype(np.int64)
    return _Slowed(factor, RecordingTime(intervals.union(begin, begin + more)))
