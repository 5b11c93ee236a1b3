"""Kernels by total time."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace import analyze
from foretrace.errors import MissingDataError, UsageError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

US = 1_000


def recording() -> Recording:
    made = Recording().kernel("gemm", 0, 100, correlation=999)
    made.op("aten::mm", 0, 10).op("aten::relu", 10, 20)
    wide = {"grid": [64, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 1024}
    narrow = {**wide, "grid": [8, 1, 1]}
    made.launch(1, "gemm", 100, 110, **wide, **{"blocks per SM": 2.0, "est. achieved occupancy %": 50})
    made.launch(2, "gemm", 110, 140, **narrow, **{"blocks per SM": 1.0, "est. achieved occupancy %": 10})
    made.launch(3, "gemm", 140, 160, **narrow)
    return made.launch(11, "relu", 160, 165)


def test_by_name(tmp_path: Path) -> None:
    result = analyze.run(recording().open(tmp_path), "kernels")
    assert result.table["name"].to_list() == ["gemm", "relu"]
    gemm = result.table.row(0, named=True)
    assert gemm["calls_count"] == 3
    assert gemm["total_ns"] == 60 * US
    assert gemm["total_pct"] == pytest.approx(100 * 60 / 65)
    assert (gemm["mean_ns"], gemm["median_ns"], gemm["max_ns"], gemm["min_ns"]) == (
        20 * US, 20 * US, 30 * US, 10 * US,
    )  # fmt: skip
    # By duration, over the two calls that recorded it.
    assert gemm["occupancy_pct"] == pytest.approx((50 * 10 + 10 * 30) / 40)
    assert gemm["blocks_per_sm_count"] == pytest.approx((2 * 10 + 1 * 30) / 40)
    assert result.table["occupancy_pct"][1] is None
    assert result.values["kernel_count"] == 4
    assert "gemm takes 92.3 %" in result.says


def test_kernels_of_earlier_steps_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    trace = recording().open(tmp_path)
    without = analyze.run(trace, "kernels")
    assert (without.values["orphan_count"], without.values["orphan_ns"]) == (1, 100 * US)
    assert "excluded" in without.notes[0]
    included = analyze.run(trace, "kernels", orphans=True)
    assert included.table["calls_count"].to_list() == [4, 1]
    assert included.values["total_ns"] == 165 * US


def test_by_configuration(tmp_path: Path) -> None:
    table = analyze.run(recording().open(tmp_path), "kernels", group_by="config").table
    rows = table.select(
        "name", "op", "grid", "block", "registers_count", "shared_bytes", "calls_count"
    ).rows()
    assert rows == [
        ("gemm", "aten::mm", "8,1,1", "128,1,1", 32, 1024, 2),
        ("gemm", "aten::mm", "64,1,1", "128,1,1", 32, 1024, 1),
        ("relu", "aten::relu", None, None, None, None, 1),
    ]


def test_by_operator(tmp_path: Path) -> None:
    table = analyze.run(recording().open(tmp_path), "kernels", group_by="op").table
    rows = table.select("op", "names_count", "calls_count", "total_ns").rows()
    assert rows == [("aten::mm", 1, 3, 60 * US), ("aten::relu", 1, 1, 5 * US)]


def test_unlinked_kernels_all_count(tmp_path: Path) -> None:
    result = analyze.run(Recording().kernel("gemm", 0, 10).open(tmp_path), "kernels")
    assert result.values["kernel_count"] == 1
    assert result.values["orphan_count"] == 0
    assert "no kernel is linked" in result.notes[0]


def test_an_impossible_duration_does_not_poison_the_sums(tmp_path: Path) -> None:
    made = Recording().launch(0, "gemm", 10, 20).launch(1, "gemm", 20, 5)
    row = analyze.run(made.open(tmp_path), "kernels").table.row(0, named=True)
    assert (row["calls_count"], row["total_ns"], row["min_ns"]) == (2, 10 * US, 10 * US)


def test_no_kernels_and_no_such_grouping(tmp_path: Path) -> None:
    trace = (
        Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}]).op("aten::mm", 0, 10).open(tmp_path)
    )
    with pytest.raises(MissingDataError, match="no kernels recorded"):
        analyze.run(trace, "kernels")
    with pytest.raises(UsageError, match="name, config, op"):
        analyze.run(trace, "kernels", group_by="shape")


@needs_corpus
def test_agrees_with_a_sum_over_the_spans() -> None:
    trace = foretrace.open(CORPUS / "h200" / "gpt_healthy.slow.lite.json.gz")
    spans = trace.spans
    expected: dict[str, list[int]] = {}
    columns = (spans["kind"].to_list(), spans["name"].to_list(), spans["dur_ns"], spans["launch_id"])
    for kind, name, dur, launch in zip(*columns, strict=True):
        if kind == "kernel" and launch is not None:
            expected.setdefault(name, []).append(dur)
    table = analyze.run(trace, "kernels").table
    found = {
        name: (calls, total, longest)
        for name, calls, total, longest in table.select("name", "calls_count", "total_ns", "max_ns").rows()
    }
    assert found == {name: (len(each), sum(each), max(each)) for name, each in expected.items()}
    assert table["total_ns"].is_sorted(descending=True)
    assert table["total_pct"].sum() == pytest.approx(100)


def test_the_deviation_is_that_of_a_sample(tmp_path: Path) -> None:
    """Durations of 2, 4, 4, 4, 5, 5, 7 and 9 µs: mean 5, squares sum to 32, over 7 that is 4.571."""
    made, at = Recording(), 0.0
    for length in (2, 4, 4, 4, 5, 5, 7, 9):
        made.launch(at, "k", at + 10, at + 10 + length)
        at += 100
    made.launch(at, "once", at + 10, at + 12)
    table = analyze.run(made.open(tmp_path), "kernels").table
    assert table.filter(pl.col("name") == "k")["deviation_ns"].item() == pytest.approx((32 / 7) ** 0.5 * 1000)
    assert table.filter(pl.col("name") == "once")["deviation_ns"].item() is None
