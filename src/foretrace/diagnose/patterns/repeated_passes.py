"""Repeats: a loop within a step that calls nearly the same operators for one piece of the data after the other.

Not a rule itself; `launch-bound`, `host-sync` and `small-batch` look for them. What such a loop does for N pieces may be
done for all at once: one pass stays, on N times the items.
"""

from __future__ import annotations

import json
import re
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
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.intervals import Intervals
from foretrace.predict import batch
from foretrace.predict.edits import Edit

NOT_RECORDED = (-1,)
UPSIDE = 1.15  # the host wanders so much between one pass and the next: the one that stays may be a quick one
_ALIKE = 0.8  # of two passes' operators: one of a few may be left out or come in addition
_REGULAR = 0.7  # of the distances between two beginnings: those that are near the median
_NEAR = 0.25
_MOST_TRIED = 12  # kinds of loops whose passes are compared, those that cover most first
_ONLY_READ = ("aten::item", "aten::is_nonzero", "aten::to", "aten::equal", "aten::allclose")
_PICKS = (
    r"^aten::(?:select|slice|narrow|index|index_select|gather|masked_select|nonzero|where|eq|unbind|take)$"
)
_PUTS_TOGETHER = ("aten::stack", "aten::cat", "aten::concat", "aten::hstack", "aten::vstack")
_LISTED = 30  # tensors of a list whose shapes torch records
_SOON = 3  # operators behind a loop
_CELLS = re.compile(r"aten::(?:lstm|gru|rnn_\w+)(?:_cell)?$")
LINEAR = ("aten::linear", "aten::mm", "aten::matmul")
_BACKWARD = r"^autograd::engine::evaluate_function: "
_OUTER = r"^aten::|^autograd::engine::evaluate_function: "
_ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class Line:
    """One step's operators that make calls, in the order of the host's line."""

    names: NDArray[np.int64]  # numbers for names, or for names with shapes
    ops: NDArray[np.int64]  # span of each, the call itself where no operator is around it
    first: NDArray[np.int64]  # its first call; one more than operators, the last being the end


