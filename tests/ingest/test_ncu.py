"""Nsight Compute's CSV: nine kernels of an H200 as its raw and details pages, and pages made by hand."""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
import types
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from foretrace import kernel_profile
from foretrace.errors import FormatError, InputError
from foretrace.ingest import ncu_report_file, open_trace
from foretrace.ingest.ncu_units import factor, number
from foretrace.kernel_profile import KernelProfile
from tests.analyze.nine_kernels import DETAILS, RAW

OWN = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
ROW = '"0","7","python","host","add_kernel(int)","1","7","(128, 1, 1)","(64, 2, 1)","0","9.0"'


def profile(path: Path) -> KernelProfile:
    found = open_trace(path, cache=False).profile
    assert found is not None
    return found


def written(folder: Path, text: str, name: str = "kernels.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def rows_of(path: Path) -> list[list[str]]:
    return list(csv.reader(io.TextIOWrapper(gzip.open(path))))


# --- the real pages ------------------------------------------------------------------------------------------

# Section and metric of the details page, the column, and in which of its units a column's value is printed there.
PRINTED: list[tuple[str, str, str, dict[str, float]]] = [
    ("GPU Speed Of Light Throughput", "Duration", "dur_ns", {"us": 1e3, "ms": 1e6, "ns": 1}),
    ("GPU Speed Of Light Throughput", "Compute (SM) Throughput", "sm_pct", {"%": 1}),
    ("GPU Speed Of Light Throughput", "Memory Throughput", "memory_pct", {"%": 1}),
    ("GPU Speed Of Light Throughput", "DRAM Throughput", "dram_pct", {"%": 1}),
    ("GPU Speed Of Light Throughput", "L1/TEX Cache Throughput", "l1_pct", {"%": 1}),
    ("GPU Speed Of Light Throughput", "L2 Cache Throughput", "l2_pct", {"%": 1}),
    ("Memory Workload Analysis", "Memory Throughput", "dram_bytes_per_s", {"Tbyte/s": 1e12, "Gbyte/s": 1e9, "Mbyte/s": 1e6}),
    ("Memory Workload Analysis", "L1/TEX Hit Rate", "l1_hit_pct", {"%": 1}),
    ("Memory Workload Analysis", "L2 Hit Rate", "l2_hit_pct", {"%": 1}),
    ("Occupancy", "Achieved Occupancy", "occupancy_pct", {"%": 1}),
    ("Occupancy", "Theoretical Occupancy", "theoretical_occupancy_pct", {"%": 1}),
    ("Occupancy", "Block Limit Registers", "limit_registers_count", {"block": 1}),
    ("Occupancy", "Block Limit Shared Mem", "limit_shared_count", {"block": 1}),
    ("Occupancy", "Block Limit Warps", "limit_warps_count", {"block": 1}),
    ("Occupancy", "Block Limit SM", "limit_blocks_count", {"block": 1}),
    ("Launch Statistics", "Registers Per Thread", "registers", {"register/thread": 1}),
    ("Launch Statistics", "Waves Per SM", "waves", {"": 1}),
    ("Scheduler Statistics", "One or More Eligible", "issue_pct", {"%": 1}),
    ("Warp State Statistics", "Avg. Active Threads Per Warp", "active_threads", {"": 1}),
    ("Warp State Statistics", "Warp Cycles Per Issued Instruction", "cycles_per_issue", {"cycle": 1}),
]  # fmt: skip


@pytest.mark.parametrize("page", [RAW, DETAILS], ids=["raw", "details"])
def test_both_pages_give_what_ncu_prints(page: Path) -> None:
    """Each figure of the details page, as ncu rounds it, is the column's value in that unit."""
    table = profile(page).launches
    header, *rows = rows_of(DETAILS)
    place = {name: at for at, name in enumerate(header)}
    compared = 0
    for section, metric, column, units in PRINTED:
        for row in rows:
            if row[place["Section Name"]] != section or row[place["Metric Name"]] != metric:
                continue
            text = row[place["Metric Value"]].replace(",", "")
            last_digit = 10 ** -len(text.partition(".")[2])
            value = table[column][int(row[0])] / units[row[place["Metric Unit"]]]
            assert value == pytest.approx(float(text), abs=0.51 * last_digit), (metric, row[0])
            compared += 1
    assert compared >= 9 * (len(PRINTED) - 1)


def test_bytes_and_flops_of_the_raw_page() -> None:
    """By ncu's own formulas, from the page itself: its numbers are taken apart here once more, by hand."""
    names, units, *rows = rows_of(RAW)
    scale = {
        "byte": 1,
        "Kbyte": 1e3,
        "Mbyte": 1e6,
        "Gbyte": 1e9,
        "us": 1e-6,
        "ns": 1e-9,
        "Ghz": 1e9,
        "Mhz": 1e6,
    }
    table = profile(RAW).launches
    for at, row in enumerate(rows):
        value = {
            name: float(text.replace(",", "")) * scale.get(unit, 1)
            for name, unit, text in zip(names, units, row, strict=True)
            if re.fullmatch(r"-?[\d,]+(\.\d+)?", text)
        }
        seconds = value["gpu__time_duration.sum"]
        moved = value["dram__bytes_read.sum"] + value["dram__bytes_write.sum"]
        per_cycle = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
        add, mul, fma = (value[per_cycle.format(op)] for op in ("fadd", "fmul", "ffma"))
        fp32 = (add + mul + 2 * fma) * value["smsp__cycles_elapsed.avg.per_second"]
        tensor = sum(
            value[f"sm__ops_path_tensor_src_{kind}.sum"]
            for kind in (
                "bf16_dst_fp32",
                "fp16",
                "tf32_dst_fp32",
                "fp64",
                "fp8_sparsity_off",
                "fp8_sparsity_on",
            )
        )
        assert table["dram_bytes"][at] == pytest.approx(moved, rel=1e-9)
        assert table["dur_ns"][at] == pytest.approx(seconds * 1e9, rel=1e-9)
        assert table["fp32_flops_per_s"][at] == pytest.approx(fp32, rel=1e-6)
        assert table["tensor_flops_per_s"][at] == pytest.approx(tensor / seconds, rel=1e-6)
    # What the products must do: 2 x 2048^3 in TF32, 2 x 4096^3 in bf16.
    products = table.filter(pl.col("tensor_type").is_not_null())
    work = products["tensor_flops_per_s"] * products["dur_ns"] / 1e9
    assert products["tensor_type"].to_list() == ["tf32", "bf16"]
    assert work.to_list() == pytest.approx([2 * 2048**3, 2 * 4096**3], rel=1e-9)


def test_shares_of_the_peaks_are_those_that_ncu_states() -> None:
    """The rule SOLFPRoofline says what share of the fp32 peak each kernel reached, in whole per cent."""
    table = profile(RAW).launches
    stated = {
        int(row[0]): int(found[1])
        for row in rows_of(DETAILS)
        if len(row) > 17
        and (found := re.search(r"achieved\s+(?:close to )?(\d+)% of this device's FP32 peak", row[17]))
    }
    shares = 100 * table["fp32_flops_per_s"] / table["peak_fp32_flops_per_s"]
    assert len(stated) == 9
    assert {at: round(shares[at]) for at in stated} == stated
    moved = 100 * table["dram_bytes_per_s"] / table["peak_dram_bytes_per_s"]
    assert moved.to_list() == pytest.approx(table["dram_pct"].to_list(), abs=0.05)


def test_rules_of_the_details_page() -> None:
    found = profile(DETAILS).rules
    printed = [row for row in rows_of(DETAILS)[1:] if len(row) == 20]
    assert found.height == len(printed) == 94
    assert found["speedup_pct"].to_list() == [float(row[19]) if row[19] else None for row in printed]
    assert found.filter(pl.col("rule") == "TheoreticalOccupancy")["says"][0].startswith(
        "The 12.00 theoretical warps"
    )


def test_pages_of_one_report_complete_each_other() -> None:
    raw, details = profile(RAW), profile(DETAILS)
    for pages in ([raw, details], [details, raw]):
        both = kernel_profile.together(pages)
        assert (both.height, both.rules.height, both.stalls.height) == (9, 94, raw.stalls.height)
        assert both.launches["dur_ns"].to_list() == raw.launches["dur_ns"].to_list(), (
            "the page with more digits"
        )
        assert both.rules["id"].to_list() == details.rules["id"].to_list()
    assert kernel_profile.together([raw, raw]).height == 9


# --- pages made by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "times"),
    [("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte/s", 1e9), ("Tbyte/s", 1e12), ("us", 1e-6), ("usecond", 1e-6),
     ("nsecond", 1e-9), ("msecond", 1e-3), ("second", 1), ("Ghz", 1e9), ("cycle/nsecond", 1e9), ("byte/second", 1),
     ("Kbyte/block", 1e3), ("inst/cycle", 1), ("%", 1), ("", 1), ("register/thread", 1), ("sector/ns", 1e9), ("hz", 1)],
)  # fmt: skip
def test_units(unit: str, times: float) -> None:
    assert factor(unit) == pytest.approx(times)


