"""A batch of N times the items: how much longer each task takes.

A task takes at least as long as before, and at least what its N-fold work takes at a common share of the peaks. All
but matrix products and convolutions, which choose other tiles, also keep the rate that they were recorded with, as
far as they filled the device. Weights, their gradients and the optimizer do not grow. What is not known lies between
no growth and N times.

Chosen on the H200's recordings at hand, by operators that ran there at more than one size: for kernels of more than
5 µs (2,022 pairs) the growth is off by 7 % in the median and 27 % in nine of ten; by the peaks alone, 12 % and a
factor of 2.2, since copies, norms and attention then seem to take more work for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from foretrace import hardware
from foretrace.analyze.concepts.device import device_peaks
from foretrace.analyze.concepts.device.device_roles import ROLES, classified
from foretrace.analyze.concepts.device.phases import FORWARD, OPTIMIZER, PHASES
from foretrace.analyze.concepts.work import flops, work_models
from foretrace.analyze.concepts.work.work_models.call import Call, Shape, Tensor, parse
from foretrace.predict.costs import attention, gemm, streaming
from foretrace.predict.edits import Edit
from foretrace.predict.graph_capture import loading_ns
from foretrace.predict.program import Program
from foretrace.predict.tasks import device_of, task_table
from foretrace.sourced import JUDGEMENT, Bytes, Factor
from foretrace.trace import Trace

_MODEL = Factor(1.2, "a modelled duration, by which it may be off", JUDGEMENT)
_WARPS_PER_SM = Factor(
    64.0, "warps that a multiprocessor holds at once", "CUDA's compute capabilities 8.0 and 9.0"
)
_SCALAR_COPY_BYTES = Bytes(4096, "a copy; less is a number, such as a loss, and takes its latency", JUDGEMENT)
# Where operators take what a batch makes larger, and where they take weights.
_OPERANDS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "aten::mm": ((0,), (1,)), "aten::addmm": ((1,), (0, 2)), "aten::_addmm_activation": ((1,), (0, 2)),
    "aten::linear": ((0,), (1, 2)), "aten::convolution": ((0,), (1, 2)), "aten::_convolution": ((0,), (1, 2)),
    "aten::cudnn_convolution": ((0,), (1,)), "aten::conv2d": ((0,), (1, 2)), "aten::conv1d": ((0,), (1, 2)),
    "aten::embedding": ((1,), (0,)), "aten::native_layer_norm": ((0,), (2, 3)),
    "aten::_fused_rms_norm": ((0,), (2,)), "aten::native_group_norm": ((0,), (1, 2)),
    "aten::native_batch_norm": ((0,), (1, 2)), "aten::cudnn_batch_norm": ((0,), (1, 2)),
    "aten::bmm": ((0, 1), ()), "aten::baddbmm": ((0, 1, 2), ()),
}  # fmt: skip
_PASSED_ON = r"(?i)all_?to_?all|send|recv"  # items between ranks
_SUMMED = r"(?i)all_?reduce"


@dataclass(frozen=True)
class Growth:
    """The edit that a larger batch makes, the same at both ends of what is not known, and that in words."""

    edit: Edit
    others: tuple[Edit, Edit]
    says: str


@dataclass(frozen=True)
class _Sizes:
    """Shapes, without order and ones, of weights and of what a batch makes larger."""

    weights: frozenset[Shape]
    items: frozenset[Shape]


def growth(trace: Trace, program: Program, times: float, *, weights: bool = False) -> Growth:
    """What N times the items do to every task and to data loading; with N times the `weights`, each for its items."""
    rows = _rows(trace, program, times, weights)
    known = rows.drop_nulls("point")
    point = rows["point"].fill_null((1 + times) / 2).to_numpy()
    low = rows["low"].fill_null(1.0).to_numpy()
    high = rows["high"].fill_null(times).to_numpy()
    total = int(rows["dur_ns"].sum())
    share = int(known["dur_ns"].sum()) / total if total else 1.0
    loading = _loading(trace, program, times)
    says = (
        f"{times:g} times the items a step: of {100 * share:.0f} % of the device's time the growth is known"
    )
    if share < 0.995:
        says += f", the rest takes 1 to {times:g} times as long"
        if trace.ops["shapes"].null_count() == trace.ops.height:
            says += " (record with record_shapes=True to know more)"
    says += "; whether it fits in memory is not looked at"
    edits = [
        Edit(stretched=dict(enumerate(each.tolist())), added_host_ns=loading) for each in (point, low, high)
    ]
    return Growth(edits[0], (edits[1], edits[2]), says)


def _loading(trace: Trace, program: Program, times: float) -> dict[int, int]:
    """What loading N times the items adds to the host's line."""
    waited = loading_ns(trace, program)
    return {int(call): round((times - 1) * int(min(waited[call], program.gap_ns[call])))
            for call in np.flatnonzero(waited > 0)}  # fmt: skip


