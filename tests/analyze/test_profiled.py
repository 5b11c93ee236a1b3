"""What Nsight Compute measured, alone and joined to a recording of the same program."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from foretrace import analyze
from foretrace.analyze.concepts.device.profiled_kernels import joined
from foretrace.errors import MissingDataError
from foretrace.ingest import open_trace
from foretrace.ingest.recordings import find_recording
from foretrace.trace import Trace
from tests.analyze.nine_kernels import DETAILS, OPS, RAW, recording
from tests.builders import Recording
from tests.diagnose.kernels import STEPS, recorded


def with_counters(made: Recording, folder: Path, *counters: Path) -> Trace:
    path = made.write(folder)
    return find_recording(path, counters=counters).told(open_trace(path, cache=False))


@pytest.fixture(scope="module")
def alone() -> Trace:
    return open_trace(RAW, cache=False)


@pytest.fixture
def program(tmp_path: Path) -> Trace:
    return with_counters(recording(), tmp_path, RAW, DETAILS)


def test_limits_and_occupancy_alone(alone: Trace) -> None:
    table = analyze.run(alone, "profiled").table
    assert table["measured_ns"].is_sorted(descending=True)
    by_kernel = {row["kernel"][:40]: row for row in table.rows(named=True)}
    product = by_kernel["nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coo"]
    assert (product["bound"], product["tensor_type"]) == ("compute", "bf16")
    assert product["roof_pct"] == pytest.approx(90.22, abs=0.01)
    # 2 x 4096^3 FLOPs in 177.216 us, and 148.48 + 27.84 MB.
    assert product["achieved_flops_per_s"] == pytest.approx(2 * 4096**3 / 177.216e-6, rel=1e-6)
    assert product["intensity_flops_per_byte"] == pytest.approx(2 * 4096**3 / 176_324_608, rel=1e-4)
    assert (product["grid"], product["block"], product["waves_count"]) == ("2x66x1", "384x1x1", 1)
    norm = by_kernel["void at::<unnamed>::vectorized_layer_norm"[:40]]
    assert (norm["limiter"], norm["bound"]) == ("registers", "compute and memory")
    assert norm["warp_efficiency_pct"] == pytest.approx(100 * 30.25 / 32)
    assert table["matched"].null_count() == table.height, "there is no recording to find them in"


def test_limiters_are_those_that_ncu_names(program: Trace) -> None:
    """Its rule TheoreticalOccupancy says in words what limits a kernel's theoretical occupancy."""
    words = {
        "registers": "registers",
        "shared memory": "shared memory",
        "number of warps within each block": "block size",
    }
    profile = program.profile
    assert profile is not None
    stated = {
        row["id"]: {ours for theirs, ours in words.items() if theirs in row["says"]}
        for row in profile.rules.filter(pl.col("rule") == "TheoreticalOccupancy").rows(named=True)
        if "limited by" in row["says"]
    }
    groups = joined(program).profiled
    found = {
        each: set(re.split(", ", row["limiter"])) - {"small grid"}
        for row in groups.rows(named=True)
        for each in row["ids"]
    }
    assert len(stated) >= 3
    assert {each: found[each] for each in stated} == stated


def test_bounds_are_those_that_ncu_names(program: Trace) -> None:
    """Its rule SOLBottleneck: high throughput, compute or memory more, or latency."""
    profile = program.profile
    assert profile is not None
    groups = joined(program).profiled
    bound = {each: row["bound"] for row in groups.rows(named=True) for each in row["ids"]}
    seen = set()
    for row in profile.rules.filter(pl.col("rule") == "SOLBottleneck").rows(named=True):
        says, ours = row["says"], bound[row["id"]]
        if "grid is too small" in says:
            assert ours == "small grid"
        elif "exhibits low compute throughput and memory" in says:
            assert ours == "latency"
        elif "Memory is more heavily utilized" in says:
            assert ours == "memory"
        elif "Compute is more heavily utilized" in says:
            assert ours == "compute"
        elif "well-balanced" in says:
            assert ours == "compute and memory"
        seen.add(ours)
    assert len(seen) >= 3


