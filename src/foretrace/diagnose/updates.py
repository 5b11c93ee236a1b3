"""Updates of parameters that the program writes itself: the same few operators for one tensor after the other.

Not a rule itself; `loop-optimizer` looks for them outside of `Optimizer.step#` ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze import work_models
from foretrace.analyze.phases import BACKWARD, FORWARD, PHASES
from foretrace.diagnose.case import Case
from foretrace.intervals import Intervals
from foretrace.predict.edits import Edit

_MOST_OPERATORS = 40  # for one tensor: Adam with all of its options takes fewer than twenty
_REPEATED = 0.9  # of the operators, those that come again one tensor later
_LEAST_TENSORS = 20
_IN_PLACE = 0.3  # of the operators: an update changes at least weight and state
_PER_LAUNCH = 40  # tensors that one multi-tensor launch takes: about what fits its arguments
_BANDWIDTH_SHARE = 0.75
_HOST_NS_PER_TENSOR, _HOST_NS_PER_LAUNCH = 1_000, 10_000


@dataclass(frozen=True)
class Updates:
    """The launches of such a loop, over all recorded steps, and their stretches of the host's line."""

    tasks: pl.DataFrame
    host: Intervals
    tensors: int
    operators: int  # for each tensor


def find(case: Case, least_launches: int) -> Updates | None:
    """The loop behind the backward pass, in every step; None where there is none."""
    phases = case.roles.select("id", "phase")
    work = case.tasks.join(phases, on="id", how="left", maintain_order="left")
    work = work.with_columns(step=pl.Series(case.program.step[work["call"].to_numpy()], dtype=pl.Int64))
    behind = pl.col("call").filter(pl.col("phase") == PHASES.index(BACKWARD)).max().over("step")
    work = work.filter((pl.col("call") > behind) & (pl.col("phase") == PHASES.index(FORWARD)))
    op = case.trace.spans["name"].gather(work["op_id"]).cast(pl.String)
    work = work.with_columns(op=op).filter(_pointwise(op))
    if work.height < least_launches * case.step_count:
        return None
    names = work["op"].to_numpy()
    period = _period(names)
    tensors = round(work.height / case.step_count / period) if period else 0
    if not period or tensors < _LEAST_TENSORS or work["op"].str.ends_with("_").mean() < _IN_PLACE:  # type: ignore[operator]
        return None
    return Updates(work, _stretches(case, work["call"].to_numpy()), tensors, period)


def _pointwise(op: pl.Series) -> pl.Series:
    """Operators on whole tensors, element by element."""
    found = {name: work_models.find(name) for name in op.unique().drop_nulls()}
    of = {name: each is not None and each[0] in ("elementwise", "copy") for name, each in found.items()}
    return op.replace_strict(of, default=False, return_dtype=pl.Boolean)


def _period(names: NDArray[np.object_]) -> int:
    """After how many operators nearly all of them come again; 0 where there is no such number."""
    for length in range(1, min(_MOST_OPERATORS, len(names) - 1) + 1):
        if (names[length:] == names[:-length]).mean() >= _REPEATED:
            return length
    return 0


def _stretches(case: Case, calls: NDArray[np.int64]) -> Intervals:
    """The host's time from the first to the last of these calls, broken where something else is launched."""
    calls = np.unique(calls)
    launching = np.flatnonzero(np.diff(case.program.task_from) > 0)
    place = np.searchsorted(launching, calls)
    first = np.concatenate(([True], np.diff(place) > 1))
    last = np.concatenate((first[1:], [True]))
    reach = np.concatenate(([0], np.maximum.accumulate(case.program.call_end_ns)))
    return intervals.union(reach[calls[first]], case.program.call_end_ns[calls[last]])


def foreach(case: Case, found: Updates) -> Edit:
    """The same operators, each over all tensors at once."""
    launches = found.operators * ceil(found.tensors / _PER_LAUNCH)
    kept = found.tasks.group_by("step", maintain_order=True).head(launches)
    recorded = int(found.tasks["dur_ns"].sum()) // case.step_count
    device_ns = min(_streamed_ns(case, found) or recorded, recorded)
    host_ns = found.operators * found.tensors * _HOST_NS_PER_TENSOR // launches + _HOST_NS_PER_LAUNCH
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
    asked = case.trace.ops.select(
        pl.col("span_id").alias("op_id"), *(pl.col(each).cast(pl.String) for each in ("shapes", "dtypes"))
    )
    rows = found.tasks.join(asked, on="op_id", maintain_order="left").group_by("op", "shapes", "dtypes").len()
    moved = 0
    for op, shapes, dtypes, count in rows.iter_rows():
        work = work_models.work(op, shapes, dtypes, None, None, None)
        if work is None:
            return None
        moved += count * work.bytes
    rate = case.device.memory_bandwidth_bytes * _BANDWIDTH_SHARE
    return round(moved / case.step_count / rate * 1e9)
