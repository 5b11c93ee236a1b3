"""Summaries of an Nsight Systems export are those that the real `nsys stats` prints, to the nanosecond."""

from __future__ import annotations

import csv
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace import analyze
from tests.corpus import CORPUS, needs_corpus

pytestmark = [needs_corpus, pytest.mark.fast]
FOLDER = CORPUS / "other" / "nsys_synthetic"
COPIES = {
    "Memcpy HtoD (Pageable -> Device)": "[CUDA memcpy Host-to-Device]",
    "Memcpy DtoH (Device -> Pinned)": "[CUDA memcpy Device-to-Host]",
}


@pytest.fixture(scope="module")
def trace() -> foretrace.Trace:
    return foretrace.open(FOLDER / "synthetic.sqlite", cache=False)


def printed(report: str) -> list[dict[str, str]]:
    """The rows that nsys 2023.4 printed."""
    with (FOLDER / f"{report}.csv").open() as file:
        return list(csv.DictReader(line for line in file if line.strip()))


def ours(trace: foretrace.Trace, of: str) -> dict[str, dict[str, Any]]:
    table = analyze.run(trace, "durations", of=of).table
    return {COPIES.get(row["name"], row["name"]): row for row in table.iter_rows(named=True)}


@pytest.mark.parametrize(
    ("report", "of", "name", "calls"),
    [
        ("cuda_gpu_kern_sum", "kernels", "Name", "Instances"),
        ("cuda_api_sum", "calls", "Name", "Num Calls"),
        ("cuda_gpu_mem_time_sum", "copies", "Operation", "Count"),
        ("nvtx_pushpop_sum", "ranges", "Range", "Instances"),
    ],
)
def test_summaries_are_those_of_nsys(
    trace: foretrace.Trace, report: str, of: str, name: str, calls: str
) -> None:
    found, rows = ours(trace, of), printed(report)
    assert {row[name] for row in rows} == set(found)
    for row in rows:
        mine = found[row[name]]
        assert mine["calls_count"] == int(row[calls])
        assert mine["total_ns"] == int(row["Total Time (ns)"])
        assert mine["mean_ns"] == float(row["Avg (ns)"])
        assert mine["median_ns"] == float(row["Med (ns)"])
        assert mine["min_ns"] == int(row["Min (ns)"])
        assert mine["max_ns"] == int(row["Max (ns)"])
        assert mine["deviation_ns"] == float(row["StdDev (ns)"])
        assert mine["total_pct"] == pytest.approx(float(row["Time (%)"]), abs=0.051)


def test_sizes_are_those_of_nsys(trace: foretrace.Trace) -> None:
    """nsys prints decimal megabytes to three places."""
    found = ours(trace, "copies")
    for row in printed("cuda_gpu_mem_size_sum"):
        assert found[row["Operation"]]["size_bytes"] == 6 * 2**20
        assert round(found[row["Operation"]]["size_bytes"] / 1e6, 3) == float(row["Total (MB)"])


def test_ranges_projected_on_the_gpu_are_those_of_nsys(trace: foretrace.Trace) -> None:
    """Ranges of this recording overlap: work launched inside two counts in both, as nsys counts it."""
    table = analyze.run(trace, "sections", flat=True).table
    found = {row["section"]: row for row in table.iter_rows(named=True)}
    rows = printed("nvtx_gpu_proj_sum")
    assert {row["Range"] for row in rows} == set(found)
    for row in rows:
        mine = found[row["Range"]]
        assert mine["projected_ns"] == int(row["Total Proj Time (ns)"])
        assert mine["host_ns"] == int(row["Total Range Time (ns)"])
        assert mine["calls_count"] == int(row["Range Instances"])
        assert mine["projected_count"] == int(row["Total GPU Ops"])


@pytest.mark.parametrize("report", ["cuda_gpu_kern_sum", "nvtx_pushpop_sum"])
def test_the_printed_tables_give_what_the_recording_gives(trace: foretrace.Trace, report: str) -> None:
    """Any one of the CSVs opens all of the same recording beside it."""
    tables = foretrace.open(FOLDER / f"{report}.csv")
    assert tables.format == "nsys-stats"
    for of in ("kernels", "calls", "ranges"):
        columns = ("name", "calls_count", "total_ns", "median_ns", "min_ns", "max_ns")
        mine, theirs = (
            analyze.run(each, "durations", of=of).table.select(columns).sort("name")
            for each in (trace, tables)
        )
        assert mine.equals(theirs)


def test_launches_lie_where_nsys_sees_them(trace: foretrace.Trace) -> None:
    """Each kernel with its call: their starts and lengths, and the time between call and kernel."""
    spans = trace.spans
    kernels = trace.device_spans.filter(pl.col("kind") == "kernel").sort("start_ns")
    origin = int(trace.meta["epoch_ns"])
    rows = printed("cuda_kern_exec_trace")
    assert len(rows) == kernels.height
    for row, kernel in zip(rows, kernels.iter_rows(named=True), strict=True):
        call = spans.row(kernel["launch_id"], named=True)
        assert call["start_ns"] + origin == int(row["API Start (ns)"])
        assert call["dur_ns"] == int(row["API Dur (ns)"])
        assert kernel["start_ns"] + origin == int(row["Kernel Start (ns)"])
        assert kernel["dur_ns"] == int(row["Kernel Dur (ns)"])
        assert kernel["start_ns"] - call["start_ns"] - call["dur_ns"] == int(row["Queue Dur (ns)"])
        assert kernel["name"] == row["Kernel Name"]
