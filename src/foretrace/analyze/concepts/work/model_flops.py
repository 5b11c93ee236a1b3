"""The FLOPs of a model against what the device could do in the same time.

Only work for tensor cores counts: matrix multiplies, convolutions and attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_peaks, device_roles
from foretrace.analyze.concepts.device.phases import PHASES, RECOMPUTE
from foretrace.analyze.concepts.work import flops as op_flops
from foretrace.analyze.concepts.work.work_models import DENSE_FAMILIES
from foretrace.analyze.steps import StepWindow, measured_window
from foretrace.trace import Trace

_MOST = 100.0  # percent; no device does more than its peak


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs of a step (of the recording, without steps) and their shares of the peak; null where not known."""

    model_flops: int | None
    mfu_pct: float | None
    hfu_pct: float | None
    coverage_pct: float | None
    notes: tuple[str, ...] = ()


def model_flops(trace: Trace, work: pl.DataFrame, windows: tuple[StepWindow, ...]) -> ModelFlops:
    """The model's FLOPs from recorded shapes; `work` is that of `device_roles.classified`."""
    fused = pl.col("role") == device_roles.ROLES.index(device_roles.FUSED_ATTENTION)
    busy = work.filter((pl.col("kind") == "kernel") & (pl.col("multiplies") | fused))
    if busy.is_empty() or not int(busy["dur_ns"].sum()):
        return ModelFlops(None, None, None, None, ("no matrix multiply, convolution or fused attention ran",))
    owners = op_flops.kernel_owners(trace).join(
        work.select("id", "step", "phase"), on="id", how="inner", maintain_order="left"
    )
    ops = _matrix_ops(trace, owners)
    multiplying = owners.filter(pl.col("id").is_in(busy["id"].implode()))
    known = multiplying.join(
        ops.filter(pl.col("ideal_ns").is_not_null()).select("owner_id"), on="owner_id", how="semi"
    )
    coverage = 100 * int(known["dur_ns"].sum()) / int(busy["dur_ns"].sum())
    devices = device_peaks.device_peaks(trace)
    notes = [f"the peaks of {peak.name} are not known" for peak in devices.values() if not peak.known]
    if ops.is_empty() or not coverage:
        if not notes:
            notes.append(
                "FLOPs are not known: record with record_shapes=True (kernels of CUDA graphs have no shapes)"
            )
        return ModelFlops(None, None, None, coverage, tuple(dict.fromkeys(notes)))
    flops, mfu, hfu = _over_steps(trace, ops, windows, max(work["device"].n_unique(), 1))
    if any(share is not None and share > _MOST for share in (mfu, hfu)):
        notes.append("FLOPs exceed the device's peak: shapes or times are damaged, so there is no MFU")
        mfu = hfu = None
    return ModelFlops(flops, mfu, hfu, coverage, tuple(dict.fromkeys(notes)))


def _matrix_ops(trace: Trace, owners: pl.DataFrame) -> pl.DataFrame:
    """Operators of a matrix unit: owner_id, flops, ideal_ns (null where no peak is known), step, again."""
    peaks = [
        (device, dtype, value)
        for device, peak in device_peaks.device_peaks(trace).items()
        for dtype, value in peak.flops.items()
        if value
    ]
    schema = {"device": pl.Int32, "dtype": pl.String, "peak": pl.Float64}
    modelled = (
        op_flops.work_of(trace, owners)
        .filter(pl.col("model").is_in(DENSE_FAMILIES) & (pl.col("flops") > 0))
        .select(pl.col("span_id").alias("owner_id"), "flops", "dtype")
    )
    where = owners.drop_nulls("owner_id").group_by("owner_id").agg(pl.col("device", "step", "phase").first())
    return (
        modelled.join(where, on="owner_id", how="left")
        .join(
            pl.DataFrame(peaks, schema=schema, orient="row"),
            on=["device", "dtype"],
            how="left",
            nulls_equal=True,
        )
        .with_columns(
            ideal_ns=1e9 * pl.col("flops") / pl.col("peak"), again=pl.col("phase") == PHASES.index(RECOMPUTE)
        )
    )


def _over_steps(
    trace: Trace, ops: pl.DataFrame, windows: tuple[StepWindow, ...], devices: int
) -> tuple[int, float | None, float | None]:
    """FLOPs of a step, and their shares of the peak: medians over whole steps; or of the whole recording."""
    first = ops.filter(~pl.col("again"))
    lengths = {step.number: step.gpu_ns for step in windows if step.averaged and step.gpu_ns}
    if not lengths or not first["step"].is_in(list(lengths)).any():
        length = measured_window(trace, windows).length_ns * devices
        shares = [
            100 * float(chosen["ideal_ns"].sum()) / length if length else None for chosen in (first, ops)
        ]
        return int(first["flops"].sum()), shares[0], shares[1]

    def medians(chosen: pl.DataFrame, column: str, scale: float) -> float:
        sums = dict(chosen.group_by("step").agg(pl.col(column).sum()).iter_rows())
        ratios = [scale * sums.get(number, 0) / (length * devices) for number, length in lengths.items()]
        return float(np.median(ratios))

    counts = dict(first.group_by("step").agg(pl.col("flops").sum()).iter_rows())
    flops = int(np.median([counts.get(number, 0) for number in lengths]))
    return flops, medians(first, "ideal_ns", 100), medians(ops, "ideal_ns", 100)
