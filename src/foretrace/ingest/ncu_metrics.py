"""What metrics of Nsight Compute mean: from a metric's name, or its place on the details page, to a column of a KernelProfile."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Values = Mapping[str, float]  # metric -> value in bytes, seconds, hertz, per second

_NS = 1e9  # per second: a KernelProfile's times are nanoseconds
_ELAPSED, _PER_CYCLE = "avg.pct_of_peak_sustained_elapsed", "sum.per_cycle_elapsed"
_SMSP_CLOCK, _SM_CLOCK = "smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second"
_TENSOR = re.compile(r"sm__ops_path_tensor_src_([a-z]+[0-9]+)\w*\.sum(\.per_second)?")
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_LEAST_TENSOR_PCT = 5  # below, tensor pipes did nothing worth a FLOP: compilers move constants through them

# Columns that are one metric, times a factor.
_PLAIN: Mapping[str, tuple[str, float]] = {
    "registers": ("launch__registers_per_thread", 1),
    "waves": ("launch__waves_per_multiprocessor", 1),
    "dur_ns": ("gpu__time_duration.sum", _NS),
    "sm_pct": (f"sm__throughput.{_ELAPSED}", 1),
    "memory_pct": (f"gpu__compute_memory_throughput.{_ELAPSED}", 1),
    "dram_pct": (f"gpu__dram_throughput.{_ELAPSED}", 1),
    "l1_pct": ("l1tex__throughput.avg.pct_of_peak_sustained_active", 1),
    "l2_pct": (f"lts__throughput.{_ELAPSED}", 1),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    "theoretical_occupancy_pct": ("sm__maximum_warps_per_active_cycle_pct", 1),
    "limit_registers_count": ("launch__occupancy_limit_registers", 1),
    "limit_shared_count": ("launch__occupancy_limit_shared_mem", 1),
    "limit_warps_count": ("launch__occupancy_limit_warps", 1),
    "limit_blocks_count": ("launch__occupancy_limit_blocks", 1),
    "limit_barriers_count": ("launch__occupancy_limit_barriers", 1),
    "issue_pct": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
    "active_threads": ("smsp__thread_inst_executed_per_inst_executed.ratio", 1),
    "unpredicated_threads": ("smsp__thread_inst_executed_pred_on_per_inst_executed.ratio", 1),
    "cycles_per_issue": ("smsp__average_warp_latency_per_inst_issued.ratio", 1),
    "l1_hit_pct": ("l1tex__t_sector_hit_rate.pct", 1),
    "l2_hit_pct": ("lts__t_sector_hit_rate.pct", 1),
    "load_bytes_per_sector": ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio", 1),
    "store_bytes_per_sector": ("smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio", 1),
    "bank_conflicts_count": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", 1),
    "spills_count": ("derived__local_spilling_requests", 1),
}
# Section and metric of the details page -> the metric of the raw page. Two sections have a "Memory Throughput".
_DETAILS: Mapping[tuple[str, str], str] = {
    ("GPU Speed Of Light Throughput", "Duration"): "gpu__time_duration.sum",
    ("GPU Speed Of Light Throughput", "Compute (SM) Throughput"): f"sm__throughput.{_ELAPSED}",
    ("GPU Speed Of Light Throughput", "Memory Throughput"): f"gpu__compute_memory_throughput.{_ELAPSED}",
    ("GPU Speed Of Light Throughput", "DRAM Throughput"): f"gpu__dram_throughput.{_ELAPSED}",
    ("GPU Speed Of Light Throughput", "L1/TEX Cache Throughput"): _PLAIN["l1_pct"][0],
    ("GPU Speed Of Light Throughput", "L2 Cache Throughput"): _PLAIN["l2_pct"][0],
    ("GPU Speed Of Light Throughput", "SM Frequency"): _SM_CLOCK,
    ("GPU Speed Of Light Throughput", "DRAM Frequency"): "dram__cycles_elapsed.avg.per_second",
    ("Memory Workload Analysis", "Memory Throughput"): "dram__bytes.sum.per_second",
    ("Memory Workload Analysis", "L1/TEX Hit Rate"): _PLAIN["l1_hit_pct"][0],
    ("Memory Workload Analysis", "L2 Hit Rate"): _PLAIN["l2_hit_pct"][0],
    ("Memory Workload Analysis", "Local Memory Spilling Requests"): _PLAIN["spills_count"][0],
    ("Scheduler Statistics", "One or More Eligible"): _PLAIN["issue_pct"][0],
    ("Warp State Statistics", "Warp Cycles Per Issued Instruction"): _PLAIN["cycles_per_issue"][0],
    ("Warp State Statistics", "Avg. Active Threads Per Warp"): _PLAIN["active_threads"][0],
    ("Warp State Statistics", "Avg. Not Predicated Off Threads Per Warp"): _PLAIN["unpredicated_threads"][0],
    ("Launch Statistics", "Registers Per Thread"): _PLAIN["registers"][0],
    ("Launch Statistics", "Waves Per SM"): _PLAIN["waves"][0],
    ("Occupancy", "Achieved Occupancy"): _PLAIN["occupancy_pct"][0],
    ("Occupancy", "Theoretical Occupancy"): _PLAIN["theoretical_occupancy_pct"][0],
    ("Occupancy", "Block Limit Registers"): _PLAIN["limit_registers_count"][0],
    ("Occupancy", "Block Limit Shared Mem"): _PLAIN["limit_shared_count"][0],
    ("Occupancy", "Block Limit Warps"): _PLAIN["limit_warps_count"][0],
    ("Occupancy", "Block Limit SM"): _PLAIN["limit_blocks_count"][0],
    ("Occupancy", "Block Limit Barriers"): _PLAIN["limit_barriers_count"][0],
}  # fmt: skip


def metric_of(section: str, name: str) -> str | None:
    """The metric that a row of the details page is about; None for one that no column is made of."""
    return _DETAILS.get((section, name))


def columns(values: Values) -> dict[str, float | str | None]:
    """What a launch's metrics say, by column; what was not measured is left out."""
    found: dict[str, float | str | None] = {
        column: values[metric] * times for column, (metric, times) in _PLAIN.items() if metric in values
    }
    for column, make in _DERIVED.items():
        found[column] = make(values)
    found["tensor_type"] = _tensor_type(values)
    return {column: value for column, value in found.items() if value is not None}