def test_every_kernel_is_found_in_the_recording(program: Trace) -> None:
    result = analyze.run(program, "profiled")
    assert result.values["matched_pct"] == result.values["covered_pct"] == 100
    times = dict(zip((op.kernel for op in OPS), (op.dur for op in OPS), strict=True))
    assert result.table["total_ns"].sum() == pytest.approx(STEPS * 1e3 * sum(op.dur for op in OPS))
    assert result.table["total_ns"][0] == pytest.approx(STEPS * 1e3 * max(times.values()))
    assert result.table["matched"].all()
    assert "100.0 % of their time found" in result.says


def test_another_geometry_is_another_kernel(tmp_path: Path) -> None:
    """One of two kernels runs with another grid: its time, and no other, is not matched."""
    ops = [*OPS[:1], replace(OPS[1], args={"grid": [7, 1, 1], "block": [128, 1, 1]}), *OPS[2:]]
    trace = with_counters(recorded(ops), tmp_path, RAW)
    assert trace.profile is not None
    durations = trace.profile.launches["dur_ns"]
    result = analyze.run(trace, "profiled")
    assert result.values["matched_pct"] == pytest.approx(100 * (1 - durations[1] / durations.sum()))
    whole = sum(op.dur for op in OPS)
    assert result.values["covered_pct"] == pytest.approx(100 * (1 - OPS[1].dur / whole))
    assert result.table.filter(~pl.col("matched"))["kernel"].str.contains(
        "elementwise_kernel<128, 2"
    ).to_list() == [True]


def test_kernels_without_geometry_are_not_matched(tmp_path: Path) -> None:
    trace = with_counters(recorded([replace(op, args={}) for op in OPS]), tmp_path, RAW)
    assert analyze.run(trace, "profiled").values["matched_pct"] == 0


def test_a_bare_name_is_matched_where_it_can_mean_one_kernel(tmp_path: Path) -> None:
    """ncu prints `function` names by option: two kernels of one function and geometry cannot be told apart then."""
    import gzip

    text = gzip.decompress(RAW.read_bytes()).decode()
    bare = re.sub(r'"void at::(?:<unnamed>::)?(\w+)<.*?\)","1","7"', r'"\1","1","7"', text)
    assert '"vectorized_layer_norm_kernel"' in bare
    path = tmp_path / "bare.csv"
    path.write_text(bare)
    result = analyze.run(with_counters(recording(), tmp_path, path), "profiled")
    unmatched = result.table.filter(~pl.col("matched"))
    assert result.values["matched_pct"] == 100
    assert unmatched.height == 0


def test_stalls_are_shares_of_the_cycles_between_instructions(alone: Trace) -> None:
    table = analyze.run(alone, "warp-stalls").table
    assert alone.profile is not None
    cycles = alone.profile.launches["cycles_per_issue"]
    of_norm = table.filter(pl.col("kernel").str.contains("layer_norm"))
    # ncu: "about 31.5 % of the total average of 15.3 cycles", waiting for L1TEX.
    assert of_norm["reason"][0] == "long_scoreboard"
    assert of_norm["stall_pct"][0] == pytest.approx(31.48, abs=0.05)
    assert of_norm["cycles_count"].sum() + 1 == pytest.approx(cycles[0], rel=0.01), "and one to issue"


def test_memory_access_as_ncu_says_it(alone: Trace) -> None:
    result = analyze.run(alone, "memory-access")
    norm = result.table.filter(pl.col("kernel").str.contains("layer_norm")).row(0, named=True)
    # ncu: "only 12.8 of the 32 bytes transmitted per sector are utilized by each thread"; of stores, 31.6.
    assert (norm["load_use_pct"], norm["store_use_pct"]) == pytest.approx((40, 100 * 31.569 / 32), abs=0.01)
    assert "use 12 % of the bytes" in result.says