@pytest.mark.parametrize(
    ("text", "value"),
    [("8,520,123", 8520123), ("1,041,204,192.97", 1041204192.97), ("0", 0), ("", None), ("n/a", None), ("nan", None), ("all", None),
     ("(!) nan", None), ("1e400", None)],
)  # fmt: skip
def test_numbers(text: str, value: float | None) -> None:
    assert number(text) == value


METRICS = '"gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"'


@pytest.mark.parametrize(
    ("units", "values"),
    [
        ('"usecond","Mbyte","Kbyte","%"', '"12.5","3","500","41.5"'),
        ('"nsecond","byte","byte","%"', '"12,500","3,000,000","500,000","41.5"'),
        (None, '"12,500","3,000,000","500,000","41.5"'),
    ],
    ids=["scaled", "base", "without units"],
)
def test_units_of_the_raw_page(units: str | None, values: str, tmp_path: Path) -> None:
    middle = "" if units is None else ",".join(['""'] * 11) + f",{units}\n"
    found = profile(written(tmp_path, f"{OWN},{METRICS}\n{middle}{ROW},{values}\n"))
    row = found.launches.row(0, named=True)
    assert (row["dur_ns"], row["dram_bytes"], row["sm_pct"]) == pytest.approx((12500, 3.5e6, 41.5))
    assert row["dram_bytes_per_s"] == pytest.approx(3.5e6 / 12.5e-6)
    assert [row[name] for name in ("grid_x", "grid_y", "grid_z", "block_x")] == [64, 2, 1, 128]
    assert (found.notes != ()) is (units is None)
    assert row["occupancy_pct"] is None, "not measured is not zero"


