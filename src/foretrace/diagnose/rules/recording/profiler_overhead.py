"""The profiler changed what it measured."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import rule
from foretrace.predict.builder import build
from foretrace.predict.steady import step_ns

_CODES = ("activity-buffer-request", "profiler-overhead", "costly-recording")
_SLOWER = 1.3  # times the step without a profiler; a light recording of a host-bound program is about there


@rule(
    title="The profiler slows the host down",
    topic="Profiler",
    see="trust",
)
def profiler_overhead(case: Case) -> Iterator[Finding]:
    """Recorded steps are longer than the program's own.

    What it does
    Takes the trust report's notes on the profiler's own work and on costly recordings, where they limit what can be
    concluded; and where the step time without a profiler is known, the recorded step against it, and what share of each
    the GPU's work is.

    Why it matters
    Recorded host time is too long, so shares of it are wrong. GPU times of kernels are not affected.

    Use instead
    Record without stacks, shapes and memory for times, and with them for names; time the step before profiling.
    """
    told = case.result("trust").table.select("code", "weight", "says").iter_rows()
    notes = {code: says for code, weight, says in told if code in _CODES and weight != "info"}
    ratio = _slowdown(case)
    if not notes and (ratio is None or ratio < _SLOWER):
        return
    says = next(iter(notes.values()), "")
    if ratio is not None and ratio >= _SLOWER:
        says = (
            f"Recorded steps take {ratio:.2g} times as long as without a profiler, where the GPU works "
            f"{100 * _busy(case):.0f} % of the time, not {100 * _busy(case) / ratio:.0f} %."
        )
    yield Finding(
        says=says,
        why="Recorded host time is too long; predictions here correct for it, tables of recorded time do not.",
        fix=Fix(
            "Take times from a light recording, and names from a rich one.",
            "profile(activities=[CPU, CUDA], record_shapes=False, with_stack=False, profile_memory=False)",
        ),
        evidence={"slowdown_ratio": ratio, **notes},
        unless="the GPU is the limit: then its times hold.",
    )


def _slowdown(case: Case) -> float | None:
    """The recorded steps, replayed as they were, against the measured step; None where that is not known."""
    if case.measured_step_ns is None or not case.calibration.representative:
        return None
    return step_ns(build(case.trace)) / case.measured_step_ns


def _busy(case: Case) -> float:
    """The share of the measured step in which the GPU works, by what its work took in the recording."""
    assert case.measured_step_ns is not None
    work = float(case.program.task_dur_ns.sum()) / case.step_count
    return min(work / case.measured_step_ns, 1.0)
