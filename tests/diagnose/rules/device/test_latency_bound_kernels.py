"""Kernels that Nsight Compute measured far below what the device can do."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.device.latency_bound_kernels import latency_bound_kernels
from foretrace.ingest import open_trace
from foretrace.ingest.recordings import find_recording
from foretrace.trace import Trace
from tests.analyze.nine_kernels import OPS, RAW, recording
from tests.diagnose.loops import findings

SHARES = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
)


def measured(folder: Path, launch: int, sm_pct: float, memory_pct: float) -> Trace:
    """The nine kernels, one of them with other shares of its peaks."""
    rows = list(csv.reader(io.StringIO(gzip.decompress(RAW.read_bytes()).decode())))
    for name, share in zip(SHARES, (sm_pct, memory_pct), strict=True):
        rows[2 + launch][rows[0].index(name)] = str(share)
    counters = folder / "kernels.csv"
    with counters.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    path = recording().write(folder)
    return find_recording(path, counters=[counters]).told(open_trace(path, cache=False))


def test_a_kernel_at_a_fifth_of_its_limit(tmp_path: Path) -> None:
    """The step is 1,162 us of kernels. The copy takes 450 of them at 20 % of its limit: at 80 % it takes 112.5."""
    whole = sum(op.dur for op in OPS)
    (finding,) = findings(latency_bound_kernels, measured(tmp_path, 1, 12, 20), step_us=whole)
    assert finding.evidence["waiting_pct"] == pytest.approx(100 * 450 / whole, rel=0.01)
    assert finding.evidence["reached_pct"] == 20
    assert "occupancy is 92 %" in finding.why
    assert finding.predicted
    assert finding.predicted.after_ns.point / 1e3 == pytest.approx(whole - 450 + 450 * 0.2 / 0.8, rel=0.02)
    assert finding.predicted.verdict == "uncertain", "how near to its limit a kernel comes is not known"


def test_kernels_near_their_limit_are_left_alone(tmp_path: Path) -> None:
    assert findings(latency_bound_kernels, measured(tmp_path, 1, 12, 75), step_us=1162) == []
    assert findings(latency_bound_kernels, measured(tmp_path, 4, 1, 1), step_us=1162) == [], (
        "2 us are a matter of launches"
    )


def test_it_is_about_programs_with_counters(tmp_path: Path) -> None:
    plain = Case(recording().open(tmp_path))
    assert latency_bound_kernels in RULES
    assert not latency_bound_kernels.fits(plain)
    assert latency_bound_kernels.fits(Case(measured(tmp_path, 1, 12, 20)))


@pytest.mark.slow
def test_a_change_beyond_the_measured_limit_is_not_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bf16 product is at 90.2 % of its limit: half its time cannot do the same work, 95 % of it can."""
    path = str(recording().write(tmp_path))
    asked = ["predict", path, "--no-cache", "--ncu", str(RAW), "--change"]
    assert main([*asked, "scale kernel:~nvjet 0.5"]) == 0
    assert "already uses 90 % of its limit" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "scale kernel:~nvjet 0.95"]) == 0
    assert "Not promised" not in capsys.readouterr().out
    assert main(["predict", path, "--no-cache", "--change", "scale kernel:~nvjet 0.5"]) == 0
    assert "Not promised" not in capsys.readouterr().out


def test_predictions_use_the_measured_bandwidth(tmp_path: Path) -> None:
    """1,504 bytes a cycle at 3.2 GHz, and not the datasheet's 4.8 TB/s."""
    device = Case(measured(tmp_path, 1, 12, 20)).known_device
    assert device.memory_bandwidth_bytes == pytest.approx(1504 * 3.1987e9, rel=1e-3)
    assert "Nsight Compute" in device.sources["memory_bandwidth_bytes"]
    assert Case(recording().open(tmp_path)).known_device.memory_bandwidth_bytes == 4.8e12