def test_what_a_live_run_prints_between_the_rows(tmp_path: Path) -> None:
    units = ",".join(['""'] * 11) + ',"nsecond","byte","byte","%"'
    second = ROW.replace('"0","7"', '"1","8"', 1)
    text = (
        '==PROF== Connected to process 7 (/usr/bin/python3)\nloss 3.1, "quoted\nepoch 1\n'
        f'==PROF== Profiling "add" - 0: 0%....100% - 9 passes\n{OWN},{METRICS}\n{units}\n{ROW},"1000","1","2","3"\n'
        f'step 3 "is slow\n==WARNING== No metrics\n{second},"2000","1","2","3"\n==PROF== Disconnected from process 7\n'
    )
    trace = open_trace(written(tmp_path, text), cache=False)
    assert trace.profile is not None
    assert trace.profile.launches["dur_ns"].to_list() == pytest.approx([1000, 2000])
    assert [repair.code for repair in trace.repairs] == ["other-lines"]
    assert trace.repairs[0].count == 3
    of_one = open_trace(trace.path, cache=False, pid=8).profile
    assert of_one is not None
    assert of_one.launches["dur_ns"].to_list() == pytest.approx([2000])
    with pytest.raises(FormatError, match="of process 9; there are 7, 8"):
        open_trace(trace.path, cache=False, pid=9)


