"""Loops over parameters: the same few operators for one tensor after the other, with nothing else between them.

Not a rule itself; `loop-optimizer` looks for them: updates that a program writes itself, weights averaged, gradients
clipped or set to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device.phases import BACKWARD, PHASES, RECOMPUTE
from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.intervals import Intervals
from foretrace.predict.edits import Edit

_LEAST_TENSORS = 20
_MOSTLY = 0.75  # of a run's launches: those of operators that come for so many tensors
_IN_PLACE = 0.3  # of the operators: an update changes at least weight and state
_PER_LAUNCH = 40  # tensors that one multi-tensor launch takes: about what fits its arguments
_BANDWIDTH_SHARE = 0.75
_HOST_NS_PER_TENSOR, _HOST_NS_PER_LAUNCH = 1_000, 10_000
# Families of operators that torch._foreach_* has, or that a few of them make.
_OVER_LISTS = ("elementwise", "copy", "reduction")


@dataclass(frozen=True)
class Updates:
    """The launches of such loops, over all recorded steps, and their stretches of the host's line."""

    tasks: pl.DataFrame  # with `op` and `step`
    host: Intervals
    tensors: int  # at a time, about
    launches: int  # a step


def find(case: Case, inside: NDArray[np.bool_]) -> Updates | None:
    """The loops among calls that are `inside`, in all steps together; None where there is none."""
    work = _with_runs(case, inside)
    if work.is_empty():
        return None
    often = work.filter(pl.col("often") & (pl.col("often").mean().over("run") >= _MOSTLY))
    kept = [part for part in often.partition_by("run", maintain_order=True) if _over_tensors(part)]
    if not kept:
        return None
    tasks = pl.concat(kept)
    tensors = max(part.height // part["op"].n_unique() for part in kept)
    return Updates(tasks, stretches(case, tasks["call"].to_numpy()), tensors, tasks.height // case.step_count)


def _with_runs(case: Case, inside: NDArray[np.bool_]) -> pl.DataFrame:
    """Launches that could be of many tensors, with the `run` of each, and whether its operator comes `often` there.

    A run is broken by any other launch, also one of autograd's, and by the end of a step.
    """
    phase = case.roles.select("id", "phase")
    work = case.tasks.join(phase, on="id", how="left", maintain_order="left").sort(
        "call", maintain_order=True
    )
    shapes = case.trace.ops.select(pl.col("span_id").alias("op_id"), pl.col("shapes").cast(pl.String))
    work = work.join(shapes, on="op_id", how="left", maintain_order="left")
    ranks = {each: _rank(each) for each in work["shapes"].unique().drop_nulls()}
    work = work.with_columns(
        rank=work["shapes"].replace_strict(ranks, default=None, return_dtype=pl.Int32),
        op=case.trace.spans["name"].gather(work["op_id"]).cast(pl.String),
        behind=pl.col("call")
        > pl.col("call").filter(pl.col("phase") == PHASES.index(BACKWARD)).max().over("step"),
    )
    autograd = work["phase"].is_in([PHASES.index(BACKWARD), PHASES.index(RECOMPUTE)]).fill_null(value=False)
    link = case.trace.copies.filter(pl.col("direction").is_in(("HtoD", "DtoH")))["span_id"]
    mine = _over_lists(work["op"]) & ~autograd & ~work["id"].is_in(link.implode())
    mine &= pl.Series(inside[work["call"].to_numpy()], dtype=pl.Boolean)
    opens = ~mine | (work["step"] != work["step"].shift(1)).fill_null(value=True)
    runs = work.with_columns(run=opens.cum_sum()).filter(mine)
    return runs.with_columns(often=pl.len().over("run", "op") >= _LEAST_TENSORS)


def _over_lists(op: pl.Series) -> pl.Series:
    found = {name: work_models.find(name) for name in op.unique().drop_nulls()}
    of = {name: each is not None and each[0] in _OVER_LISTS for name, each in found.items()}
    return op.replace_strict(of, default=False, return_dtype=pl.Boolean)


def _over_tensors(run: pl.DataFrame) -> bool:
    """Whether a run whose operators all come often goes over parameters, rather than on with one tensor, or over samples.

    Either the tensors have different numbers of dimensions, as weights and biases do, or the run lies behind the backward
    pass and changes tensors in place: then the parameters may be alike.
    """
    ranks = run.select(pl.col("rank").drop_nulls().n_unique().over("op"))["rank"]
    if 2 * int((ranks > 1).sum()) > run.height:
        return True
    in_place = float(run["op"].str.ends_with("_").mean())  # type: ignore[arg-type]
    return in_place >= _IN_PLACE and bool(run["behind"].fill_null(value=False).all())


def _rank(shapes: str) -> int:
    """The number of dimensions of the largest tensor."""
    return max(map(len, tensor_shapes(shapes)), default=0)


def stretches(case: Case, calls: NDArray[np.int64]) -> Intervals:
    """The host's time from the first to the last of these calls, broken where something else is launched."""
    calls = np.unique(calls)
    launching = np.flatnonzero(np.diff(case.program.task_from) > 0)
    place = np.searchsorted(launching, calls)
    first = np.concatenate(([True], np.diff(place) > 1))
    last = np.concatenate((first[1:], [True]))
    reach = np.concatenate(([0], np.maximum.accumulate(case.program.call_end_ns)))
    return intervals.union(reach[calls[first]], case.program.call_end_ns[calls[last]])


def foreach(case: Case, found: Updates) -> Edit:
    """The same operators, each over as many tensors at once as a launch takes."""
    launches = max(ceil(found.launches / min(_PER_LAUNCH, found.tensors)), 1)
    kept = found.tasks.group_by("step", maintain_order=True).head(launches)
    recorded = int(found.tasks["dur_ns"].sum()) // case.step_count
    device_ns = min(_streamed_ns(case, found) or recorded, recorded)
    host_ns = found.launches * _HOST_NS_PER_TENSOR // launches + _HOST_NS_PER_LAUNCH
    tasks = kept["task"].to_list()
    return Edit(
        removed_host=found.host,
        removed_tasks=np.setdiff1d(found.tasks["task"].to_numpy(), kept["task"].to_numpy()),
        durations_ns=dict.fromkeys(tasks, device_ns // launches),
        modelled=frozenset(tasks),
        added_host_ns=dict.fromkeys(kept["call"].to_list(), host_ns),
    )


def _streamed_ns(case: Case, found: Updates) -> int | None:
    """What the operators of a step have to move, at the bandwidth; None where shapes or device are not known."""
    if case.device is None:
        return None
    asked = case.trace.ops.select(pl.col("span_id").alias("op_id"), pl.col("dtypes").cast(pl.String))
    rows = found.tasks.join(asked, on="op_id", maintain_order="left").group_by("op", "shapes", "dtypes").len()
    moved = 0
    for op, shapes, dtypes, count in rows.iter_rows():
        work = work_models.work(op, shapes, dtypes, None, None, None)
        if work is None:
            return None
        moved += count * work.bytes
    rate = case.device.memory_bandwidth_bytes * _BANDWIDTH_SHARE
    return round(moved / case.step_count / rate * 1e9)
