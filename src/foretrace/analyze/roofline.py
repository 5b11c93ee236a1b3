"""Roofline: how close each kernel comes to the device's limit for that work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import polars as pl

from foretrace.analyze.concepts.device import device_peaks, device_time
from foretrace.analyze.concepts.device.device_peaks import DTYPES, Peaks
from foretrace.analyze.concepts.device.profiled_kernels import joined
from foretrace.analyze.concepts.work import flops, measured_work, work_models
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError, unknown
from foretrace.trace import Trace
from foretrace.units import counted, format_value, shorten

_GROUPS: dict[str, tuple[str, ...]] = {
    "shape": ("op", "shapes", "dtype"),
    "op": ("op", "dtype"),
    "kernel": ("kernel", "dtype"),
}
# A kernel takes about this long however little it does: it has to start, fill the device and drain.
_SHORTEST_KERNEL_NS = 2_000
# ncu calls a kernel latency-bound below 60 % of both roofs, by measured traffic. Compulsory traffic is a lower bound
# of that, so the threshold is lower here.
_LATENCY_BELOW_PCT, _MEASURED_LATENCY_BELOW_PCT = 30, 60
_ANOMALY_ABOVE_PCT = 110
_INDIRECT = r"(?i)winograd|fft"
# The terminal drops columns that do not fit: the answer comes first.
_MEASURES = (
    "total_ns", "roof_pct", "bound", "achieved_flops_per_s", "achieved_bytes_per_s", "total_pct", "calls_count",
    "intensity_flops_per_byte", "excess_ns", "note", "model", "work_flops", "traffic_bytes", "source",
)  # fmt: skip


@analysis(
    Subject.DEVICE,
    keep=("op", "total_ns", "total_pct", "roof_pct", "bound", "shapes", "dtype", "calls_count"),
    denominators={
        "total_pct": "of the summed duration of launched kernels that compute",
        "coverage_pct": "of the summed duration of launched kernels that compute",
        "roof_pct": "of the device's limit: 100 is the limit, more than 110 is marked as an anomaly",
        "measured_pct": "of the summed duration of launched kernels that compute",
    },
)
def roofline(
    trace: Trace,
    *,
    group_by: Literal["shape", "op", "kernel"] = "shape",
    peak_fp32_flops: float | None = None,
    peak_tf32_flops: float | None = None,
    peak_fp16_flops: float | None = None,
    peak_bf16_flops: float | None = None,
    peak_fp8_flops: float | None = None,
    peak_memory_bytes: float | None = None,
) -> Result:
    """FLOPs and bytes from shapes: achieved rates, share of the device's limit, and what bounds each group.

    Work is what an operator must do according to its recorded shapes, however the kernel does it. Matrix products count
    2MNK FLOPs; attention 4·B·Hq·pairs·d forward and 2.5 times that backward, counting only the pairs that a causal mask
    leaves; elementwise operators 1 per element; copies and lookups 0. Bytes are compulsory traffic: every operand read
    once, every result written once. Inductor's kernels have bytes only.

    Columns, per operator and shapes, per operator (group_by="op") or per longest kernel of an operator
    (group_by="kernel"):
        dtype: the type used for computing; tf32 where the kernel's name says so, or where it exceeds the fp32 peak.
        model: the family of formulas used; none where there is no model.
        calls_count: operator calls; kernels, where no operator with a model launched them.
        total_ns: summed duration of their kernels; kernels that overlap each count in full.
        total_pct: of the summed duration of launched kernels that compute (excluding communication).
        work_flops, traffic_bytes: over all calls.
        achieved_flops_per_s, achieved_bytes_per_s: work_flops and traffic_bytes / total_ns.
        intensity_flops_per_byte: work_flops / traffic_bytes.
        roof_pct: share of the device's limit reached: (time at the limit) / total_ns, where a call's time at the limit
            is the longer of FLOPs / compute peak and bytes / memory bandwidth. The compute peak is the dense peak of
            the dtype for products, convolutions and attention, and that of fp32 otherwise.
        bound: compute or memory, whichever limit is lower; latency, below 30 % of both; too small, where in addition
            the time at the limit is under 2 us per call, which no kernel can reach; unknown, far below the memory
            limit where FLOPs are not known.
        excess_ns: total_ns minus the time at the limit: what a perfect kernel would save.
        source: ncu, where Nsight Compute measured the kernels (--ncu FILE): work_flops and traffic_bytes are then what was
            executed and what device memory moved, and the time at the limit is the recorded one times the share of its peak
            that the most used part of the device reached; latency then means below 60 %, as ncu has it. Else shapes.
        note: why there is no model, or why the result is suspicious: above 110 % of the limit, either small operands
            stayed in the L2 cache, or the model or the peak is wrong.

    Values: coverage_pct is the share of kernel time that has a model or was measured, measured_pct of that measured by ncu;
    roof_pct covers all kernels with a known limit.
    The peak_... options replace the device's peaks, per second. An unknown device shows achieved rates without shares.

    What it cannot tell: cache misses, so memory-bound kernels may be closer to the hardware's limit than they seem;
    work of operators whose shapes were not recorded; kernels of CUDA graphs whose capture is not known (`--capture-trace`);
    attention over a server's cache, where the names of its steps do not tell the keys; which experts a mixture reads:
    even choices are assumed.
    """
    if group_by not in _GROUPS:
        raise unknown(f"roofline cannot group by {group_by!r}", group_by, _GROUPS, listed="choose from")
    if trace.profile is not None and trace.kernels.is_empty():
        return _of_profile(trace)
    owners = _computing(trace)
    kernels = measured_work.with_measured(trace, owners.filter(~pl.col("orphan") & ~pl.col("communication")))
    peaks = device_peaks.device_peaks(
        trace,
        {"fp32": peak_fp32_flops, "tf32": peak_tf32_flops, "fp16": peak_fp16_flops, "bf16": peak_bf16_flops}
        | {"fp8": peak_fp8_flops, device_peaks.MEMORY: peak_memory_bytes},
    )
    calls, rest = _with_roof(_calls(trace, kernels), peaks), _without_owner(trace, kernels)
    calls = measured_work.as_measured(calls)
    if rest["measured"].any():
        calls = pl.concat((calls, measured_work.as_calls(rest)), how="diagonal_relaxed")
    table = _table(calls, rest.filter(~pl.col("measured")), group_by)
    values = _values(owners, kernels, calls, table)
    notes = (*_notes(values, peaks, calls), *_measured_notes(trace))
    return Result(says=_says(table, values, peaks), table=table, values=values, notes=notes)


def _of_profile(trace: Trace) -> Result:
    """The roofline of counters alone, by kernel; peaks are ncu's own, so that shares of them are as it prints them."""
    calls = measured_work.profiled_calls(trace)
    table = _table(calls, calls.clear(), "kernel")
    whole, placed = float(calls["time_ns"].sum()), calls.drop_nulls("roof_ns")
    placed_ns = float(placed["time_ns"].sum())
    values: dict[str, Value] = {
        "kernel_ns": whole,
        "coverage_pct": 100.0,
        "measured_pct": 100.0,
        "roof_pct": 100 * float(placed["roof_ns"].sum()) / placed_ns if placed_ns else None,
    }
    peaks = device_peaks.device_peaks(trace)
    notes = ("of the profiled launches alone, each by itself: no recording of the program is at hand",)
    return Result(says=_says(table, values, peaks), table=table, values=values, notes=notes)


