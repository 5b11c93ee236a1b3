"""GPU efficiency: how busy the GPU was, how full, and how well it was used."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.concepts.device import device_roles, device_time
from foretrace.analyze.concepts.device.device_roles import TENSOR_CORES
from foretrace.analyze.concepts.device.device_time import MeasuredPeriod
from foretrace.analyze.concepts.device.phases import PHASES, RECOMPUTE
from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.concepts.work.model_flops import ModelFlops, model_flops
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.steps import measured_window, step_windows
from foretrace.errors import MissingDataError
from foretrace.trace import Trace

_KERNEL_TIME = "of kernel time: the summed duration of the kernels launched in the recording"
_WORK_TIME = "of GPU time: the summed duration of the kernels, copies and memsets launched in the recording"
_ENOUGH = 90.0  # percent of matrix-multiply time whose FLOPs must be known for MFU to stand for all of it


@analysis(Subject.DEVICE)
def gpu_efficiency(trace: Trace) -> Result:
    """How busy, how full and how well used the GPU was: utilisation, SMs, tensor cores, MFU and goodput.

    Utilisation, over the measured window (from the start of the first to the end of the last complete step;
    without steps, the recording); with several devices, means over them:
        utilisation_pct: time with at least one kernel running; overlapping kernels count once, copies do not
            count.
        sm_efficiency_pct: integral of min(sum of concurrent kernels' blocks per SM, 1) / window. An estimate
            from launch geometry: 100 % means that every SM had a block, not that it did useful work.
        occupancy_pct: sum of occupancy x duration / sum of duration: a share of kernel time, not of the
            window. 12.5 % is normal for flash attention.

    Tensor cores (matrix cores on AMD), judged by kernel names; "unknown" does not mean "no":
        tensor_core_pct, no_tensor_core_pct, unknown_tensor_core_pct: of kernel time; they sum to 100 %.
        tensor_core_gemm_pct: of the time of kernels that, by name, multiply matrices or convolve.
        tensor_core_eligible_pct: of tensor-core-capable work: the kernel time under operators that tensor cores
            can run (conv*, mm, bmm, addmm, linear, RNNs, ...: the TensorBoard plugin's list), each kernel
            counted under its innermost such operator.

    FLOPs against the peak:
        mfu_pct: model FLOPs utilisation. For each step: FLOPs / peak FLOP/s of the type used (tf32 where the
            kernel's name says so), summed over matrix multiplies, convolutions and attention, divided by the
            step's time between completions and the number of devices; the median over complete steps. Without
            steps, over the window. Recomputed operators do not count. FLOPs come from recorded shapes; peaks
            are dense.
        hfu_pct: hardware FLOPs utilisation: the same, including recomputed operators.
        model_flops: FLOPs of a step (without steps, of the recording), excluding recomputation.
        flops_coverage_pct: share of matrix-multiply time whose FLOPs and peak are known. Below 90 %, MFU is a
            lower bound and a note says so; at 0 it is null. Results above 100 %, caused by damaged shapes or
            times, are null as well.

    Goodput:
        goodput_pct: share of GPU time (sum of kernels, copies, memsets) that advances the model: 100 % minus
            recompute_pct (forward operators run again in the backward) and moving_pct (casts, copies within the
            device and layout changes outside recomputation). Copies to and from the host, communication and the
            optimizer count as advancing the model.

    Table: the kernels that multiply, by role, type and use of tensor cores:
        total_pct: of the time of all kernels.
        what: the top kernel's name in plain words.

    What it cannot tell: how many of a tensor core's cycles were used (that takes hardware counters), nor types
    that do not appear in a kernel's name.
    """
    work = device_roles.classified(trace)
    kernels = work.filter(pl.col("kind") == "kernel")
    if kernels.is_empty():
        raise MissingDataError(
            f"{trace.path.name}: no kernels launched in the recording; record with ProfilerActivity.CUDA"
        )
    window = measured_window(trace, step_windows(trace))
    flops = model_flops(trace, work, step_windows(trace))
    values = _fill(trace, window) | _tensor_cores(kernels) | _against_peak(flops) | _goodput(work)
    return Result(
        says=_says(values),
        table=_table(kernels),
        values=values,
        denominators=_denominators(window),
        notes=_notes(trace, work, values, flops),
    )


def _fill(trace: Trace, window: MeasuredPeriod) -> dict[str, Value]:
    """Utilisation, SM efficiency and occupancy; means over the devices."""
    in_window = (pl.col("start_ns") < window.end_ns) & (pl.col("end_ns") > window.start_ns)
    fill = device_time.kernel_fill(trace).filter(in_window)
    measures = {
        "utilisation_pct": device_time.utilisation_pct,
        "sm_efficiency_pct": device_time.sm_efficiency_pct,
        "occupancy_pct": device_time.occupancy_pct,
    }
    devices = device_time.by_device(fill)
    values: dict[str, Value] = {}
    for name, measure in measures.items():
        known = [value for _, kernels in devices if (value := measure(kernels, window)) is not None]
        values[name] = sum(known) / len(known) if known else None
    return values


def _share(kernels: pl.DataFrame, chosen: pl.Expr) -> float | None:
    """The share of the kernels' time that the chosen ones take."""
    total = int(kernels["dur_ns"].sum())
    return 100 * int(kernels.filter(chosen)["dur_ns"].sum()) / total if total else None


def _tensor_cores(kernels: pl.DataFrame) -> dict[str, Value]:
    yes, no, unknown = (
        pl.col("tensor_cores") == TENSOR_CORES.index(answer) for answer in ("yes", "no", "unknown")
    )
    return {
        "tensor_core_pct": _share(kernels, yes),
        "no_tensor_core_pct": _share(kernels, no),
        "unknown_tensor_core_pct": _share(kernels, unknown),
        "tensor_core_gemm_pct": _share(kernels.filter("multiplies"), yes),
        "tensor_core_eligible_pct": _share(kernels.filter("eligible"), yes),
    }


def _against_peak(flops: ModelFlops) -> dict[str, Value]:
    return {
        "mfu_pct": flops.mfu_pct,
        "hfu_pct": flops.hfu_pct,
        "model_flops": flops.model_flops,
        "flops_coverage_pct": flops.coverage_pct,
    }


def _goodput(work: pl.DataFrame) -> dict[str, Value]:
    again = pl.col("phase") == PHASES.index(RECOMPUTE)
    moving = pl.col("moves") & ~again
    return {
        "goodput_pct": _share(work, ~again & ~moving),
        "recompute_pct": _share(work, again),
        "moving_pct": _share(work, moving),
    }


def _table(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels that multiply, by role, type and use of tensor cores."""
    fused = pl.col("role") == device_roles.ROLES.index(device_roles.FUSED_ATTENTION)
    names = (
        kernels.filter(pl.col("multiplies") | fused)
        .group_by("role", "tensor_cores", "name")
        .agg(calls_count=pl.len(), total_ns=pl.col("dur_ns").sum())
    )
    decoded = [decode(str(name)) for name in names["name"].cast(pl.String).to_list()]
    rows = names.with_columns(
        dtype=pl.Series([kernel.input_dtype for kernel in decoded], dtype=pl.String),
        what=pl.Series([kernel.text for kernel in decoded], dtype=pl.String),
    ).sort("total_ns", pl.col("name").cast(pl.String), descending=[True, False])
    total = int(kernels["dur_ns"].sum())
    table = rows.group_by("role", "dtype", "tensor_cores", maintain_order=True).agg(
        pl.col("calls_count", "total_ns").sum(),
        top_kernel=pl.col("name").first(),
        what=pl.col("what").first(),
    )
    cores = pl.col("tensor_cores").replace_strict(dict(enumerate(TENSOR_CORES)), return_dtype=pl.String)
    return table.select(
        device_roles.role_names().alias("role"),
        "dtype",
        cores.alias("tensor_cores"),
        "calls_count",
        "total_ns",
        (100 * pl.col("total_ns") / total if total else pl.lit(None, pl.Float64)).alias("total_pct"),
        "top_kernel",
        "what",
    ).sort("total_ns", descending=True, maintain_order=True)


def _denominators(window: MeasuredPeriod) -> dict[str, str]:
    time = "of the time between completions of steps (without steps, of the recording)"
    return {
        "utilisation_pct": f"time with at least one kernel running (copies do not count), of {window.says}",
        "sm_efficiency_pct": f"estimated share of SMs with a block, over {window.says}",
        "occupancy_pct": "a mean over kernels, weighted by duration: of kernel time, not of the window",
        "tensor_core_pct": _KERNEL_TIME,
        "no_tensor_core_pct": _KERNEL_TIME,
        "unknown_tensor_core_pct": _KERNEL_TIME,
        "tensor_core_gemm_pct": "of the time of kernels that multiply matrices or convolve",
        "tensor_core_eligible_pct": "of tensor-core-capable work: kernel time under operators that tensor cores can run",
        "mfu_pct": f"model FLOPs at the peak of their type, {time}",
        "hfu_pct": f"model and recomputed FLOPs at the peak of their type, {time}",
        "flops_coverage_pct": "of the time of matrix multiplies, convolutions and fused attention",
        "goodput_pct": _WORK_TIME,
        "recompute_pct": _WORK_TIME,
        "moving_pct": _WORK_TIME,
        "total_pct": _KERNEL_TIME,
    }


def _says(values: dict[str, Value]) -> str:
    parts = []
    for name, text in (
        ("utilisation_pct", "GPU busy {:.1f} %"),
        ("tensor_core_gemm_pct", "tensor cores used for {:.1f} % of matrix-multiply time"),
        ("mfu_pct", "MFU {:.1f} %"),
        ("goodput_pct", "goodput {:.1f} %"),
    ):
        value = values[name]
        if isinstance(value, float):
            parts.append(text.format(value))
    return ", ".join(parts) or "the recorded GPU work took no time: nothing to measure"


def _notes(trace: Trace, work: pl.DataFrame, values: dict[str, Value], flops: ModelFlops) -> tuple[str, ...]:
    notes = [*flops.notes]
    coverage = values["flops_coverage_pct"]
    if isinstance(coverage, float) and 0 < coverage < _ENOUGH:
        notes.append(f"FLOPs are known for {coverage:.1f} % of matrix-multiply time: MFU is a lower bound")
    unknown = values["unknown_tensor_core_pct"]
    if isinstance(unknown, float) and unknown >= 1:
        notes.append(f"for {unknown:.1f} % of kernel time, names do not tell whether tensor cores are used")
    if note := device_time.without_occupancy(trace.kernels):
        notes.append(note)
    orphans = trace.device_spans.height - work.height
    if orphans:
        length = int(trace.device_spans["dur_ns"].sum()) - int(work["dur_ns"].sum())
        queued = device_time.queued_before(orphans, length)
        notes.append(f"{queued}: counted only in utilisation, SM efficiency and occupancy")
    if len(device_time.device_names(trace)) > 1:
        notes.append("several devices: utilisation, SM efficiency and occupancy are means over them")
    return tuple(notes)
