"""What the step waits for most: the host, the GPU, its input, copies, communication, or no single one of them."""

from __future__ import annotations

from foretrace.diagnose.case import Case
from foretrace.errors import MissingDataError
from foretrace.sourced import JUDGEMENT, Factor, Share

_INPUT_PCT = Factor(50.0, "per cent of the step, spent waiting for input", JUDGEMENT)
_MOVING_PCT = Factor(40.0, "per cent of the step, spent on exposed copies or communication", JUDGEMENT)
_FULL = Share(0.9, "the step that the device works, though the step follows the host", JUDGEMENT)
_BUSY = Share(0.8, "the step that the device works, where the step does not follow the host", JUDGEMENT)


def bound(case: Case) -> str:
    """One of host, gpu, input, copy, communication and mixed."""
    busy = int(case.program.task_dur_ns.sum()) / case.step_count / max(case.step_ns, 1)
    if _percent(case, "steps", "dataloader_pct") >= _INPUT_PCT:
        return "input"
    if _percent(case, "overview", "gpu_exposed_communication_pct") >= _MOVING_PCT:
        return "communication"
    if _percent(case, "overview", "gpu_exposed_copy_pct") >= _MOVING_PCT:
        return "copy"
    if case.calibration.host_bound:
        return "mixed" if busy >= _FULL else "host"
    return "gpu" if busy >= _BUSY else "host"


def _percent(case: Case, analysis: str, name: str) -> float:
    try:
        value = case.result(analysis).values.get(name)
    except MissingDataError:
        return 0.0  # not recorded: then it is not what can be said to bound the step
    return float(value) if isinstance(value, int | float) else 0.0
