"""Loops within a step that call nearly the same operators for one piece of the data after the other.

What such a loop does for N pieces may be done for all at once: one pass stays, on N times the items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import NOBODY
from foretrace.analyze.concepts.work import work_models
from foretrace.diagnose.case import Case
from foretrace.diagnose.removal import calls_in
from foretrace.predict import batch
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import NO_CALLS, NO_TIME, Calls, ProgramTime, Tasks, joined
from foretrace.sourced import JUDGEMENT, Count, Factor, Share

UPSIDE = Factor(
    1.15,
    "the host's time from one pass to the next: the pass that stays may be a quick one",
    "the pairs of docs/accuracy.md, sets e and f",
)
ALIKE = Share(0.8, "two passes' operators: one of a few may be left out or come in addition", JUDGEMENT)
_MOST_TRIED = Count(12, "kinds of loops whose passes are compared, those that cover most first", JUDGEMENT)
_BACKWARD = r"^autograd::engine::evaluate_function: "
_OUTER = r"^aten::|^autograd::engine::evaluate_function: "
_ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"

Starts = tuple[int, ...]  # of each pass, by place in the line; the last is the end


@dataclass(frozen=True)
class Line:
    """One step's operators that make calls, in the order of the host's line."""

    names: NDArray[np.int64]  # numbers for names, or for names with shapes
    ops: NDArray[np.int64]  # span of each, the call itself where no operator is around it
    first: NDArray[np.int64]  # its first call; one more than operators, the last being the end


@dataclass(frozen=True)
class Repeat:
    """A loop of one step."""

    starts: Starts
    line: Line

    @property
    def passes(self) -> int:
        """How many times the loop goes round."""
        return len(self.starts) - 1

    def ops(self, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """Spans of the operators of some passes."""
        return self.line.ops[self.starts[first] : self.starts[-1 if last is None else last]]

    def calls(self, first: int = 0, last: int | None = None) -> Calls:
        """Calls of some passes."""
        begin, end = self.starts[first], self.starts[-1 if last is None else last]
        return Calls(np.arange(self.line.first[begin], self.line.first[end]))

    def passes_with(self, calls: Calls) -> NDArray[np.bool_]:
        """For each pass, whether one of these calls, given in order, is made in it."""
        with_one: NDArray[np.bool_] = np.diff(np.searchsorted(calls, self.line.first[list(self.starts)])) > 0
        return with_one


def find(case: Case, *, least: int, shapes: bool) -> tuple[Repeat, ...]:
    """All loops of at least so many passes, of operators on the same `shapes` or on any, those that cover most first.

    Loops that lie in each other are all given.
    """
    return case.keep(f"repeats {least} {shapes}", lambda: _find(case, least, shapes))


def _find(case: Case, least: int, shapes: bool) -> tuple[Repeat, ...]:
    known: dict[bytes, list[Starts]] = {}  # most steps are alike
    loops: list[Repeat] = []
    for line in _lines(case, shapes):
        key = line.names.tobytes()
        if key not in known:
            known[key] = list(_of_line(line.names, least))
        loops += [Repeat(starts, line) for starts in known[key]]
    return tuple(sorted(loops, key=lambda loop: loop.starts[0] - loop.starts[-1]))


def _lines(case: Case, shapes: bool) -> Iterator[Line]:
    """The steps' lines."""
    program, host = case.program, case.host
    if not len(program.kind):
        return
    calls = program.call_span.astype(np.int64)
    outer = host.outermost(calls, host.named(_OUTER, "op"))
    outer = np.where(outer == NOBODY, calls, outer)
    # Gradients are added to from the second pass on, which makes it no other.
    number = case.numbers(outer, shapes=shapes)
    number[case.host.named(f"^{_ACCUMULATES}$", "op")[outer]] = NOBODY
    opens = np.concatenate(([True], (outer[1:] != outer[:-1]) | (program.step[1:] != program.step[:-1])))
    first = np.flatnonzero(opens)
    first = first[number[first] >= 0]
    # Calls stand in order, so those of a step follow one another.
    steps = np.unique(program.step)
    begins = np.searchsorted(program.step[first], np.append(steps, steps[-1] + 1))
    ends = np.searchsorted(program.step, steps, "right")
    for place, end in enumerate(ends.tolist()):
        of_step = first[begins[place] : begins[place + 1]]
        yield Line(number[of_step], outer[of_step], np.append(of_step, end))