def _rows(trace: Trace, program: Program, times: float, weights: bool) -> pl.DataFrame:
    """All tasks in order, with `point`, `low` and `high`: their growth, null where it is not known."""
    tasks = task_table(trace, program)
    tasks = tasks.join(
        classified(trace).select("id", "role", "phase"), on="id", how="left", maintain_order="left"
    )
    tasks = _with_needs(trace, tasks, times, weights)
    name = pl.col("name").cast(pl.String)
    communicates = pl.col("role") == ROLES.index("communication")
    forward = pl.col("phase") == PHASES.index(FORWARD)
    updates = (pl.col("phase") == PHASES.index(OPTIMIZER)) | (pl.col("model") == "optimizer")
    unknown, same, full = pl.lit(None, pl.Float64), pl.lit(1.0), pl.lit(float(times))
    over_link = pl.col("direction").cast(pl.String).is_in(("HtoD", "DtoH"))
    # An all-reduce of the forward is of activations, where it is not of counts or losses; in the backward it is of
    # gradients. What gathers or scatters moves weights and their gradients.
    point = (
        pl.when(communicates & name.str.contains(_PASSED_ON)).then(full)
        .when(communicates & forward & name.str.contains(_SUMMED)).then(unknown)
        .when(communicates | updates | pl.col("fixed").fill_null(value=False)).then(same)
        .when(over_link & (pl.col("size_bytes") < _SCALAR_COPY_BYTES)).then(same)
        .when(over_link).then(full)
        .when(pl.col("needed_ns").is_null()).then(unknown)
        .otherwise(pl.max_horizontal(pl.col("needed_ns") / pl.col("took_ns"), _at_recorded_rate()).clip(1.0, times))
    )  # fmt: skip
    modelled = (
        ~communicates & ~updates & ~pl.col("fixed").fill_null(value=False) & ~over_link.fill_null(value=False)
    )
    # Of larger convolutions three in ten take a third longer than modelled, however many blocks they had.
    filled = (pl.col("fill") >= 1) | (pl.col("model") == "convolution").fill_null(value=False)
    tasks = tasks.with_columns(point=point.fill_nan(1.0), modelled=modelled)
    at_most = pl.max_horizontal("own", pl.col("point") * _MODEL)
    return tasks.with_columns(
        low=pl.when("either").then(1.0).when("modelled").then(pl.col("point") / _MODEL).otherwise("point").clip(1.0, times),
        high=pl.when("modelled").then(pl.when(filled).then(at_most).otherwise(pl.col("point") * _MODEL))
        .otherwise("point").clip(1.0, times),
    )  # fmt: skip


def _at_recorded_rate() -> pl.Expr:
    """Growth of a kernel that fills some of the device: its work at the rate as recorded, once the device is full."""
    start = pl.min_horizontal(pl.col("took_ns"), pl.lit(int(streaming.START_NS)))
    rate = (start + (pl.col("took_ns") - start) * pl.col("own") * pl.col("fill")) / pl.col("took_ns")
    return pl.when(pl.col("model").is_in(("gemm", "convolution"))).then(1.0).otherwise(rate)


def _with_needs(trace: Trace, tasks: pl.DataFrame, times: float, weights: bool) -> pl.DataFrame:
    """Tasks with what their operator took and would need, `fixed` work, and how far the kernel fills the device."""
    owners = flops.kernel_owners(trace)
    work = flops.work_of(trace, owners).rename({"span_id": "owner_id"})
    tasks = tasks.join(owners.select("id", "owner_id"), on="id", how="left", maintain_order="left")
    tasks = tasks.with_columns(owner_id=pl.coalesce("owner_id", "op_id"))
    tasks = tasks.join(work, on="owner_id", how="left", maintain_order="left")
    copies = trace.copies.select(pl.col("span_id").alias("id"), "size_bytes", "direction")
    grids = trace.kernels.select(pl.col("span_id").alias("id"), "blocks_per_sm", "warps_per_sm")
    for table in (copies, grids):
        tasks = tasks.join(table, on="id", how="left", maintain_order="left")
    tasks = tasks.with_columns(
        op=trace.spans["name"].gather(tasks["owner_id"]).cast(pl.String),
        took_ns=pl.when(pl.col("bytes").is_not_null())
        .then(pl.col("dur_ns").sum().over("owner_id"))
        .otherwise("dur_ns"),
    )
    arguments = trace.ops.select(
        pl.col("span_id").alias("owner_id"), *(pl.col(each).cast(pl.String) for each in ("shapes", "dtypes"))
    )
    tasks = tasks.join(arguments, on="owner_id", how="left", maintain_order="left")
    sizes = _sizes(tasks)
    return _needs(tasks, _Sizes(frozenset(), sizes.items) if weights else sizes, device_of(trace), times)


