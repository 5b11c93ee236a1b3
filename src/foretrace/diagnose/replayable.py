"""Whether a recording holds something that can be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrace.errors import MissingDataError, contained

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case


def require(case: Case) -> None:
    """Raises MissingDataError where there is nothing to replay."""
    name = case.whole.path.name
    if case.on_cpu:
        if not case.whole.steps:
            raise MissingDataError(f"{name}: no steps marked, so there is nothing to replay")
        return
    if case.whole.profile is not None and case.whole.spans.is_empty():
        why = "counters of single kernels, and no timeline to replay: diagnose a recording of the program"
        raise MissingDataError(f"{name}: {why} with --ncu {name}")
    if not case.whole.has_device:
        raise MissingDataError(f"{name}: no GPU work recorded, so there is nothing to replay")
    with contained(f"{name}: the replay of the recorded steps"):
        tasks = len(case.calibration.program.task_span) if case.calibration.step_ns > 0 else 0
    if not tasks:
        raise MissingDataError(f"{name}: no launched GPU work in the recorded steps to replay")