def _of_line(names: NDArray[np.int64], least: int) -> Iterator[Starts]:
    """Where the passes of one step's loops begin, by operators that come once a pass."""
    tried: list[NDArray[np.int64]] = []
    order = np.argsort(names, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(names[order])) + 1):
        tried += _regular(places, least)
    tried.sort(key=lambda places: (int(places[0] - places[-1]), int(places[0])))
    seen: dict[tuple[int, int], list[int]] = {}  # passes and how far apart they are: where such loops begin
    for places in tried:
        apart = int(_median(np.diff(places)))
        kind, begin = (len(places), apart), int(places[0])
        if kind not in seen and len(seen) >= _MOST_TRIED:
            continue
        if any(abs(begin - other) < places[-1] - places[0] for other in seen.setdefault(kind, [])):
            continue  # the same loop, by another of its operators
        seen[kind].append(begin)
        starts = _passes(names, places, apart, least)
        if starts is not None:
            yield starts


_REGULAR = Share(0.7, "the distances between two beginnings: those that are near the median", JUDGEMENT)
_NEAR = Share(0.25, "the median distance", JUDGEMENT)


def _median(values: NDArray[np.int64]) -> float:
    """The median of a few whole numbers, as numpy.median has it, which takes twenty times as long for them."""
    ordered, middle = np.sort(values), len(values) // 2
    return (
        float(ordered[middle]) if len(values) % 2 else (int(ordered[middle - 1]) + int(ordered[middle])) / 2
    )


def _regular(places: NDArray[np.int64], least: int) -> list[NDArray[np.int64]]:
    """Stretches of an operator's places that lie about as far apart as most."""
    if len(places) < least:
        return []
    apart = np.diff(places)
    usual = _median(apart)
    near = np.abs(apart - usual) <= max(_NEAR * usual, 1)
    if near.mean() < _REGULAR:
        return []
    cuts = np.flatnonzero(~near) + 1
    return [part for part in np.split(places, cuts) if len(part) >= least]


def _passes(names: NDArray[np.int64], places: NDArray[np.int64], apart: int, least: int) -> Starts | None:
    """The loop whose passes begin a little before these places, as far as what lies between them is alike."""
    before = 0
    while before < min(places[0], apart - 1):
        same = names[places - before - 1]
        if np.count_nonzero(same == same[0]) < ALIKE * len(same):
            break
        before += 1
    starts = [int(place) - before for place in places]
    starts.append(min(starts[-1] + apart, len(names)))
    bags = [Counter(names[begin:end].tolist()) for begin, end in pairwise(starts)]
    usual = sorted(bags, key=lambda bag: bag.total())[len(bags) // 2]
    alike = [2 * (bag & usual).total() >= ALIKE * (bag.total() + usual.total()) for bag in bags]
    first = next((at for at, same in enumerate(alike) if same), len(alike))
    last = first
    while last < len(alike) and alike[last]:
        last += 1
    return tuple(starts[first : last + 1]) if last - first >= least else None


def apart(loops: tuple[Repeat, ...]) -> list[Repeat]:
    """Of loops, those that overlap none before them."""
    kept: list[Repeat] = []
    for loop in loops:
        if outside(loop, kept):
            kept.append(loop)
    return kept


def outside(loop: Repeat, others: list[Repeat]) -> bool:
    """Whether a loop overlaps none of the others."""
    begin, end = _edges(loop)
    return all(end <= first or begin >= last for first, last in map(_edges, others))


def _edges(loop: Repeat) -> tuple[int, int]:
    """The first call of a loop, and that behind its last."""
    return int(loop.line.first[loop.starts[0]]), int(loop.line.first[loop.starts[-1]])


def of_backward(case: Case, loop: Repeat) -> bool:
    """Whether a loop runs autograd's functions."""
    return bool(case.host.named(_BACKWARD, "op")[loop.ops()].any())


def differentiated(case: Case, loop: Repeat) -> bool:
    """Whether a pass calls operators that have a backward."""
    return bool(_has_backward(case)[loop.ops(0, 1)].any())


def _has_backward(case: Case) -> NDArray[np.bool_]:
    """For each span, whether it is an operator that has a backward."""

    def marked() -> NDArray[np.bool_]:
        flags = np.zeros(len(case.host.start_ns), bool)
        flags[_backward(case)["forward_id"].to_numpy()] = True
        return flags

    return case.keep("has a backward", marked)


def updates(case: Case, loop: Repeat) -> bool:
    """Whether an optimizer steps within a loop, or the loop within its step: then each pass needs the one before."""
    steps = case.host.named(r"^Optimizer\.step#", "annotation", "op")
    begin, end = case.host.start_ns[loop.ops()[0]], case.host.end_ns[loop.ops()[-1]]
    return bool(((case.host.start_ns[steps] < end) & (case.host.end_ns[steps] > begin)).any())


def products(case: Case, loop: Repeat) -> bool:
    """Whether a loop multiplies matrices or convolves."""
    tasks = case.tasks.filter(pl.col("call").is_in(loop.calls()))["op_id"].drop_nulls().unique()
    names = case.op_names(tasks).unique()
    families = {known[0] for name in names if (known := work_models.find(name)) is not None}
    return not families.isdisjoint(work_models.MATRIX_FAMILIES)


@dataclass(frozen=True)
class AtOnce:
    """Loops done for all pieces at once: as expected, and at both ends of what is not known of the device's time."""

    edit: Edit
    others: tuple[Edit, Edit]


def at_once(case: Case, loops: list[Repeat], *, own_weights: bool = False) -> AtOnce:
    """One pass of each loop, on as many times the items as it has passes; its backward pass likewise.

    Where passes have weights of their own, as many times those.
    """
    backward = _backward(case)
    reduced = [_one_pass(case, loop, backward) for loop in loops]
    removed_host = joined(NO_TIME, *(one.removed_host for one in reduced))
    removed = Calls(
        np.unique(np.concatenate([*(one.removed_calls for one in reduced), calls_in(case, removed_host)]))
    )
    by_passes: dict[int, list[int]] = {}
    for loop, one in zip(loops, reduced, strict=True):
        by_passes.setdefault(loop.passes, []).extend(one.kept_tasks.tolist())
    low: dict[int, float] = {}
    high: dict[int, float] = {}
    for times, tasks in by_passes.items():
        ends = batch.growth(case.trace, case.program, times, weights=own_weights).others
        for task in tasks:
            low[task], high[task] = (end.stretched[task] for end in ends)
    middle = {task: (low[task] * high[task]) ** (1 / 2) for task in low}
    whole, shortest, longest = (
        Edit(removed_host=removed_host, removed_calls=removed, stretched=factors)
        for factors in (middle, low, high)
    )
    return AtOnce(whole, (shortest, longest))


@dataclass(frozen=True)
class _OnePass:
    """What one pass in the place of a loop takes out of the program, and the device work of the pass that stays."""

    removed_host: ProgramTime
    removed_calls: Calls
    kept_tasks: Tasks


def _one_pass(case: Case, loop: Repeat, backward: pl.DataFrame) -> _OnePass:
    program, host = case.program, case.host
    stays = _usual_pass(case, loop)
    reach = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)))
    start, end, removed = [], [], [NO_CALLS]
    for first, last in ((0, stays), (stays + 1, loop.passes)):
        calls = loop.calls(first, last)
        if len(calls):
            # What the host does before the first pass is not the loop's.
            start.append(host.start_ns[loop.ops()[0]] - program.start_ns if first == 0 else reach[calls[0]])
            end.append(program.call_end_ns[calls[-1]])
            removed.append(calls)
    own = loop.ops(stays, stays + 1)
    other_backward = _during(case, _functions_of(backward, np.setdiff1d(loop.ops(), own)))
    own_backward = calls_in(case, _during(case, _functions_of(backward, own)))
    return _OnePass(
        joined(other_backward, ProgramTime(intervals.union(start, end))),
        Calls(np.concatenate(removed)),
        Tasks(np.concatenate((_tasks_of(case, loop.calls(stays, stays + 1)), _tasks_of(case, own_backward)))),
    )


