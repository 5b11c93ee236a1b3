"""CPU loops: recordings of a few equal steps of a program without a GPU, whose steps can be worked out on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, diagnose
from foretrace.diagnose.rule import Rule
from foretrace.ingest.core_use import CoreUse
from foretrace.ingest.processor import Processor
from foretrace.ingest.run import Recorded
from foretrace.ingest.timed import Timed
from foretrace.trace import Trace
from tests.builders import Recording

STEPS = 4
FLOAT: dict[str, Any] = {"Input Dims": [[512, 256], [256, 512]], "Input type": ["float", "float"]}
ZEN4 = Processor("a processor", frozenset({"avx2", "avx512_bf16"}), threads=1, cores=1.0, load_average=0.5)


def cpu_loop(folder: Path, length: float, body: Callable[[Recording, float], None]) -> Trace:
    """Steps of this length, in microseconds, each filled by `body(recording, start)`."""
    recording = Recording()
    for number in range(STEPS):
        recording.step(number, number * length, (number + 1) * length)
        body(recording, number * length)
    return recording.open(folder)


def cpu_case(
    trace: Trace, step_us: float, processor: Processor | None = ZEN4, core_use: CoreUse | None = None
) -> Case:
    """The Case of such a recording, as a Run with this processor, and this use of its cores, has it."""
    timed = Timed(blocks_ns=(), processor=processor, core_use=core_use)
    recorded = Recorded(trace.path, step_ns=step_us * 1_000, timed=timed)
    return Case(recorded.told(trace), step_ns=recorded.step_ns, timed=timed)


def judged(rule: Rule, trace: Trace, *, step_us: float, processor: Processor | None = ZEN4) -> Diagnosis:
    """What one rule makes of it."""
    return diagnose(cpu_case(trace, step_us, processor), (rule,))
