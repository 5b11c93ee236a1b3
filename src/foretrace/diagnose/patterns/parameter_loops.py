"""Loops over parameters: the same few operators for one tensor after the other, with nothing else between them.

Such are updates that a program writes itself, averages of weights, clipped gradients, penalties on the parameters, and
gradients that are set to zero one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device.phases import BACKWARD, PHASES, RECOMPUTE
from foretrace.analyze.concepts.host.runtime_calls import NOBODY
from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.patterns import optimizer_steps
from foretrace.diagnose.patterns.launch_runs import launch_runs
from foretrace.predict.costs import foreach
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import ProgramTime, Tasks
from foretrace.sourced import JUDGEMENT, Count, Share

LEAST_SHARE = Share(0.03, "the step, on the host or on the GPU", JUDGEMENT)
LEAST_TENSORS = Count(20, "tensors that an operator comes for; fewer are no loop", JUDGEMENT)
LEAST_LAUNCHES = Count(40, "launches a step: twenty tensors, two operators each", JUDGEMENT)
MOSTLY = Share(0.75, "a run's launches, by operators that come for so many tensors", JUDGEMENT)
IN_PLACE = Share(0.3, "a run's operators: an update changes at least weight and state", JUDGEMENT)
LEAST_BY_HAND = Count(
    8, "parameters that an update by hand goes over, with nothing else between them", JUDGEMENT
)
MOST_BY_HAND = Count(
    4, "operators for each parameter: more than decay, momentum and the update are no plain SGD", JUDGEMENT
)
WHY = "Every operation on every parameter needs a separate launch."
# Families of operators that torch._foreach_* has, or that a few of them make.
# Operators that torch has as torch._foreach_*, and those of another name.
FOREACH = (
    "abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "copy", "div", "exp", "lerp", "log", "max", "maximum",
    "minimum", "mul", "neg", "norm", "pow", "reciprocal", "sigmoid", "sign", "sqrt", "sub", "tanh", "zero",
)  # fmt: skip
_OTHER_NAMES = {"linalg_vector_norm": "norm"}
_UPDATES = ("aten::add_", "aten::sub_")
_OF_SGD = (*_UPDATES, "aten::mul_", "aten::mul")
_OVER_LISTS = ("elementwise", "copy", "reduction")


@dataclass(frozen=True)
class Loop:
    """Launches for one tensor after the other, of all such loops in all recorded steps."""

    work: DeviceWork
    host: ProgramTime  # when the host runs them
    tensors: int  # at a time, about

    @property
    def host_ns(self) -> int:
        """What they take of the host in a step."""
        return self.host.total_ns // self.work.case.step_count

    @property
    def device_ns(self) -> int:
        """What they take of the GPU in a step."""
        return self.work.dur_ns // self.work.case.step_count

    @property
    def launches(self) -> int:
        """How many they are in a step."""
        return len(self.work) // self.work.case.step_count

    @property
    def step_share(self) -> float:
        """The part of the step that they take, on the host or on the GPU, whichever is more."""
        return max(self.host_ns, self.device_ns) / self.work.case.step_ns

    def takes(self) -> str:
        """What they take, in words."""
        return f"{self.host_ns / 1e6:.3g} ms on the host, {self.device_ns / 1e6:.3g} ms on the GPU"

    def evidence(self) -> dict[str, Any]:
        """Their number and time."""
        return {
            "launches_per_step_count": self.work.per_step_count,
            "parameters_count": self.tensors,
            "host_ns": self.host_ns,
            "device_ns": self.device_ns,
            "spans": self.work.spans(),
        }

    def at_once(self, launches: foreach.Launches) -> Edit:
        """A few launches of each step stay and stand for those over many tensors; the rest goes, with its host time."""
        kept = self.work.rows.group_by("step", maintain_order=True).head(launches.count)
        tasks = kept["task"].to_list()
        return Edit(
            removed_host=self.host,
            removed_tasks=Tasks(np.setdiff1d(self.work.tasks, kept["task"].to_numpy())),
            durations_ns=dict.fromkeys(tasks, launches.device_ns),
            modelled=frozenset(tasks),
            added_host_ns=dict.fromkeys(kept["call"].to_list(), launches.host_ns),
        )


def find(case: Case) -> Loop | None:
    """The loops outside of the backward pass, of zeroing, and of optimizers that have a fused form; None if there is none."""
    runs = case.keep("parameter loops", lambda: _find(case))
    if not runs:
        return None
    work = DeviceWork(case, pl.concat(runs))
    tensors = max(run.height // run["op"].n_unique() for run in runs)
    return Loop(work, _stretches(case, work.rows["call"].to_numpy()), tensors)


def by_hand(case: Case) -> Loop | None:
    """Updates of plain SGD that the program writes itself; None if there are none.

    After the backward pass, outside of any optimizer's step, the gradient is added to one weight after the other.
    """
    return case.keep("SGD by hand", lambda: _by_hand(case))


def _by_hand(case: Case) -> Loop | None:
    runs = [run for run in _of_sgd(case).partition_by("part", maintain_order=True) if _updates_all(run)]
    if not runs:
        return None
    work = DeviceWork(case, pl.concat(runs))
    tensors = max(run.filter(pl.col("op").is_in(_UPDATES)).height for run in runs)
    return Loop(work, _stretches(case, work.rows["call"].to_numpy()), tensors)


def _of_sgd(case: Case) -> pl.DataFrame:
    """Launches of the operators of plain SGD after the backward pass, with the `part` of their run that each belongs to."""
    stepping = [optimizer_steps.during(case, fusable=fusable) for fusable in (True, False)]
    runs = case.keep("runs over tensors", lambda: _runs(case))
    in_steps = np.zeros(len(case.program.kind), bool)
    for during in stepping:
        in_steps |= optimizer_steps.calls_within(case, during)
    chosen = runs["op"].is_in(_OF_SGD) & runs["after_backward"].fill_null(value=False)
    chosen &= ~pl.Series(in_steps[runs["call"].to_numpy()], dtype=pl.Boolean)
    opens = ~chosen | (runs["run"] != runs["run"].shift(1)).fill_null(value=True)
    return runs.with_columns(part=opens.cum_sum()).filter(chosen)


def _updates_all(run: pl.DataFrame) -> bool:
    """Whether a run of SGD's operators goes over weights and biases, each with a gradient of its size."""
    updates = run.filter(pl.col("op").is_in(_UPDATES))
    pairs = [tensor_shapes(shapes or "")[:2] for shapes in updates["shapes"]]
    alike = all(len(pair) == 2 and pair[0] == pair[1] for pair in pairs)
    several = updates["rank"].n_unique() > 1 or updates.height >= LEAST_TENSORS
    return (
        alike and several and updates.height >= LEAST_BY_HAND and run.height <= MOST_BY_HAND * updates.height
    )