def _needs(tasks: pl.DataFrame, sizes: _Sizes, device: hardware.Device | None, times: float) -> pl.DataFrame:
    columns = ("op", "shapes", "dtypes", "model", "flops", "bytes", "dtype", "kind", "size_bytes")
    distinct = tasks.select(columns).unique(maintain_order=True)
    found = [_need(row, sizes, device, times) for row in distinct.iter_rows(named=True)]
    needs = pl.DataFrame(
        found,
        schema={"needed_ns": pl.Float64, "own": pl.Float64, "fixed": pl.Boolean, "either": pl.Boolean},
        orient="row",
    )
    tasks = tasks.join(
        distinct.hstack(needs), on=columns, how="left", nulls_equal=True, maintain_order="left"
    )
    blocks = pl.col("model").is_in(work_models.MATRIX_FAMILIES).fill_null(value=False)
    fill = pl.when(blocks).then("blocks_per_sm").otherwise(pl.col("warps_per_sm") / _WARPS_PER_SM)
    return tasks.with_columns(fill=fill.fill_null(1.0).clip(0.0, 1.0))


def _sizes(tasks: pl.DataFrame) -> _Sizes:
    """What the optimizer and the weights' places of forward operators tell of weights, their other places of items."""
    weights: set[Shape] = set()
    items: set[Shape] = set()
    for op, shapes, dtypes, phase in tasks.select("op", "shapes", "dtypes", "phase").unique().iter_rows():
        call = _parsed(op, shapes, dtypes)
        if call is None:
            continue
        if phase == PHASES.index(OPTIMIZER):
            listed = [shape for each in call.lists for shape in each]
            weights |= {_key(shape) for shape in (*listed, *(each.shape for each in call.all_tensors))}
        elif phase == PHASES.index(FORWARD) and "attention" in op:
            items |= {_key(each.shape) for each in call.all_tensors}
        elif phase == PHASES.index(FORWARD) and op in _OPERANDS:
            for places, found in zip(_OPERANDS[op], (items, weights), strict=True):
                found |= {_key(each.shape) for place in places if (each := call.given(place))}
    return _Sizes(frozenset(weights - {()}), frozenset(items - {()}))


@lru_cache(maxsize=16384)
def _parsed(op: str | None, shapes: str | None, dtypes: str | None) -> Call | None:
    """The operator with its arguments, where they were recorded and can be read."""
    if op is None or shapes is None:
        return None
    try:
        return parse(op, shapes, dtypes, None, None, None)
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _key(shape: Shape) -> Shape:
    return tuple(sorted(extent for extent in shape if extent != 1))


def _need(
    row: dict[str, Any], sizes: _Sizes, device: hardware.Device | None, times: float
) -> tuple[float | None, float | None, bool, bool]:
    """What N times the work takes, how much longer that is at the rate as recorded; whether it does not grow, or may not."""
    call = _parsed(row["op"], row["shapes"], row["dtypes"])
    tensors = call.all_tensors if call else []
    weights = [each for each in tensors if _key(each.shape) in sizes.weights - sizes.items]
    family = row["model"] if row["bytes"] is not None else None
    either = False
    if family in work_models.MATRIX_FAMILIES:
        fixed = bool(tensors) and len(weights) == len(tensors)
    elif tensors and family != "indexing":
        key = _key(max(tensors, key=lambda each: each.count).shape)
        fixed = key in sizes.weights - sizes.items
        either = key in sizes.weights & sizes.items
    else:
        fixed = False
    if fixed or device is None:
        return None, None, fixed, False
    if family is None:
        moved = row["size_bytes"]
        if row["kind"] == "kernel" or moved is None:
            return None, None, False, False
        each_way = 2 if row["kind"] == "copy" else 1
        return _moving_ns(device, times * each_way * moved), times, False, either
    return (*_grown(row, family, weights, device, times), False, either)


def _grown(
    row: dict[str, Any], family: str, weights: list[Tensor], device: hardware.Device, times: float
) -> tuple[float | None, float | None]:
    """What N times the work of a modelled operator takes, and how much longer it is at the rate as recorded."""
    still = 0 if family == "indexing" else min(sum(each.bytes for each in weights), row["bytes"])
    moved = still + times * (row["bytes"] - still)
    moving = _moving_ns(device, moved)
    grows = moved / row["bytes"] if row["bytes"] else 1.0
    if family not in work_models.MATRIX_FAMILIES:
        return moving, grows
    peak = hardware.peak_flops(device, row["dtype"]) if row["dtype"] in device_peaks.DTYPES else None
    if not peak or row["flops"] is None:
        return None, None
    share = attention.GROWING_PEAK_SHARE if family == "attention" else gemm.GROWING_PEAK_SHARE
    computing = row["flops"] / (share * peak) * 1e9
    computes = computing >= _moving_ns(device, row["bytes"])
    return max(times * computing, moving), times if computes else grows


def _moving_ns(device: hardware.Device, moved: float) -> float:
    return moved / (streaming.BANDWIDTH_SHARE * device.memory_bandwidth_bytes) * 1e9
