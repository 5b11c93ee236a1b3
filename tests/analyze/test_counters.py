"""Counters of CUPTI's range profiler, by hand and as HTA's recording has them."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace import analyze
from foretrace.errors import MissingDataError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

FADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"


def counted() -> Recording:
    made = Recording().op("aten::mm", 0, 10)
    for at, name, adds, fused, share in ((20, "gemm", 100, 1_000, 40.5), (40, "gemm", 100, 3_000, 59.5), (60, "add", 500, 0, 80.0)):  # fmt: skip
        made.add("cuda_profiler_range", name, at, 10, 0, 0, **{FADD: adds, FFMA: fused, DRAM: share})
    return made


def test_sums_means_and_shares(tmp_path: Path) -> None:
    result = analyze.run(counted().open(tmp_path), "counters")
    rows = {(row["name"], row["metric"]): row for row in result.table.to_dicts()}
    assert len(rows) == 6
    gemm = rows["gemm", FFMA]
    assert (gemm["ranges_count"], gemm["total_count"], gemm["mean_count"], gemm["mean_pct"]) == (
        2,
        4_000,
        2_000,
        None,
    )
    share = rows["gemm", DRAM]
    assert (share["total_count"], share["mean_count"], share["mean_pct"]) == (None, None, 50.0)


def test_flops_of_the_cuda_cores(tmp_path: Path) -> None:
    """100 + 100 + 500 additions, and 4,000 fused multiply-adds of two."""
    values = analyze.run(counted().open(tmp_path), "counters").values
    assert values["cuda_core_flops"] == 700 + 8_000
    assert (values["ranges_count"], values["metrics_count"]) == (3, 3)
    only = Recording().add("cuda_profiler_range", "gemm", 0, 10, 0, 0, **{DRAM: 40.0})
    assert analyze.run(only.open(tmp_path), "counters").values["cuda_core_flops"] is None


def test_other_arguments_are_no_counters(tmp_path: Path) -> None:
    made = Recording().annotation("mine", 0, 10).op("aten::mm", 0, 5, **{"Some key": 4, "collective_name": 2})
    with pytest.raises(MissingDataError, match="profiler_metrics"):
        analyze.run(made.open(tmp_path), "counters")


@needs_corpus
def test_the_recording_of_hta() -> None:
    name = "cupti_profiler__benchmark_result_924719_1679055439_trace.json.gz"
    result = analyze.run(foretrace.open(CORPUS / "peers" / "hta" / name), "counters")
    assert result.values["ranges_count"] == 77
    assert result.values["metrics_count"] == 9
    fused = result.table.filter(result.table["metric"] == FFMA)
    assert fused["ranges_count"].sum() == 77