@dataclass(frozen=True)
class Repeat:
    """A loop of one step."""

    starts: tuple[int, ...]  # of each pass, by place in the line; the last is the end
    line: Line

    @property
    def passes(self) -> int:
        return len(self.starts) - 1

    def ops(self, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """Spans of the operators of some passes."""
        return self.line.ops[self.starts[first] : self.starts[-1 if last is None else last]]

    def calls(self, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """Calls of some passes."""
        begin, end = self.starts[first], self.starts[-1 if last is None else last]
        return np.arange(self.line.first[begin], self.line.first[end])


def find(case: Case, *, least: int, shapes: bool) -> tuple[Repeat, ...]:
    """All loops of at least so many passes, of operators on the same `shapes` or on any, those that cover most first.

    Loops that lie in each other are all given.
    """
    return case.keep(f"repeats {least} {shapes}", lambda: _find(case, least, shapes))


def _find(case: Case, least: int, shapes: bool) -> tuple[Repeat, ...]:
    found = [each for line in _lines(case, shapes) for each in _of_line(line, least)]
    return tuple(sorted(found, key=lambda each: each.starts[0] - each.starts[-1]))


def _lines(case: Case, shapes: bool) -> Iterator[Line]:
    """The steps' lines."""
    program, host = case.program, case.host
    if not len(program.kind):
        return
    calls = program.call_span.astype(np.int64)
    outer = host.outermost(calls, host.named(_OUTER, "op"))
    outer = np.where(outer == NOBODY, calls, outer)
    given = case.trace.ops.select(pl.col("span_id").alias("id"), pl.col("shapes").cast(pl.String))
    named = case.trace.spans.select("id", pl.col("name").cast(pl.String)).join(
        given if shapes else given.with_columns(shapes=None), on="id", how="left", maintain_order="left"
    )
    # Gradients are added to from the second pass on, which makes it no other.
    text = pl.when(pl.col("name") == _ACCUMULATES).then(None).otherwise(
        pl.concat_str(("name", "shapes"), separator=" ", ignore_nulls=True)
    )  # fmt: skip
    number = named.select(text.cast(pl.Categorical).to_physical().cast(pl.Int64).fill_null(-1)).to_series().to_numpy()  # fmt: skip
    opens = np.concatenate(([True], (outer[1:] != outer[:-1]) | (program.step[1:] != program.step[:-1])))
    first = np.flatnonzero(opens)
    first = first[number[outer[first]] >= 0]
    for step in np.unique(program.step):
        mine = first[program.step[first] == step]
        end = int(np.flatnonzero(program.step == step)[-1]) + 1
        yield Line(number[outer[mine]], outer[mine], np.append(mine, end))


def _of_line(line: Line, least: int) -> Iterator[Repeat]:
    """The loops of one step, by operators that come once a pass."""
    tried: list[NDArray[np.int64]] = []
    order = np.argsort(line.names, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(line.names[order])) + 1):
        tried += _regular(places, least)
    tried.sort(key=lambda places: (int(places[0] - places[-1]), int(places[0])))
    seen: dict[tuple[int, int], list[int]] = {}  # passes and how far apart they are: where such loops begin
    for places in tried:
        apart = int(np.median(np.diff(places)))
        kind, begin = (len(places), apart), int(places[0])
        if kind not in seen and len(seen) >= _MOST_TRIED:
            continue
        if any(abs(begin - other) < places[-1] - places[0] for other in seen.setdefault(kind, [])):
            continue  # the same loop, by another of its operators
        seen[kind].append(begin)
        found = _repeat(line, places, apart, least)
        if found is not None:
            yield found


def _regular(places: NDArray[np.int64], least: int) -> list[NDArray[np.int64]]:
    """Stretches of an operator's places that lie about as far apart as most."""
    if len(places) < least:
        return []
    apart = np.diff(places)
    usual = float(np.median(apart))
    near = np.abs(apart - usual) <= max(_NEAR * usual, 1)
    if near.mean() < _REGULAR:
        return []
    cuts = np.flatnonzero(~near) + 1
    return [part for part in np.split(places, cuts) if len(part) >= least]


def _repeat(line: Line, places: NDArray[np.int64], apart: int, least: int) -> Repeat | None:
    """The loop whose passes begin a little before these places, as far as what lies between them is alike."""
    before = 0
    while before < min(places[0], apart - 1):
        same = line.names[places - before - 1]
        if np.count_nonzero(same == same[0]) < _ALIKE * len(same):
            break
        before += 1
    starts = [int(each) - before for each in places]
    starts.append(min(starts[-1] + apart, len(line.names)))
    bags = [Counter(line.names[begin:end].tolist()) for begin, end in pairwise(starts)]
    usual = sorted(bags, key=lambda bag: bag.total())[len(bags) // 2]
    alike = [2 * (bag & usual).total() >= _ALIKE * (bag.total() + usual.total()) for bag in bags]
    first = next((at for at, same in enumerate(alike) if same), len(alike))
    last = first
    while last < len(alike) and alike[last]:
        last += 1
    return Repeat(tuple(starts[first : last + 1]), line) if last - first >= least else None


def apart(found: tuple[Repeat, ...]) -> list[Repeat]:
    """Of loops, those that overlap none before them."""
    kept: list[Repeat] = []
    for each in found:
        if outside(each, kept):
            kept.append(each)
    return kept


def outside(found: Repeat, others: list[Repeat]) -> bool:
    """Whether a loop overlaps none of the others."""
    begin, end = _edges(found)
    return all(end <= first or begin >= last for first, last in map(_edges, others))


def _edges(found: Repeat) -> tuple[int, int]:
    """The first call of a loop, and that behind its last."""
    return int(found.line.first[found.starts[0]]), int(found.line.first[found.starts[-1]])


def of_backward(case: Case, found: Repeat) -> bool:
    """Whether a loop runs autograd's functions."""
    return bool(case.host.named(_BACKWARD, "op")[found.ops()].any())


def differentiated(case: Case, found: Repeat) -> bool:
    """Whether a pass calls operators that have a backward."""
    forward = _backward(case)["forward_id"].to_numpy()
    return bool(np.isin(found.ops(0, 1), forward).any())


def updates(case: Case, found: Repeat) -> bool:
    """Whether an optimizer steps within a loop, or the loop within its step: then each pass needs the one before."""
    steps = case.host.named(r"^Optimizer\.step#", "annotation", "op")
    begin, end = case.host.start_ns[found.ops()[0]], case.host.end_ns[found.ops()[-1]]
    return bool(((case.host.start_ns[steps] < end) & (case.host.end_ns[steps] > begin)).any())


def products(case: Case, found: Repeat) -> bool:
    """Whether a loop multiplies matrices or convolves."""
    tasks = case.tasks.filter(pl.col("call").is_in(found.calls()))["op_id"].drop_nulls().unique()
    names = case.names.gather(tasks).unique()
    families = {known[0] for name in names if (known := work_models.find(name)) is not None}
    return not families.isdisjoint(work_models.MATRIX_FAMILIES)


def collected(case: Case, found: Repeat) -> tuple[int, ...] | None:
    """The shape of what each pass makes, where it is written to its place, or all put together behind the loop; else None.

    Torch records no shapes of more than 30 tensors: then what the last operator of a pass makes, or NOT_RECORDED.
    """
    names = case.names
    last = int(found.ops()[-1])
    behind = found.line.ops[found.starts[-2] : found.starts[-1] + _SOON]
    given = shapes(case, behind)
    result = _result(names[last], tensor_shapes(given.get(last) or ""))
    for op in behind.tolist():
        if names[op] in _PUTS_TOGETHER:
            parts = listed_shapes(given.get(op) or "")
            if not parts and found.passes >= _LISTED:
                return result or NOT_RECORDED
            if found.passes <= len(parts) <= found.passes + 1 and len(set(parts)) == 1:
                return parts[0]
    return result if names[last] == "aten::copy_" else None


def goes_on(case: Case, found: Repeat, made: tuple[int, ...], *, surely: bool = False) -> bool:
    """Whether a pass may need the one before: it takes something of a shape that it then makes, before it makes it.

    Where it cannot be told what operators make, it may. It does `surely` if what it takes so is multiplied, as a state is.
    """
    names = case.names
    ops = found.ops(found.passes // 2, found.passes // 2 + 1)
    given = shapes(case, ops)
    multiplied: set[tuple[int, ...]] = set()
    makes: set[tuple[int, ...]] = set()
    known = True  # what operators have made so far
    for op in ops.tolist():
        name, tensors = names[op], tensor_shapes(given.get(op) or "")
        if name in _PUTS_TOGETHER:
            continue
        unknown = made == NOT_RECORDED or (made in tensors and made not in makes)
        if _CELLS.match(name) or (unknown and not surely):
            return True
        if known and name in LINEAR and tensors and tensors[0] not in makes:
            multiplied.add(tensors[0])
        result = _result(name, tensors)
        if result in multiplied:
            return True
        known &= result is not None
        makes |= {result} if result is not None else set()
    return False


def shapes(case: Case, ops: NDArray[np.int64]) -> dict[int, str | None]:
    """The recorded shapes of operators, as text."""
    table = case.trace.ops.filter(pl.col("span_id").is_in(ops.tolist()))
    return dict(table.select("span_id", pl.col("shapes").cast(pl.String)).iter_rows())


def _result(name: str, tensors: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
    """The shape of what an operator makes, where that is plain."""
    if name in LINEAR and len(tensors) >= 2:
        x, weight = tensors[:2]
        return (*x[:-1], weight[0]) if name == "aten::linear" else (*x[:-1], weight[-1])
    family = (work_models.find(name) or ("",))[0]
    if family in ("elementwise", "copy") and tensors:
        try:
            return tuple(np.broadcast_shapes(*tensors))
        except ValueError:
            return None
    return None


def takes_pieces(case: Case, found: Repeat) -> bool:
    """Whether each pass takes a piece of its own, rather than goes on with what the one before made.

    So it is if it does nothing but to read, if its tensors are of other sizes in other passes, or if it picks.
    """
    names = case.names
    if all(names[int(op)] in _ONLY_READ for op in found.ops(0, 1)):
        return True
    given = shapes(case, found.ops())
    edges = list(pairwise(found.starts))
    sizes = Counter(str([given.get(int(op)) for op in found.line.ops[begin:end]]) for begin, end in edges)
    if max(sizes.values()) <= found.passes / 2:
        return True
    begin, end = case.host.start_ns[found.ops()[0]], case.host.end_ns[found.ops()[-1]]
    picking = np.flatnonzero(case.host.named(_PICKS, "op"))
    at = case.host.start_ns[picking]
    return int(((at >= begin) & (at < end)).sum()) >= _ALIKE * found.passes


@dataclass(frozen=True)
class AtOnce:
    """Loops done for all pieces at once: as expected, and at both ends of what is not known of the device's time."""

    edit: Edit
    others: tuple[Edit, Edit]


def at_once(case: Case, found: list[Repeat], *, own_weights: bool = False) -> AtOnce:
    """One pass of each loop, on as many times the items as it has passes; its backward pass likewise.

    Where passes have weights of their own, as many times those.
    """
    program, host = case.program, case.host
    backward = _backward(case)
    gone_start: list[NDArray[np.int64]] = []
    gone_end: list[NDArray[np.int64]] = []
    calls: list[NDArray[np.int64]] = []
    kept: dict[int, NDArray[np.int64]] = {}  # passes: tasks
    reach = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)))
    for each in found:
        stays = _usual_pass(case, each)
        for first, last in ((0, stays), (stays + 1, each.passes)):
            if mine := each.calls(first, last).tolist():
                # What the host does before the first pass is not the loop's.
                begin = host.start_ns[each.ops()[:1]] - program.start_ns if first == 0 else reach[mine[:1]]
                gone_start.append(begin)
                gone_end.append(program.call_end_ns[mine[-1:]])
                calls.append(np.array(mine))
        own = each.ops(stays, stays + 1)
        nodes = _of(backward, np.setdiff1d(each.ops(), own))
        gone_start.append(host.start_ns[nodes] - program.start_ns)
        gone_end.append(host.end_ns[nodes] - program.start_ns)
        tasks = np.concatenate(
            (
                _tasks_of(case, each.calls(stays, stays + 1)),
                _tasks_of(case, _calls_in(case, _during(case, _of(backward, own)))),
            )
        )
        kept[each.passes] = np.concatenate((kept.get(each.passes, np.empty(0, np.int64)), tasks))
    gone = intervals.union(np.concatenate(gone_start), np.concatenate(gone_end))
    removed = np.unique(np.concatenate([*calls, _calls_in(case, gone)]))
    low: dict[int, float] = {}
    high: dict[int, float] = {}
    for times, tasks in kept.items():
        ends = batch.growth(case.trace, program, times, weights=own_weights).others
        for task in tasks.tolist():
            low[task], high[task] = (end.stretched[task] for end in ends)
    middle = {task: (low[task] * high[task]) ** 0.5 for task in low}
    edits = [Edit(removed_host=gone, removed_calls=removed, stretched=each) for each in (middle, low, high)]
    return AtOnce(edits[0], (edits[1], edits[2]))


def _usual_pass(case: Case, found: Repeat) -> int:
    """The pass that takes the host neither longest nor shortest."""
    cost = case.program.gap_ns + case.program.base_ns
    each = [int(cost[found.calls(at, at + 1)].sum()) for at in range(found.passes)]
    return int(np.argsort(each, kind="stable")[(found.passes - 1) // 2])


def _of(backward: pl.DataFrame, ops: NDArray[np.int64]) -> NDArray[np.int64]:
    """The functions that belong to some operators."""
    return backward.filter(pl.col("forward_id").is_in(ops.tolist()))["span_id"].to_numpy()


def _backward(case: Case) -> pl.DataFrame:
    """Autograd's functions with the operator of the forward pass, outermost, that each belongs to."""
    host = case.host
    nodes = case.trace.ops.select("span_id", "forward_id").drop_nulls()
    spans = host.outermost(nodes["span_id"].cast(pl.Int64).to_numpy(), host.named(_BACKWARD, "op"))
    forward = host.outermost(nodes["forward_id"].cast(pl.Int64).to_numpy(), host.named("^aten::", "op"))
    table = pl.DataFrame({"span_id": spans, "forward_id": forward})
    return table.filter((pl.col("span_id") != NOBODY) & (pl.col("forward_id") != NOBODY)).unique(
        maintain_order=True
    )


def _during(case: Case, spans: NDArray[np.int64]) -> Intervals:
    start = case.program.start_ns
    return intervals.union(case.host.start_ns[spans] - start, case.host.end_ns[spans] - start)


def _calls_in(case: Case, during: Intervals) -> NDArray[np.int64]:
    start = case.program.call_start_ns
    return np.flatnonzero(intervals.covered_ns(during, start, start + 1) > 0)


def _tasks_of(case: Case, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.flatnonzero(np.isin(case.program.task_call, calls))


def listed_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """The shapes of the tensors of an operator's first argument, where that is a list of them."""
    try:
        arguments = json.loads(text)
        return tuple(tuple(each) for each in arguments[0] if isinstance(each, list))
    except (ValueError, TypeError, LookupError, RecursionError):
        return ()
