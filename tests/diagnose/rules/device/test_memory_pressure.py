"""memory-pressure: the peak against the device's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.device.memory_pressure import memory_pressure
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from tests.builders import MAIN_THREAD, PROCESS, Recording
from tests.diagnose.loops import H200, findings, launches, loop


def allocating(folder: Path, size: int) -> Trace:
    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 100)
        if at:
            return
        args = {"Device Type": 1, "Device Id": 0, "Addr": 4096, "Bytes": size, "Total Allocated": size,
                "Total Reserved": size}  # fmt: skip
        recording.events.append({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",
                                 "pid": PROCESS, "tid": MAIN_THREAD, "ts": 5, "args": args})  # fmt: skip

    return loop(folder, 1_000, body)


def test_a_full_device(tmp_path: Path) -> None:
    (found,) = findings(memory_pressure, allocating(tmp_path, int(0.95 * H200["totalGlobalMem"])))
    assert found.evidence["device_peak_pct"] == pytest.approx(95, abs=0.1)
    assert found.predicted is None


def test_half_a_device_is_no_finding(tmp_path: Path) -> None:
    assert findings(memory_pressure, allocating(tmp_path, H200["totalGlobalMem"] // 2)) == []


def test_without_memory_events_it_cannot_look(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    with pytest.raises(MissingDataError, match="profile_memory"):
        list(memory_pressure(Case(trace)))
