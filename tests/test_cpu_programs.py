"""The three CPU programs of docs/accuracy.md: the true cause comes first, with the measured gain, within 20 %."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace import open as open_trace
from foretrace.analyze.trust import judge
from foretrace.diagnose import RULES
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.opening import open_case
from foretrace.ingest.reading import Reading
from foretrace.trace import Trace
from tests.corpus import ACCURACY, needs_accuracy

RECORDINGS = ACCURACY / "cpu" / "recordings"


def uncached(path: Path, reading: Reading) -> Trace:
    return open_trace(path, step=reading.step, pid=reading.pid, cache=False)


@needs_accuracy
@pytest.mark.parametrize(
    ("program", "rule", "measured"),
    [
        ("nanogpt_loop", "crowded-threads", 1.59),
        ("starved_cnn", "input-bound", 1.52),
        ("encoder_serving", "fp32-on-cpu", 1.60),
    ],
)
def test_the_true_cause_comes_first_and_is_worth_what_was_measured(
    program: str, rule: str, measured: float
) -> None:
    case = open_case(RECORDINGS / program, read=uncached)
    first = diagnose(case, RULES).findings[0]
    assert first.predicted
    assert (first.rule, first.predicted.verdict) == (rule, "gain")
    assert first.predicted.speedup.point == pytest.approx(measured, rel=0.2)
    assert first.predicted.speedup.low <= measured <= first.predicted.speedup.high
    assert not any("CUDA" in note.says for note in judge(case.whole).notes)
