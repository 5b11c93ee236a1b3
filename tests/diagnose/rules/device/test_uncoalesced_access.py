"""Kernels whose threads use little of the memory that they move."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.device.uncoalesced_access import uncoalesced_access
from foretrace.ingest import open_trace
from foretrace.ingest.recordings import find_recording
from tests.analyze.nine_kernels import DETAILS, OPS, RAW, recording
from tests.diagnose.loops import findings


def test_a_transposing_copy(tmp_path: Path) -> None:
    """ncu: 58,720,256 of 75,497,472 sectors are in excess. Device memory is at 23.72 % of its peak: 0.2372 / 0.8 is the floor."""
    path = recording().write(tmp_path)
    trace = find_recording(path, counters=[RAW]).told(open_trace(path, cache=False))
    whole = sum(op.dur for op in OPS)
    (finding,) = findings(uncoalesced_access, trace, step_us=whole)
    assert finding.evidence["wasted_pct"] == pytest.approx(100 * 58_720_256 / 75_497_472)
    assert finding.evidence["uncoalesced_pct"] == pytest.approx(100 * 450 / whole, rel=0.01)
    assert finding.predicted
    assert finding.predicted.after_ns.point / 1e3 == pytest.approx(whole - 450 * (1 - 0.2372 / 0.8), rel=0.02)
    assert finding.predicted.verdict == "uncertain"


def test_without_counts_of_sectors_nothing_is_said(tmp_path: Path) -> None:
    path = recording().write(tmp_path)
    trace = find_recording(path, counters=[DETAILS]).told(open_trace(path, cache=False))
    assert findings(uncoalesced_access, trace, step_us=1162) == []
    assert not uncoalesced_access.fits(Case(open_trace(path, cache=False)))