def stalls(values: Values) -> dict[str, float]:
    """What warps waited for, in cycles between two of a warp's instructions; `selected` is the instruction itself."""
    return {found[1]: value for name, value in values.items() if (found := _STALL.fullmatch(name))}


def wanted(name: str) -> bool:
    """Whether any column is made of this metric: of two thousand, some fifty are."""
    return name in _WANTED or bool(_TENSOR.fullmatch(name) or _STALL.fullmatch(name))


def _sass(operations: str) -> Callable[[Values], float | None]:
    """FLOP/s of one precision by the instructions that were executed: add + multiply + 2 multiply-add, times the clock."""
    add, mul, fma = (
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.{_PER_CYCLE}" for op in operations.split()
    )

    def flops_per_s(values: Values) -> float | None:
        if not all(name in values for name in (add, mul, fma, _SMSP_CLOCK)):
            return None
        return (values[add] + values[mul] + 2 * values[fma]) * values[_SMSP_CLOCK]

    return flops_per_s


def _tensor_work(values: Values) -> dict[str, float]:
    """FLOPs of tensor cores by what they multiply, integers left out; from totals or, without them, from rates."""
    totals: dict[str, float] = {}
    seconds = values.get("gpu__time_duration.sum")
    for name, value in values.items():
        found = _TENSOR.fullmatch(name)
        if found is None or found[1].startswith("int"):
            continue
        work = value if found[2] is None else value * seconds if seconds else None
        if work is not None and (found[2] is None or name.removesuffix(".per_second") not in values):
            totals[found[1]] = totals.get(found[1], 0.0) + work
    return totals


def _tensor_flops_per_s(values: Values) -> float | None:
    work, seconds = _tensor_work(values), values.get("gpu__time_duration.sum")
    if work and seconds:
        return sum(work.values()) / seconds
    pipe = values.get(f"sm__pipe_tensor_cycles_active.{_ELAPSED}")
    # Without counters of operations: nothing where the pipes were idle, unknown where they were not.
    return 0.0 if pipe is not None and pipe < _LEAST_TENSOR_PCT else None


def _tensor_type(values: Values) -> str | None:
    work = {name: flops for name, flops in _tensor_work(values).items() if flops > 0}
    return max(work, key=lambda name: work[name]) if work else None


def _dram_bytes(values: Values) -> float | None:
    parts = [values.get(f"dram__bytes_{way}.sum") for way in ("read", "write")]
    if parts[0] is not None and parts[1] is not None:
        return parts[0] + parts[1]
    rate, seconds = values.get("dram__bytes.sum.per_second"), values.get("gpu__time_duration.sum")
    return None if rate is None or seconds is None else rate * seconds


def _dram_bytes_per_s(values: Values) -> float | None:
    if (rate := values.get("dram__bytes.sum.per_second")) is not None:
        return rate
    moved, seconds = _dram_bytes(values), values.get("gpu__time_duration.sum")
    return moved / seconds if moved is not None and seconds else None


def _excess_sectors_pct(values: Values) -> float | None:
    excess = values.get("derived__memory_l2_theoretical_sectors_global_excessive")
    every = values.get("memory_l2_theoretical_sectors_global")
    return 100 * excess / every if excess is not None and every else None


def _product(first: str, second: str, times: float = 1) -> Callable[[Values], float | None]:
    def made(values: Values) -> float | None:
        return times * values[first] * values[second] if first in values and second in values else None

    return made


_DERIVED: Mapping[str, Callable[[Values], float | None]] = {
    "dram_bytes": _dram_bytes,
    "excess_sectors_pct": _excess_sectors_pct,
    "dram_bytes_per_s": _dram_bytes_per_s,
    "peak_dram_bytes_per_s": _product("dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"),
    "fp32_flops_per_s": _sass("fadd fmul ffma"),
    "fp64_flops_per_s": _sass("dadd dmul dfma"),
    "tensor_flops_per_s": _tensor_flops_per_s,
    "peak_fp32_flops_per_s": _product(
        "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained", _SM_CLOCK, 2
    ),
}  # fmt: skip
_OPERATIONS = ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma")
_WANTED = frozenset(
    (
        *(metric for metric, _ in _PLAIN.values()),
        *(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.{_PER_CYCLE}" for op in _OPERATIONS),
        "memory_l2_theoretical_sectors_global", "derived__memory_l2_theoretical_sectors_global_excessive", "dram__bytes_read.sum", "dram__bytes_write.sum", "dram__bytes.sum.per_second", "dram__bytes.sum.peak_sustained",
        "dram__cycles_elapsed.avg.per_second", _SMSP_CLOCK, _SM_CLOCK, f"sm__pipe_tensor_cycles_active.{_ELAPSED}",
        "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained", "device__attribute_display_name",
    )
)  # fmt: skip