def test_rules_with_their_estimates() -> None:
    trace = open_trace(DETAILS, cache=False)
    result = analyze.run(trace, "ncu-rules")
    assert set(result.table["kind"]) <= {"OPT", "WRN"}
    assert analyze.run(trace, "ncu-rules", information=True).table.height > result.table.height
    assert result.table.filter(pl.col("rule") == "UncoalescedGlobalAccess")[
        "speedup_pct"
    ].max() == pytest.approx(77.46, abs=0.1)


def test_what_was_not_measured_is_said(alone: Trace, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="details page"):
        analyze.run(alone, "ncu-rules")
    with pytest.raises(MissingDataError, match="WarpStateStats"):
        analyze.run(open_trace(DETAILS, cache=False), "warp-stalls")
    for name in ("profiled", "warp-stalls", "memory-access", "ncu-rules"):
        with pytest.raises(MissingDataError, match="--ncu FILE"):
            analyze.run(recording().open(tmp_path), name)


# --- the roofline --------------------------------------------------------------------------------------------


def test_the_roofline_uses_what_was_measured(program: Trace) -> None:
    result = analyze.run(program, "roofline")
    assert result.values["measured_pct"] == 100
    assert set(result.table["source"]) == {"ncu"}
    copy = result.table.filter(pl.col("op") == "aten::copy_").row(0, named=True)
    # By its shapes it reaches a quarter of the memory's limit; by ncu the L2 cache is at 98 %.
    assert (copy["roof_pct"], copy["bound"]) == (pytest.approx(97.99, abs=0.01), "memory")
    profile = program.profile
    assert profile is not None
    assert copy["traffic_bytes"] == pytest.approx(STEPS * profile.launches["dram_bytes"][1])
    assert copy["achieved_bytes_per_s"] == pytest.approx(profile.launches["dram_bytes"][1] / 450e-6)
    product = result.table.filter(pl.col("dtype") == "bf16").row(0, named=True)
    assert product["work_flops"] == pytest.approx(STEPS * 2 * 4096**3)
    assert any("100.0 % of its launches' time found here" in note for note in result.notes)


def test_without_counters_the_roofline_is_of_shapes(tmp_path: Path) -> None:
    result = analyze.run(recording().open(tmp_path), "roofline")
    assert set(result.table["source"]) == {"shapes"}
    assert "measured_pct" not in result.values
    assert result.table["work_flops"].dtype == pl.Int64
    copy = result.table.filter(pl.col("op") == "aten::copy_").row(0, named=True)
    assert (copy["roof_pct"], copy["bound"]) == (pytest.approx(24.85, abs=0.1), "latency")


def test_kernels_that_no_operator_launched_are_placed_where_measured(tmp_path: Path) -> None:
    made = Recording(
        deviceProperties=[{"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 150109880320}]
    )
    made.step(0, 0, 1000)
    for place, op in enumerate(OPS):
        made.launch(place * 10, op.kernel, 100 + 500 * place, 100 + 500 * place + op.dur, **op.args)
    table = analyze.run(with_counters(made, tmp_path, RAW), "roofline", group_by="kernel").table
    assert table["roof_pct"].null_count() == 0
    assert set(table["model"]) == {"ncu"}


def test_the_roofline_of_counters_alone(alone: Trace) -> None:
    result = analyze.run(alone, "roofline")
    assert result.table.height == 8, "by kernel name"
    assert result.values["roof_pct"] == pytest.approx(87.8, abs=0.1)
    assert alone.profile is not None
    product = result.table.filter(pl.col("dtype") == "bf16").row(0, named=True)
    assert product["achieved_flops_per_s"] == pytest.approx(alone.profile.launches["tensor_flops_per_s"][6])
    assert product["achieved_bytes_per_s"] == pytest.approx(
        alone.profile.launches["dram_bytes_per_s"][6], rel=1e-5
    )
