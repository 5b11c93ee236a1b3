"""Loops: recordings of a few equal steps, so that what a change would be worth can be worked out on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.finding import Finding
from foretrace.diagnose.rule import Rule
from foretrace.trace import Trace
from tests.builders import Recording

STEPS = 3
H200: dict[str, Any] = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 150109880320}


def loop(folder: Path, length: float, body: Callable[[Recording, float], object], **header: Any) -> Trace:
    """Three steps of this length, in microseconds, each filled by `body(recording, start)`."""
    recording = Recording(deviceProperties=[H200], **header)
    for number in range(STEPS):
        recording.step(number, number * length, (number + 1) * length)
        body(recording, number * length)
    return recording.open(folder)


def launches(
    recording: Recording, at: float, count: int, *, every: float = 10, dur: float = 1, **args: Any
) -> None:
    """Operators one after another, each of which launches a kernel that runs at once."""
    args = {"grid": [132, 1, 1], "block": [256, 1, 1], "blocks per SM": 1.0, **args}
    for number in range(count):
        start = at + number * every
        recording.op("aten::add", start, start + every)
        recording.launch(
            start + every - 2, "add_kernel", start + every, start + every + dur, call=1.5, **args
        )


def item(recording: Recording, at: float, end: float) -> None:
    """An operator that reads a value, and waits all the time."""
    recording.op("aten::item", at, end).op("aten::_local_scalar_dense", at, end)
    recording.runtime("cudaStreamSynchronize", at, end)


def findings(rule: Rule, trace: Trace, *, step_us: float | None = None) -> list[Finding]:
    """What one rule finds, judged, at a known step time."""
    found = diagnose(Case(trace, step_ns=None if step_us is None else step_us * 1_000), (rule,))
    assert not found.unchecked, found.unchecked
    return list(found.findings)