def _computing(trace: Trace) -> pl.DataFrame:
    """Kernels with their owners, and marks; an error where there is nothing to model."""
    owners = flops.kernel_owners(trace)
    if owners.is_empty():
        raise MissingDataError(f"{trace.path.name}: no kernels recorded; record with ProfilerActivity.CUDA")
    if trace.ops["shapes"].null_count() == trace.ops.height and trace.profile is None:
        # A replayed CUDA graph calls no operators: asking for shapes would not help.
        why = (
            ""
            if trace.ops.height
            else "; CUDA graphs replay kernels without operators: record without graphs, or add --capture-trace FILE"
        )
        raise MissingDataError(f"{trace.path.name}: no shapes recorded; record with record_shapes=True{why}")
    work = device_time.device_work(trace).filter(pl.col("kind") == "kernel")
    marks = work.select(
        "orphan", "communication", indirect=pl.col("name").is_in(device_time.names_like(work, _INDIRECT))
    )
    return owners.hstack(marks)


def _calls(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per distinct operator call, with its work, how often it was made, and the time of its kernels."""
    calls = flops.owned_calls(trace, kernels, marks=("indirect",))
    sums = kernels.drop_nulls("owner_id").group_by(span_id="owner_id").agg(measured_work.summed())
    calls = calls.join(sums, on="span_id", how="left", maintain_order="left")
    distinct = calls.group_by(*flops.CALL, "device", maintain_order=True).agg(
        pl.col("indirect").any(),
        *measured_work.summed(),
        time_ns=pl.col("time_ns").sum(),
        calls_count=pl.len(),
    )
    unmodelled = pl.when(pl.col("model").is_null()).then(
        pl.lit("its recorded arguments do not determine the work")
    )
    return flops.with_work(distinct).with_columns(
        unmodelled.alias("why"),
        flops=pl.col("flops") * pl.col("calls_count"),
        bytes=pl.col("bytes") * pl.col("calls_count"),
    )


def _with_roof(calls: pl.DataFrame, peaks: Mapping[int | None, Peaks]) -> pl.DataFrame:
    """The calls with roof_ns, their time at the roof, and compute_ns, that of those at the compute roof."""
    placed = _with_peaks(calls, peaks)
    compute = pl.col("flops").fill_null(0) / pl.col("peak") * 1e9
    memory = pl.col("bytes") / pl.col("bandwidth") * 1e9
    known = pl.col("peak").is_not_null() & pl.col("bandwidth").is_not_null()
    return placed.with_columns(
        roof_ns=pl.when(known).then(pl.max_horizontal(compute, memory)),
        compute_ns=pl.when(known).then(pl.when(compute >= memory).then(compute).otherwise(0)),
    )


def _measured_notes(trace: Trace) -> tuple[str, ...]:
    if trace.profile is None:
        return ()
    join = joined(trace)
    if join.matched_pct is None:
        return ()
    return (
        f"measured by Nsight Compute: {join.matched_pct:.1f} % of its launches' time found here by name, grid and block, "
        f"{join.covered_pct:.1f} % of kernel time",
    )


def _with_peaks(calls: pl.DataFrame, peaks: Mapping[int | None, Peaks]) -> pl.DataFrame:
    """The calls with the compute peak of their type, their device's bandwidth and cache."""
    units = [(device, dtype, peak.flops[dtype]) for device, peak in peaks.items() for dtype in DTYPES]
    by_unit = pl.DataFrame(
        units, schema={"device": pl.Int32, "unit": pl.String, "peak": pl.Float64}, orient="row"
    )
    devices = [
        (device, peak.memory_bytes_per_s, peak.l2_bytes, peak.flops["tf32"]) for device, peak in peaks.items()
    ]
    schema = {"device": pl.Int32, "bandwidth": pl.Float64, "l2_bytes": pl.Int64, "tf32_peak": pl.Float64}
    matrix = pl.col("model").is_in(work_models.DENSE_FAMILIES)
    placed = (
        calls.with_columns(unit=pl.when(matrix).then("dtype").otherwise(pl.lit("fp32")))
        .join(by_unit, on=["device", "unit"], how="left", nulls_equal=True, maintain_order="left")
        .join(
            pl.DataFrame(devices, schema=schema, orient="row"),
            on="device", how="left", nulls_equal=True, maintain_order="left",
        )
    )  # fmt: skip
    # No fp32 unit is that fast: the kernel multiplied in tf32, although its name does not say so.
    kernel = ("device", "kernel", "dtype")
    rate = pl.col("flops").sum().over(kernel) / pl.col("time_ns").sum().over(kernel) * 1e9
    too_fast = matrix & (pl.col("dtype") == "fp32") & (rate > pl.col("peak") * _ANOMALY_ABOVE_PCT / 100)
    too_fast = (too_fast & pl.col("tf32_peak").is_not_null()).fill_null(value=False)
    return placed.with_columns(
        dtype=pl.when(too_fast).then(pl.lit("tf32")).otherwise("dtype"),
        peak=pl.when(too_fast).then("tf32_peak").otherwise("peak"),
    )


def _without_owner(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels that no operator with a model launched, by operator, shapes and kernel, and why there is no model."""
    rest = kernels.filter(pl.col("owner_id").is_null()).select(
        pl.col("op_id").alias("span_id"),
        pl.col("name").alias("kernel"),
        "dur_ns",
        *measured_work.SUMS,
        "measured",
    )
    why = (
        pl.when(pl.col("op").is_null())
        .then(pl.lit("no operator launched it"))
        .when(pl.col("shapes").is_null())
        .then(pl.lit("shapes not recorded"))
        .otherwise(pl.lit("no model of this operator"))
    )
    return (
        flops.with_arguments(trace, rest)
        .group_by("op", "shapes", "kernel", maintain_order=True)
        .agg(*measured_work.summed(), time_ns=pl.col("dur_ns").sum(), calls_count=pl.len())
        .with_columns(why=why, dtype=pl.lit(None, pl.String))
    )


def _table(calls: pl.DataFrame, rest: pl.DataFrame, group_by: str) -> pl.DataFrame:
    """One row per group, with and without a model, the longest total first."""
    keys = _GROUPS[group_by]
    known, unmodelled = calls.drop_nulls("model"), calls.filter(pl.col("model").is_null())
    listed = [_listed(rows, keys) for rows in (unmodelled, rest)]
    table = pl.concat((_grouped(known, keys), *listed), how="diagonal_relaxed")
    whole = pl.col("total_ns").sum()
    table = table.with_columns(total_pct=pl.when(whole > 0).then(100 * pl.col("total_ns") / whole))
    if "shapes" in keys:
        table = table.with_columns(_readable(table["shapes"]))
    table = table.sort("total_ns", descending=True, maintain_order=True)
    return table.select(*keys, *_MEASURES)


def _listed(rest: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Rows for what has no model, with the reason."""
    return (
        rest.group_by(*keys, "why", maintain_order=True)
        .agg(pl.col("calls_count").sum(), total_ns=pl.col("time_ns").sum())
        .rename({"why": "note"})
        .with_columns(model=pl.lit(None, pl.String))
    )


def _grouped(calls: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Rows for what has a model."""
    sums = calls.group_by(keys, maintain_order=True).agg(
        pl.col("model").first(),
        pl.col("source").unique(maintain_order=True).str.join(" and "),
        pl.col("calls_count").sum(),
        pl.col("indirect").any(),
        pl.col("l2_bytes").min(),
        total_ns=pl.col("time_ns").sum(),
        work_flops=_whole("flops"),
        traffic_bytes=pl.col("bytes").sum(),
        roof_ns=_whole("roof_ns"),
        compute_ns=_whole("compute_ns"),
        largest_bytes=(pl.col("bytes") // pl.col("calls_count")).max(),
    )
    time = pl.when(pl.col("total_ns") > 0).then("total_ns")
    traffic = pl.when(pl.col("traffic_bytes") > 0).then("traffic_bytes")
    rates = sums.with_columns(
        achieved_flops_per_s=pl.col("work_flops") * 1e9 / time,
        achieved_bytes_per_s=pl.col("traffic_bytes") * 1e9 / time,
        intensity_flops_per_byte=pl.col("work_flops") / traffic,
        roof_pct=100 * pl.col("roof_ns") / time,
        excess_ns=(pl.col("total_ns") - pl.col("roof_ns")).clip(lower_bound=0),
    )
    return rates.with_columns(bound=_bound(), note=_anomaly())


def _whole(name: str) -> pl.Expr:
    """The sum of a column; null where a row has none."""
    return pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).alias(name)


def _bound() -> pl.Expr:
    below = (
        pl.when(pl.col("source") == measured_work.MEASURED)
        .then(_MEASURED_LATENCY_BELOW_PCT)
        .otherwise(_LATENCY_BELOW_PCT)
    )
    far = pl.col("roof_pct") < below
    return (
        pl.when(pl.col("roof_pct").is_null())
        .then(pl.lit(None, pl.String))
        .when(far & pl.col("work_flops").is_null())
        .then(pl.lit("unknown"))
        .when(far & (pl.col("roof_ns") < _SHORTEST_KERNEL_NS * pl.col("calls_count")))
        .then(pl.lit("too small"))
        .when(far)
        .then(pl.lit("latency"))
        .when(2 * pl.col("compute_ns") >= pl.col("roof_ns"))
        .then(pl.lit("compute"))
        .otherwise(pl.lit("memory"))
    )


def _anomaly() -> pl.Expr:
    above = pl.col("roof_pct") > _ANOMALY_ABOVE_PCT
    # Operands of up to a few times the cache are still partly in it when the next kernel reads them.
    cached = (2 * pl.col("compute_ns") < pl.col("roof_ns")) & (
        pl.col("largest_bytes") <= 4 * pl.col("l2_bytes")
    )
    return (
        pl.when(above & cached)
        .then(pl.lit("anomaly: faster than memory; operands were in the L2 cache"))
        .when(above & pl.col("indirect"))
        .then(pl.lit("anomaly: above the limit; a Winograd or FFT kernel needs fewer FLOPs than the formula"))
        .when(above)
        .then(pl.lit("anomaly: above the limit; the model or the peak is wrong"))
        .otherwise(pl.lit(""))
    )


def _readable(shapes: pl.Series) -> pl.Series:
    """Shapes as 16x768, 768x2304; scalars left out."""
    distinct = shapes.unique().drop_nulls()
    texts = [_sizes(text) for text in distinct.cast(pl.String)]
    return shapes.cast(pl.String).replace_strict(
        distinct.cast(pl.String), texts, default=None, return_dtype=pl.String
    )


def _sizes(text: str) -> str:
    inner = text.replace("[]", "").strip("[], ")
    parts = (part.strip("[], ").replace(", ", "x").replace(",", "x") for part in inner.split("]"))
    return ", ".join(part for part in parts if part)


def _values(
    owners: pl.DataFrame, kernels: pl.DataFrame, calls: pl.DataFrame, table: pl.DataFrame
) -> dict[str, Value]:
    kernel_ns = int(kernels["dur_ns"].sum())
    calls = calls.drop_nulls("model")
    modelled_ns = int(calls["time_ns"].sum())
    measured_ns = int(calls.filter(pl.col("source") == measured_work.MEASURED)["time_ns"].sum())
    placed = calls.drop_nulls("roof_ns")
    placed_ns = int(placed["time_ns"].sum())
    orphans = owners.filter(pl.col("orphan"))
    return {
        "kernel_ns": kernel_ns,
        "modelled_ns": modelled_ns,
        "coverage_pct": 100 * modelled_ns / kernel_ns if kernel_ns else None,
        **({"measured_pct": 100 * measured_ns / kernel_ns} if measured_ns and kernel_ns else {}),
        "work_flops": int(calls["flops"].sum()),
        "traffic_bytes": int(calls["bytes"].sum()),
        "roof_pct": 100 * float(placed["roof_ns"].sum()) / placed_ns if placed_ns else None,
        "communication_ns": int(owners.filter(pl.col("communication") & ~pl.col("orphan"))["dur_ns"].sum()),
        "orphan_count": orphans.height,
        "orphan_ns": int(orphans["dur_ns"].sum()),
        "anomaly_count": int((table["roof_pct"] > _ANOMALY_ABOVE_PCT).sum()),
    }


def _says(table: pl.DataFrame, values: dict[str, Value], peaks: Mapping[int | None, Peaks]) -> str:
    coverage, roof = values["coverage_pct"], values["roof_pct"]
    if coverage is None:
        return "no launched kernel computes: nothing to measure"
    says = f"{coverage:.1f} % of kernel time modelled"
    names = ", ".join(dict.fromkeys(peak.name for peak in peaks.values()))
    if roof is not None:
        says = f"kernels reach {roof:.1f} % of the limit of {names} ({says})"
    known = table.filter(pl.col("model").is_not_null())
    if known.is_empty():
        return says
    top = known.row(0, named=True)
    label = shorten(" ".join(str(top[key]) for key in ("op", "kernel", "shapes") if top.get(key)), 60)
    rate = (
        "achieved_flops_per_s"
        if top["bound"] == "compute" or not top["traffic_bytes"]
        else "achieved_bytes_per_s"
    )
    if top["total_pct"] is None or top[rate] is None:
        return says
    reaches = f"; {label} takes {top['total_pct']:.1f} % of it and reaches {format_value(rate, top[rate])}"
    return (
        says + reaches + (f", {top['roof_pct']:.1f} % of the limit ({top['bound']})" if top["bound"] else "")
    )


def _notes(
    values: dict[str, Value], peaks: Mapping[int | None, Peaks], calls: pl.DataFrame
) -> tuple[str, ...]:
    unknown = dict.fromkeys(peak.name for peak in peaks.values() if not peak.known)
    notes = [
        f"the peaks of {name} are not known: pass --peak-memory-bytes and --peak-bf16-flops"
        for name in unknown
    ]
    notes += filter(None, dict.fromkeys(_peaks_text(peak) for peak in peaks.values()))
    unplaced = calls.drop_nulls("model").filter(
        pl.col("roof_ns").is_null() & pl.col("bandwidth").is_not_null()
    )
    if unplaced.height:
        kinds = ", ".join(sorted(unplaced["dtype"].unique().to_list()))
        count = int(unplaced["calls_count"].sum())
        notes.append(f"no peak is known for {kinds}: {counted(count, 'call')} have no share of the limit")
    anomalies, orphans = values["anomaly_count"], values["orphan_count"]
    if isinstance(anomalies, int) and anomalies:
        notes.append(
            f"{counted(anomalies, 'group')} above {_ANOMALY_ABOVE_PCT} % of the limit: see the note column"
        )
    if values["communication_ns"]:
        notes.append(f"communication ({format_value('_ns', values['communication_ns'])}) is excluded")
    if isinstance(orphans, int) and orphans:
        notes.append(f"{device_time.queued_before(orphans, noun='kernel')}: excluded from all totals")
    return tuple(notes)


def _peaks_text(peaks: Peaks) -> str:
    known = [
        f"{dtype} {format_value('_flops_per_s', value)}" for dtype, value in peaks.flops.items() if value
    ]
    if peaks.memory_bytes_per_s:
        known.append(f"memory {peaks.memory_bytes_per_s / 1e12:.2f} TB/s")
    return f"peaks of {peaks.name}: {', '.join(known)}" if known else ""