def test_ragged_rows_and_broken_lines_of_the_details_page(tmp_path: Path) -> None:
    more = '"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"'
    metric = f'{ROW},"Occupancy","Achieved Occupancy","%","41.50",'
    told = f'{ROW},"Occupancy","","","","SomeRule","OPT","It waits ""here"",\nand there.","global","12.5"'
    text = f'{OWN},{more}\n{metric}\n{told}\n{ROW}\n"0","7"\n'
    trace = open_trace(written(tmp_path, text), cache=False)
    assert trace.profile is not None
    assert trace.profile.launches["occupancy_pct"].to_list() == [41.5]
    assert trace.profile.rules.select("rule", "says", "speedup_type", "speedup_pct").rows() == [
        ("SomeRule", 'It waits "here", and there.', "global", 12.5)
    ]
    assert [(repair.code, repair.count) for repair in trace.repairs] == [("short-rows", 1)]


@pytest.mark.parametrize(
    "text", ["a,b,c\n1,2,3\n", "ID,Name\n1,x\n", '"ID","Process ID"\n', "Time (%),Total\n"], ids=str
)
def test_other_tables_are_refused_in_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"kernels\.csv: not a recording"):
        open_trace(written(tmp_path, text), cache=False)


def test_a_page_without_a_launch(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="without a launch in it"):
        open_trace(written(tmp_path, f"{OWN},{METRICS}\n"), cache=False)


