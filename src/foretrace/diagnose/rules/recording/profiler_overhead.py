"""The profiler changed what it measured."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import rule
from foretrace.predict.builder import build
from foretrace.predict.steady import step_ns
from foretrace.sourced import Factor

SLOWER = Factor(
    1.3, "times the step without a profiler", "about what a light recording of a host-bound program takes"
)
_CODES = ("activity-buffer-request", "profiler-overhead", "costly-recording")


@rule("The profiler slows the host down", "Profiler", see="trust")
def profiler_overhead(case: Case) -> Iterator[Finding]:
    """Recorded steps that are longer than the program's own.

    Speaks where the trust report notes that the profiler's own work or a costly recording limits what can be concluded;
    and, where the step time without a profiler is known, if recorded steps take at least {SLOWER} times as long. Then it
    also says what share of each the GPU works.

    Slow
        profile(with_stack=True, record_shapes=True, profile_memory=True)  # used for timing

    Fast
        profile(activities=[CPU, CUDA])  # used for timing; a second recording with stacks and shapes for names

    Why
    Recorded host time is too long, so shares of it are wrong. GPU times of kernels are not affected.

    How the worth is predicted
    It is not: the program itself does not get faster. Predictions of other rules correct for the profiler's slowdown.

    When not
    The GPU is the limit: then its times hold.
    """
    report = case.result("trust").table.select("code", "weight", "says").iter_rows()
    notes = {code: says for code, weight, says in report if code in _CODES and weight != "info"}
    ratio = _slowdown(case)
    slower = ratio is not None and ratio >= SLOWER
    if not notes and not slower:
        return
    says = next(iter(notes.values()), "")
    if ratio is not None and slower:
        busy_pct = 100 * _busy_share(case)
        says = (
            f"Recorded steps take {ratio:.2g} times as long as without a profiler, where the GPU works "
            f"{busy_pct:.0f} % of the time, not {busy_pct / ratio:.0f} %."
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
    program = case.keep("built", lambda: build(case.trace))
    return step_ns(program) / case.measured_step_ns


def _busy_share(case: Case) -> float:
    """The share of the measured step in which the GPU works, by what its work took in the recording."""
    assert case.measured_step_ns is not None
    work_ns = float(case.program.task_dur_ns.sum()) / case.step_count
    return min(work_ns / case.measured_step_ns, 1.0)