def foreach_edit(loop: Loop) -> Edit:
    """The same operators, each over as many tensors at once as a launch takes."""
    device_ns = min(_streamed_ns(loop) or loop.device_ns, loop.device_ns)
    per_launch = min(foreach.TENSORS_PER_LAUNCH, loop.tensors)
    return loop.at_once(foreach.launches(loop.launches, device_ns, per_launch=per_launch))


def foreach_code(loop: Loop) -> str:
    """The calls over all tensors that torch has for the loop's operators."""
    names = loop.work.rows["op"].drop_nulls().value_counts(sort=True)["op"].str.strip_prefix("aten::")
    known = [
        _OTHER_NAMES.get(name, name) for name in names if _OTHER_NAMES.get(name, name).rstrip("_") in FOREACH
    ]
    calls = [
        f"torch._foreach_{name}(tensors, ...)   # not: for t in tensors: t.{name}(...)" for name in known[:3]
    ]
    return "\n".join(calls or ["torch._foreach_mul_(moments, 0.9)   # not: for m in moments: m.mul_(0.9)"])


def backward_of_penalty(loop: Loop) -> pl.DataFrame | None:
    """The operators that differentiate a loop which adds up what it computes: a penalty; None if it is none."""
    families = {(work_models.find(op) or ("",))[0] for op in loop.work.rows["op"].unique()}
    ops = loop.work.rows["op_id"].drop_nulls().unique()
    nodes = loop.work.case.trace.ops.filter(pl.col("forward_id").is_in(ops.implode()))
    is_penalty = "reduction" in families and 2 * nodes["forward_id"].n_unique() >= len(ops)
    return nodes if is_penalty else None


def zeroed(case: Case) -> DeviceWork:
    """The launches of `aten::zero_` on tensors that were there before, many in a row."""
    return DeviceWork(case, case.keep("zeroed tensors", lambda: _zeroed(case)))


