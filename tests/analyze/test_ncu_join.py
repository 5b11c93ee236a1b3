"""A program recorded on an H200 by benchmarks/ncu_join.py, with torch.profiler and under ncu 2025.3: its kernels found again.

ncu was still at work when its report was printed: the raw page in base units has 19 launches, that in its own units, printed
later, 21. To keep them small, columns that are not read were left out, and what the trace has beside operators and GPU work.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import polars as pl
import pytest

from foretrace import analyze
from foretrace.analyze.concepts.device.profiled_kernels import joined
from foretrace.ingest import open_trace
from foretrace.ingest.recordings import find_recording
from foretrace.kernel_profile import LAUNCHES, KernelProfile
from foretrace.trace import Trace

FOLDER = Path(__file__).parents[1] / "traces" / "ncu_join"
ASKED_PCT = 95


def page(name: str) -> KernelProfile:
    found = open_trace(FOLDER / f"kernels.{name}.csv.gz", cache=False).profile
    assert found is not None
    return found


@pytest.fixture(scope="module")
def program() -> Trace:
    recorded = find_recording(FOLDER)
    return recorded.told(open_trace(recorded.path, cache=False))


def test_the_folder_is_one_program(program: Trace) -> None:
    assert program.path == FOLDER / "trace.json.zst"
    assert program.profile is not None
    assert [page(name).height for name in ("raw", "scaled")] == [19, 21]
    assert program.profile.height == 21
    assert len(program.meta["recordings"]) == 3


def test_the_profiled_time_is_found_in_the_trace(program: Trace) -> None:
    join = joined(program)
    assert join.matched_pct is not None
    assert join.matched_pct >= ASKED_PCT
    assert join.profiled.filter(pl.col("calls_count").is_null()).height == 0, "not one kernel is missed"


def test_a_kernel_is_not_matched_with_another(program: Trace) -> None:
    """Alone under ncu and in the program a kernel takes about as long: a wrong match would show."""
    join = joined(program)
    rows = join.profiled.with_columns(mean_ns=pl.col("total_ns") / pl.col("calls_count"))
    long = rows.filter(pl.col("dur_ns") > 10_000)
    ratio = long["mean_ns"] / long["dur_ns"]
    # ncu empties the caches first; and one name and geometry may be given more work, as attention with a mask and without.
    assert long.height >= 15
    assert min(ratio) > 0.3
    assert max(ratio) < 2
    assert median(abs(value - 1) for value in ratio) < 0.1


def test_pages_in_base_and_in_scaled_units_say_the_same() -> None:
    base = page("raw").launches
    scaled = page("scaled").launches.head(base.height)
    numbers = [name for name, (dtype, _) in LAUNCHES.items() if dtype == pl.Float64]
    measured = [name for name in numbers if base[name].null_count() < base.height]
    assert len(measured) >= 30
    for name in measured:
        # Base units are printed with two digits, scaled ones with six.
        known = base[name].is_not_null()
        assert scaled[name].is_not_null().to_list() == known.to_list()
        printed = base[name].filter(known).to_list()
        assert scaled[name].filter(known).to_list() == pytest.approx(printed, rel=2e-3, abs=0.006), name


def test_the_roofline_is_measured_where_kernels_were(program: Trace) -> None:
    result = analyze.run(program, "roofline")
    join = joined(program)
    assert join.covered_pct is not None
    measured = result.values["measured_pct"]
    assert isinstance(measured, float)
    # Calls of which some kernels were not profiled keep their estimate.
    assert 0.8 * join.covered_pct < measured <= join.covered_pct + 0.1
    product = result.table.filter(pl.col("shapes") == "4096x4096, 4096x4096").row(0, named=True)
    assert (product["source"], product["bound"]) == ("ncu", "compute")
    # Executed instructions of an fp32 product are its 2 x 4096^3 FLOPs and a little more.
    assert product["work_flops"] == pytest.approx(product["calls_count"] * 2 * 4096**3, rel=0.05)