def test_compressed_and_cut_off(tmp_path: Path) -> None:
    whole = gzip.decompress(RAW.read_bytes())
    lines = whole.splitlines(keepends=True)
    cut = tmp_path / "cut.csv"
    cut.write_bytes(b"".join(lines[:4]) + lines[4][: len(lines[4]) // 2])
    found = profile(cut)
    assert found.height == 3
    assert found.launches["dur_ns"][1] == profile(RAW).launches["dur_ns"][1]


# --- reports -------------------------------------------------------------------------------------------------

REPORT = b"NVR\0\x10\0\0\0"
STAND_IN = """#!{python}
import gzip, sys
page = sys.argv[sys.argv.index("--page") + 1]
assert sys.argv[-3:] == ["--csv", "--print-units", "base"], sys.argv
sys.stdout.buffer.write(gzip.open({folder!r} + "/kernels." + page + ".csv.gz").read())
sys.exit({code})
"""


def installed(folder: Path, code: int = 0) -> None:
    script = folder / "ncu"
    script.write_text(STAND_IN.format(python=sys.executable, folder=str(RAW.parent), code=code))
    script.chmod(0o755)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.ncu-rep"
    path.write_bytes(REPORT)
    return path


def test_a_report_is_printed_by_ncu(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = profile(report)
    assert (found.height, found.rules.height) == (9, 94)
    installed(tmp_path, code=3)
    with pytest.raises(InputError, match="ncu could not print it"):
        profile(report)


def test_a_report_without_ncu_says_what_to_do(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncu_report_file, "find_tool", lambda: None)
    monkeypatch.setattr(ncu_report_file, "find_spec", lambda _: None)
    with pytest.raises(
        FormatError, match=r"pip install ncu-report, or .* ncu --import kernels.ncu-rep --csv --page raw"
    ):
        profile(report)


def test_ncu_where_its_installers_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert ncu_report_file.find_tool(root=tmp_path) is None
    for version in ("2024.1.1", "2025.3.1"):
        folder = tmp_path / "opt/nvidia/nsight-compute" / version
        folder.mkdir(parents=True)
        (folder / "ncu").touch()
    assert ncu_report_file.find_tool(root=tmp_path) == str(
        tmp_path / "opt/nvidia/nsight-compute/2025.3.1/ncu"
    )


class MadeAction:
    """One launch as NVIDIA's package gives it: names and signatures are those of ncu-report 2026.3.1."""

    NameBase_DEMANGLED = 1
    metrics: dict[str, tuple[Any, str]] = {  # noqa: RUF012
        "gpu__time_duration.sum": (12500, "ns"), "dram__bytes_read.sum": (3_000_000, "byte"), "dram__bytes_write.sum": (500_000, "byte"),
        "launch__grid_dim_x": (64, ""), "launch__grid_dim_y": (2, ""), "launch__grid_dim_z": (1, ""),
        "launch__block_dim_x": (128, ""), "launch__block_dim_y": (1, ""), "launch__block_dim_z": (1, ""), "launch__device_id": (0, ""),
        "device__attribute_display_name": ("NVIDIA H200", ""),
    }  # fmt: skip

    def name(self, base: int) -> str:
        return "add_kernel(int)"

    def metric_names(self) -> list[str]:
        return list(self.metrics)

    def metric_by_name(self, name: str) -> Any:
        if name not in self.metrics:
            return None
        value, unit = self.metrics[name]
        return types.SimpleNamespace(value=lambda: value, unit=lambda: unit)

    def rule_results(self) -> list[Any]:
        says = "It waits: see the @url:Guide:https://docs.nvidia.com/x#y@ and @section:SourceCounters:Source Counters@."
        told, gain = {"title": "Waits", "message": says, "type": 2}, {"type": 2, "speedup": 12.5}
        return [
            types.SimpleNamespace(
                has_rule_message=lambda: True, rule_message=lambda: told, has_speedup_estimation=lambda: True,
                speedup_estimation=lambda: gain, section_identifier=lambda: "Occupancy", rule_identifier=lambda: "SomeRule",
            )
        ]  # fmt: skip


def test_a_report_read_with_nvidias_package(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = types.SimpleNamespace(num_actions=lambda: 1, action_by_idx=lambda _: MadeAction())
    context = types.SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda _: held)
    module = types.ModuleType("ncu_report")
    numbers = {
        "MsgType_OK": 1,
        "MsgType_OPTIMIZATION": 2,
        "MsgType_WARNING": 3,
        "MsgType_ERR": 4,
        "SpeedupType_LOCAL": 1,
    }
    vars(module).update({**numbers, "SpeedupType_GLOBAL": 2, "load_report": lambda _: context})
    monkeypatch.setitem(sys.modules, "ncu_report", module)
    monkeypatch.setattr(ncu_report_file, "find_tool", lambda: None)
    monkeypatch.setattr(ncu_report_file, "find_spec", lambda _: module)
    found = profile(report)
    row = found.launches.row(0, named=True)
    assert (row["dur_ns"], row["dram_bytes"], row["device_name"]) == pytest.approx(
        (12500, 3.5e6, "NVIDIA H200")
    )
    assert [row[name] for name in ("grid_x", "grid_y", "block_x", "kernel")] == [
        64,
        2,
        128,
        "add_kernel(int)",
    ]
    assert found.rules.select("rule", "kind", "speedup_type", "speedup_pct").rows() == [
        ("SomeRule", "OPT", "global", 12.5)
    ]
    assert (
        found.rules["says"][0] == "It waits: see the Guide (https://docs.nvidia.com/x#y) and Source Counters."
    )

    def broken(_: str) -> None:
        raise RuntimeError("not a report")

    vars(module)["load_report"] = broken
    with pytest.raises(InputError, match="ncu-report could not read it: not a report"):
        profile(report)