def _usual_pass(case: Case, loop: Repeat) -> int:
    """The pass that takes the host neither longest nor shortest."""
    host_ns = case.program.gap_ns + case.program.base_ns
    of_passes = [int(host_ns[loop.calls(at, at + 1)].sum()) for at in range(loop.passes)]
    return int(np.argsort(of_passes, kind="stable")[(loop.passes - 1) // 2])


def _functions_of(backward: pl.DataFrame, ops: NDArray[np.int64]) -> NDArray[np.int64]:
    """The functions of autograd that belong to some operators."""
    return backward.filter(pl.col("forward_id").is_in(ops.tolist()))["span_id"].to_numpy()


def _backward(case: Case) -> pl.DataFrame:
    """Autograd's functions with the operator of the forward pass, outermost, that each belongs to."""
    return case.keep("functions of autograd", lambda: _find_backward(case))


def _find_backward(case: Case) -> pl.DataFrame:
    host = case.host
    nodes = case.trace.ops.select("span_id", "forward_id").drop_nulls()
    spans = host.outermost(nodes["span_id"].cast(pl.Int64).to_numpy(), host.named(_BACKWARD, "op"))
    forward = host.outermost(nodes["forward_id"].cast(pl.Int64).to_numpy(), host.named("^aten::", "op"))
    table = pl.DataFrame({"span_id": spans, "forward_id": forward})
    return table.filter((pl.col("span_id") != NOBODY) & (pl.col("forward_id") != NOBODY)).unique(
        maintain_order=True
    )


def _during(case: Case, spans: NDArray[np.int64]) -> ProgramTime:
    """When these spans ran."""
    start = case.program.start_ns
    return ProgramTime(intervals.union(case.host.start_ns[spans] - start, case.host.end_ns[spans] - start))


def _tasks_of(case: Case, calls: Calls) -> NDArray[np.int64]:
    return np.flatnonzero(np.isin(case.program.task_call, calls))
