"""durations: calls and times by name, of what ran on the host and on the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace import analyze
from foretrace.errors import MissingDataError, UsageError
from tests.builders import Recording

pytestmark = pytest.mark.fast


@pytest.fixture
def trace(tmp_path: Path) -> foretrace.Trace:
    recording = (
        Recording()
        .step(1, 0, 100)
        .annotation("forward", 0, 50)
        .op("aten::add", 5, 15)
        .op("aten::add", 20, 40)
    )
    recording.launch(6, "add", 10, 12, call=1).launch(22, "add", 30, 36, call=3)
    recording.launch(50, "Memcpy HtoD (Pinned -> Device)", 60, 70, category="gpu_memcpy", call=2, bytes=1000)
    return recording.open(tmp_path)


def test_everything_by_name(trace: foretrace.Trace) -> None:
    result = analyze.run(trace, "durations")
    columns = (
        "kind",
        "name",
        "calls_count",
        "total_ns",
        "mean_ns",
        "median_ns",
        "min_ns",
        "max_ns",
        "size_bytes",
    )
    assert result.table.select(columns).rows() == [
        ("kernels", "add", 2, 8_000, 4_000.0, 4_000.0, 2_000, 6_000, None),
        ("calls", "cudaLaunchKernel", 3, 6_000, 2_000.0, 2_000.0, 1_000, 3_000, None),
        ("copies", "Memcpy HtoD (Pinned -> Device)", 1, 10_000, 10_000.0, 10_000.0, 10_000, 10_000, 1000),
        ("ranges", "ProfilerStep#1", 1, 100_000, 100_000.0, 100_000.0, 100_000, 100_000, None),
        ("ranges", "forward", 1, 50_000, 50_000.0, 50_000.0, 50_000, 50_000, None),
        ("operators", "aten::add", 2, 30_000, 15_000.0, 15_000.0, 10_000, 20_000, None),
    ]
    # Sample standard deviation of 2 and 6 µs.
    assert result.table["deviation_ns"][0] == pytest.approx(2_828.43, abs=0.01)
    assert result.table["deviation_ns"][2] is None
    assert result.table["total_pct"].to_list()[3:5] == pytest.approx([66.667, 33.333], abs=0.001)


def test_one_kind(trace: foretrace.Trace) -> None:
    assert analyze.run(trace, "durations", of="copies").table["kind"].to_list() == ["copies"]
    with pytest.raises(UsageError, match="durations of 'nothing' are not known"):
        analyze.run(trace, "durations", of="nothing")


def test_nothing_of_a_kind_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no kernels recorded"):
        analyze.run(Recording().op("aten::add", 0, 10).open(tmp_path), "durations", of="kernels")
