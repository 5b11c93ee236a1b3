"""The operators of a program that computes on the processor: what each takes without a profiler, and how to replace them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Place
from foretrace.errors import MissingDataError
from foretrace.ingest.processor import Processor
from foretrace.intervals import Intervals
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import ProgramTime
from foretrace.sourced import JUDGEMENT, Count

_NAMED = Count(500, "operators, the longest, whose lines are named", JUDGEMENT)


@dataclass(frozen=True)
class CpuOperators:
    """Operators of the thread that takes the steps, in order; times as without a profiler, for all recorded steps.

    `table` holds op_id, name, family (null where the operator is of no known kind of work), start_ns and end_ns on the
    program's clock, dur_ns and self_ns unprofiled, and whether it calls other operators (`calls_others`).
    """

    case: Case
    table: pl.DataFrame

    def where(self, *predicates: pl.Expr | pl.Series) -> CpuOperators:
        """Those that the predicates choose."""
        return CpuOperators(self.case, self.table.filter(*predicates))

    @property
    def per_step_count(self) -> float:
        """How many there are in a step."""
        return self.table.height / self.case.step_count

    @property
    def self_step_ns(self) -> float:
        """What they take themselves, a step."""
        return float(self.table["self_ns"].sum()) / self.case.step_count

    @property
    def share(self) -> float:
        """The part of the step that they take themselves."""
        return self.self_step_ns / max(self.case.step_ns, 1.0)

    def places(self) -> tuple[Place, ...]:
        """The source lines behind those that take longest."""
        longest = self.table.sort("self_ns", descending=True).head(_NAMED)
        return self.case.places(longest["op_id"].to_list())

    @property
    def ids(self) -> list[int]:
        """Their spans."""
        found: list[int] = self.table["op_id"].to_list()
        return found


def cpu_operators(case: Case) -> CpuOperators:
    """All operators of the thread that takes the steps."""
    return case.keep("cpu operators", lambda: CpuOperators(case, _table(case)))


def innermost(operators: CpuOperators) -> CpuOperators:
    """Those of the operators that call none of the others, however far within."""
    calling, ids = operators.case.calling_op, operators.table["op_id"].to_numpy()
    around = np.zeros(len(calling), bool)
    at = np.unique(calling[ids])
    while len(at := at[at >= 0]):
        around[at] = True
        at = np.unique(calling[at])
    return operators.where(pl.Series(~around[ids]))


def processor(case: Case) -> Processor:
    """What the Run knows of the processor; MissingDataError for recordings that no Run describes."""
    if case.processor is None:
        name = case.trace.path.name
        raise MissingDataError(f"{name}: the processor is not known; record with foretrace run")
    return case.processor


def _table(case: Case) -> pl.DataFrame:
    program = case.program
    ids = np.unique(program.call_span).astype(np.int64)
    spans = case.trace.spans.select("id", "name", "start_ns", "dur_ns").filter(pl.col("id").is_in(ids))
    start = (spans["start_ns"] - program.start_ns).to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    dur = clock(case, end) - clock(case, start)
    place = np.full(case.trace.spans.height, -1, np.int64)
    place[ids] = np.arange(len(ids))
    caller = case.calling_op[ids]
    inner = np.flatnonzero((caller >= 0) & (place[caller] >= 0))
    within = np.zeros(len(ids), np.int64)
    np.add.at(within, place[caller[inner]], dur[inner])
    calls = np.zeros(len(ids), bool)
    calls[place[caller[inner]]] = True
    names = spans["name"].cast(pl.String)
    families = {name: found[0] if (found := work_models.find(name)) else None for name in names.unique()}
    return pl.DataFrame(
        {
            "op_id": ids, "name": names, "family": [families[name] for name in names],
            "start_ns": start, "end_ns": end, "dur_ns": dur, "self_ns": np.maximum(dur - within, 0),
            "calls_others": calls,
        },
        schema_overrides={"family": pl.String},
    )  # fmt: skip


def clock(case: Case, at_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """What of the program has run, without a profiler, by these moments of the recording."""
    program = case.program
    passed = np.concatenate(([0], np.cumsum(program.gap_ns)))
    passed = np.append(passed, passed[-1] + program.tail_gap_ns)
    marks = np.concatenate(([0], program.call_start_ns, [program.measured_host_ns]))
    found: NDArray[np.int64] = np.interp(at_ns, marks, passed).astype(np.int64)
    return found


def named_times(case: Case, pattern: str) -> Intervals:
    """When operators and annotations ran whose names match, on the program's clock."""
    spans = case.trace.spans.filter(
        pl.col("kind").is_in(("annotation", "op")) & pl.col("name").cast(pl.String).str.contains(pattern)
    )
    start = (spans["start_ns"] - case.program.start_ns).to_numpy()
    return intervals.union(start, start + spans["dur_ns"].fill_null(0).to_numpy())


def rows_and_size(shapes: str) -> tuple[int, int]:
    """Of an operator's tensors: the rows of the first matrix, and how many elements the largest holds."""
    tensors = tensor_shapes(shapes)
    matrices = [shape for shape in tensors if len(shape) >= 2]
    sizes = [int(np.prod(shape)) for shape in tensors]
    return (matrices[0][-2] if matrices else 0), max(sizes, default=0)


def replaced(case: Case, operators: CpuOperators, new_ns: Sequence[float] | NDArray[np.float64]) -> Edit:
    """Each operator, with all that it calls, taking another time."""
    return together(case, zip(operators.table["start_ns"], operators.table["end_ns"], new_ns, strict=True))


def together(case: Case, stretches: Iterable[tuple[int, int, float]]) -> Edit:
    """Stretches of the program's time (begin and end, on its clock), each taking another time."""
    listed = list(stretches)
    start, end = (np.array([row[side] for row in listed], np.int64) for side in (0, 1))
    new = np.array([row[2] for row in listed], np.float64)
    now = clock(case, end) - clock(case, start)
    kept = np.minimum(new / np.maximum(now, 1), 1.0)
    # What becomes shorter loses its last part: where two changes shorten the same work, that counts once.
    gone = ProgramTime(intervals.union(end - ((end - start) * (1 - kept)).astype(np.int64), end))
    calls = np.minimum(np.searchsorted(case.program.call_start_ns, end), len(case.program.kind) - 1)
    added: dict[int, int] = {}
    for call, longer in zip(calls.tolist(), (new - now).tolist(), strict=True):
        if longer > 0:
            added[call] = added.get(call, 0) + round(longer)
    return Edit(removed_host=gone, added_host_ns=added)