def _zeroed(case: Case) -> pl.DataFrame:
    host = case.host
    ops = case.tasks["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    outer = host.outermost(ops, host.named("^aten::", "op"))
    zeroes = host.named(r"^aten::zero_$", "op")[outer] & (outer != NOBODY)
    rows = case.tasks.with_columns(run=pl.Series(np.cumsum(~zeroes)))
    return rows.filter(pl.Series(zeroes)).filter(pl.len().over("run") >= LEAST_TENSORS).drop("run")


def _find(case: Case) -> list[pl.DataFrame]:
    """The runs of launches that go over parameters, other than updates of plain SGD, which loop-optimizer is about."""
    runs = case.keep("runs over tensors", lambda: _runs(case))
    sgd = by_hand(case)
    if sgd is not None:
        runs = runs.filter(~pl.col("task").is_in(sgd.work.rows["task"].implode()))
    often = runs.filter(pl.col("often") & (pl.col("often").mean().over("run") >= MOSTLY))
    return [run for run in often.partition_by("run", maintain_order=True) if _over_parameters(run)]


def _eligible_calls(case: Case) -> NDArray[np.bool_]:
    """For each call, whether it may be of such a loop."""
    fusable, others = (optimizer_steps.during(case, fusable=fusable) for fusable in (True, False))
    eligible = optimizer_steps.calls_within(case, others) | ~optimizer_steps.calls_within(case, fusable)
    eligible[zeroed(case).rows["call"].to_numpy()] = False
    return eligible


def _runs(case: Case) -> pl.DataFrame:
    """Launches that could be of many tensors, with the `run` of each, and whether its operator comes `often` there.

    A run is broken by any other launch, also one of autograd's, and by the end of a step.
    """
    work = case.tasks_with("phase")
    work = work.sort("call", maintain_order=True)
    work = case.with_arguments(work, "shapes", "dtypes")
    ranks = {shapes: _rank(shapes) for shapes in work["shapes"].unique().drop_nulls()}
    last_backward = pl.col("call").filter(pl.col("phase") == PHASES.index(BACKWARD)).max().over("step")
    work = work.with_columns(
        rank=work["shapes"].replace_strict(ranks, default=None, return_dtype=pl.Int32),
        op=case.op_names(work["op_id"]),
        after_backward=pl.col("call") > last_backward,
    )
    autograd = work["phase"].is_in([PHASES.index(BACKWARD), PHASES.index(RECOMPUTE)]).fill_null(value=False)
    link = case.trace.copies.filter(pl.col("direction").is_in(("HtoD", "DtoH")))["span_id"]
    chosen = _over_lists(work["op"]) & ~autograd & ~work["id"].is_in(link.implode())
    chosen &= pl.Series(_eligible_calls(case)[work["call"].to_numpy()], dtype=pl.Boolean)
    opens = ~chosen | (work["step"] != work["step"].shift(1)).fill_null(value=True)
    runs = work.with_columns(run=opens.cum_sum()).filter(chosen)
    return runs.with_columns(often=pl.len().over("run", "op") >= LEAST_TENSORS)


def _over_lists(op: pl.Series) -> pl.Series:
    """Whether torch._foreach_* has such an operator."""
    models = {name: work_models.find(name) for name in op.unique().drop_nulls()}
    over_lists = {name: model is not None and model[0] in _OVER_LISTS for name, model in models.items()}
    return op.replace_strict(over_lists, default=False, return_dtype=pl.Boolean)


def _over_parameters(run: pl.DataFrame) -> bool:
    """Whether a run whose operators all come often goes over parameters, rather than on with one tensor, or over samples.

    Either the tensors have different numbers of dimensions, as weights and biases do, or the run lies after the backward
    pass and changes tensors in place: then the parameters may be alike.
    """
    ranks = run.select(pl.col("rank").drop_nulls().n_unique().over("op"))["rank"]
    if 2 * int((ranks > 1).sum()) > run.height:
        return True
    in_place = float(run["op"].str.ends_with("_").mean())  # type: ignore[arg-type]
    return in_place >= IN_PLACE and bool(run["after_backward"].fill_null(value=False).all())


def _rank(shapes: str) -> int:
    """The number of dimensions of the largest tensor."""
    return max(map(len, tensor_shapes(shapes)), default=0)


def _stretches(case: Case, calls: NDArray[np.int64]) -> ProgramTime:
    """The host's time from the first to the last of these calls, broken where something else is launched."""
    launching, first, last = launch_runs(case, calls)
    reach = np.concatenate(([0], np.maximum.accumulate(case.program.call_end_ns)))
    return ProgramTime(intervals.union(reach[launching[first]], case.program.call_end_ns[launching[last]]))


def _streamed_ns(loop: Loop) -> int | None:
    """What the operators of a step have to move, at the bandwidth; None where shapes or device are not known."""
    case = loop.work.case
    if case.device is None:
        return None
    moved = 0
    for op, shapes, dtypes, count in loop.work.rows.group_by("op", "shapes", "dtypes").len().iter_rows():
        work = work_models.work(op, shapes, dtypes, None, None, None)
        if work is None:
            return None
        moved += count * work.bytes
    return foreach.moving_ns(case.device, moved / case.step_count)
