"""anomaly-mode: autograd's anomaly detection left on, told from checks of the program's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.rules.host.anomaly_mode import anomaly_mode
from foretrace.diagnose.rules.host.host_sync import host_sync
from tests.builders import Recording
from tests.diagnose.loops import findings, item, launches, loop


def anomalies(recording: Recording, at: float) -> None:
    """Ten operators that take 100 µs, 90 of them before they launch; ten functions of 20 µs, each checked for 60 µs."""
    for number in range(10):
        start, told = at + number * 100, {"Sequence number": 10_000 * round(at) + number}
        recording.op("aten::gelu", start, start + 100, **told, **{"Fwd thread id": 0})
        recording.launch(start + 95, "gelu", start + 100, start + 101, call=4)
    for number in reversed(range(10)):
        start, told = at + 1_000 + (9 - number) * 80, {"Sequence number": 10_000 * round(at) + number}
        function = "autograd::engine::evaluate_function: GeluBackward0"
        recording.op(function, start, start + 80, **told, **{"Fwd thread id": 1})
        recording.op("GeluBackward0", start, start + 20, **told, **{"Fwd thread id": 1})
        recording.launch(start + 12, "gelu_backward", start + 20, start + 21, call=4)
        for name, begin, end in (("isnan", 20, 40), ("_is_any_true", 40, 60), ("item", 60, 80)):
            recording.op(f"aten::{name}", start + begin, start + end)
            if name != "item":
                recording.launch(start + begin + 10, name, start + end, start + end + 1, call=4)
        recording.runtime("cudaStreamSynchronize", start + 65, start + 78)


def test_anomaly_detection_left_on(tmp_path: Path) -> None:
    """Without checks the backward takes 200 µs; forward operators begin as soon as others: 10 and not 95 µs."""
    (found,) = findings(anomaly_mode, loop(tmp_path, 1_800, anomalies), step_us=1_800)
    assert "anomaly detection is on" in found.says
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.speedup.point == pytest.approx(1_800 / (10 * 15 + 10 * 20), rel=0.1)


def test_its_waits_are_found_once(tmp_path: Path) -> None:
    case = Case(loop(tmp_path, 1_800, anomalies), step_ns=1_800_000)
    assert [finding.rule for finding in diagnose(case, (anomaly_mode, host_sync)).findings] == [
        "anomaly-mode"
    ]


def test_checks_of_the_programs_own_are_waits(tmp_path: Path) -> None:
    """Outside of autograd's functions isnan and item are what the program asked for."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 18)
        recording.op("aten::isnan", at + 180, at + 220).op("aten::_is_any_true", at + 220, at + 260)
        recording.launch(at + 210, "isnan", at + 220, at + 258, call=2)
        item(recording, at + 260, at + 300)

    trace = loop(tmp_path, 300, body)
    assert findings(anomaly_mode, trace, step_us=300) == []
    assert len(findings(host_sync, trace, step_us=300)) == 1
