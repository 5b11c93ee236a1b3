"""profiler-overhead: recorded steps against the program's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.recording.profiler_overhead import profiler_overhead
from tests.diagnose.loops import findings, launches, loop


def test_a_host_twice_as_slow_as_without_a_profiler(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    (found,) = findings(profiler_overhead, trace, step_us=500)
    assert found.evidence["slowdown_ratio"] == pytest.approx(2, rel=0.02)
    assert "2 times as long" in found.says
    assert "works 20 % of the time, not 10 %" in found.says  # 100 kernels of 1 us


def test_a_profiler_that_costs_nothing_is_no_finding(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(profiler_overhead, trace, step_us=1_000) == []


def test_where_the_step_is_not_known_the_trust_report_tells(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(profiler_overhead, trace) == []
