"""The host waits for the device in the middle of its work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import NOBODY, HostSpans
from foretrace.analyze.concepts.trees.source_places import Places
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose import removal
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.patterns import anomaly_mode, expert_loops, repeated_passes
from foretrace.diagnose.rule import Healthy, rule
from foretrace.errors import MissingDataError
from foretrace.predict import graph_capture
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit, merge
from foretrace.predict.numbers import RecordingTime
from foretrace.predict.program import LAUNCH, Program

_LEAST_SHARE = 0.02  # of the host's time
_MOST_LAUNCHES = 4  # that computing on the device may take instead: compare, select, multiply, reduce
_LEAST_PASSES = 8  # of a loop: fewer may be layers, levels or parts that are each their own
_LEAST_EXPERTS = 4
_MOSTLY = 0.8  # of the passes: in so many the host waits
_LONG_OP_NS = 50_000  # of an operator that launches nothing: it computes, and for longer than a launch takes
# Checks for numbers that are none, and what makes one value of them.
_CHECKS = r"^aten::(?:isnan|isinf|isfinite)$"
_CHECKING = r"^aten::(?:isnan|isinf|isfinite|any|all|_is_any_true|_is_all_true|logical_\w+|bitwise_\w+|__\w+__|sum|is_nonzero|item)$"
_COPIES = r"^aten::(?:to|_to_copy|copy_|_copy_from)$"
# Operators that can be left out with their wait. Others, such as those of torch.linalg, do more than to bring a value.
_READS = (
    r"^aten::(?:to|_to_copy|copy_|_copy_from|item|_local_scalar_dense|is_nonzero|equal|allclose|nonzero\w*|argwhere|where"
    r"|masked_select|index|index_put_?|_index_put_impl_|_?unique\w*|unique_consecutive|repeat_interleave|bincount|histc"
    r"|one_hot|tensor_split)$"
)
_LINE = re.compile(r"(?:backward of )?(.+)\((\d+)\): (.+)")


def _no_issue(values: Mapping[str, Any]) -> str | None:
    count = values.get("per_step_count")
    if count is None:
        return None
    if not count:
        return "none inside a step"
    return f"{count:,.0f} a step" if count >= 1 else "less than one a step"


@rule(
    title="The host waits for the GPU within a step",
    topic="Host syncs",
    see="syncs",
    healthy=Healthy("syncs", _no_issue),
)
def host_sync(case: Case) -> Iterator[Finding]:
    """Calls such as .item(), .cpu(), nonzero and synchronize, in which the host waits for the GPU.

    What it does
    Looks for calls within steps that wait for the device, other than copies to it and calls that free memory,
    if they and the operators around them take at least 2 % of the host's time. The replay takes each operator that
    waited out and puts one launch in its place: what depended on the value must now be computed on the device. At
    best not even that, at worst the operator stays, without its wait, and four launches follow: the range says so.
    Where torch.isnan, isinf or isfinite makes what is read, these operators go as well: nothing else needs them.
    A bare torch.cuda.synchronize() needs nothing in its place. Where a tensor is brought to the host and operators of at
    least 50 µs compute on it there, these go too, each for one launch, and so does the copy back.
    A loop of at least eight passes over pieces that waits in nearly all of them, and multiplies no matrices, is replayed as
    one pass on all pieces, forward and backward; at worst with one launch for each wait. So is a loop over experts
    whose weights are slices of one tensor, if all have as many rows: a batched product does it. If they have not, the range
    reaches to that. Where autograd checks each
    of its functions for NaN, anomaly detection is on: the checks go, and so does keeping the stack of each operator.
    Where most of the waiting is for the size of a result (nonzero, a mask as index), nothing is promised: without
    the wait, what follows may have more rows to work on.

    Why it matters
    While the host waits it launches nothing; when the GPU has finished, it waits in turn until the host has
    launched again. Where the host is slower than the GPU anyway, removing the wait gains nothing.

    Use instead
    Keep values on the device: torch.where instead of `if x.item()`; read losses every 100 steps. Instead of a loop over
    tensors that asks each, index_add, scatter_add or a comparison of all.
    """
    calls = waiting_calls(case)
    if not len(calls):
        return
    program = case.program
    wait_ns = int((program.call_end_ns - program.call_start_ns)[calls].sum())
    host = case.host
    outer = _outermost(case, host, calls)
    detours = _detours(case, host, calls, outer)
    around = intervals.union(host.start_ns[_checks(case, host, outer)], host.end_ns[outer])
    if around.total_ns + detours.work_ns < _LEAST_SHARE * program.measured_host_ns:
        return
    if anomaly_mode.detected(case, outer):
        yield _left_on(case, outer, around, wait_ns)
        return
    ops, lines = _origins(case, host, calls, outer)
    names = pl.Series(ops).value_counts(sort=True)
    culprit = str(names.row(0)[0])
    makes = f" and {names.height - 1} more make" if names.height > 1 else " makes"
    computes = (
        f" Operators on the host then work on it for {detours.work_ns / case.step_count / 1e6:.3g} ms."
        if detours.work_ns
        else ""
    )
    yield Finding(
        says=f"{culprit}{makes} the host wait for the GPU {len(calls) / case.step_count:.3g} times a step, "
        f"{wait_ns / case.step_count / 1e6:.3g} ms in all.{computes}",
        why="While it waits it launches nothing, and afterwards the GPU waits for the next launch.",
        fix=Fix(
            "Keep the value on the device, or read it rarely.",
            "x = torch.where(x.max() > limit, x / limit, x)   # not: if x.max().item() > limit\n"
            "if step % 100 == 0: print(loss.item())",
        ),
        evidence={
            "calls_per_step_count": len(calls) / case.step_count,
            "wait_ns": wait_ns // case.step_count,
            "wait_pct": 100 * wait_ns / max(program.measured_host_ns, 1),
            "host_work_ns": detours.work_ns // case.step_count,
            "op": culprit,
            "spans": program.call_span[calls][:5].tolist(),
        },
        where=lines,
        change=_change(case, calls, outer, around, detours),
        unless="the program needs the value to decide what to do next.",
    )


def _left_on(case: Case, outer: NDArray[np.int64], around: intervals.Intervals, wait_ns: int) -> Finding:
    """What torch.autograd.detect_anomaly does to each function."""
    traced = anomaly_mode.traced(case)
    checks = _removed(case, around)
    both = merge((checks, _removed(case, traced)))
    slowed = anomaly_mode.slowed(case, _together(around, traced))
    warm = replace(both, removed_host=_removed(case, slowed.gone).removed_host)
    return Finding(
        says=f"Autograd looks for NaN after each of its functions, {len(outer) / case.step_count:.3g} times a step, and "
        f"waits for the answer: anomaly detection is on. Keeping the lines of the forward pass takes another "
        f"{traced.total_ns / case.step_count / 1e6:.3g} ms.",
        why="Each check launches three kernels and waits for them, and each operator walks the Python stack.",
        fix=Fix("Turn it off, except to look for a NaN.", "torch.autograd.set_detect_anomaly(False)"),
        evidence={
            "calls_per_step_count": len(outer) / case.step_count,
            "wait_ns": wait_ns // case.step_count,
            "traced_ns": traced.total_ns // case.step_count,
            "spans": outer[:5].tolist(),
        },
        where=(Place(None, None, "torch.autograd.set_detect_anomaly"),),
        change=Change("no checks and no stacks kept", warm, others=(both,), upside=slowed.factor),
        unless="the checks are made by functions of your own.",
    )


@dataclass(frozen=True)
class _Detours:
    """Work that the host does on tensors that it waited for, before it launches again."""

    spans: NDArray[np.int64]  # long operators, and those that copy back
    before: NDArray[np.int64]  # for each long operator, the call behind it
    work_ns: int


def waiting_calls(case: Case) -> NDArray[np.int64]:
    """Calls that wait for the device, other than for a copy to it or to free memory."""
    if not case.trace.spans.filter(pl.col("kind") == "runtime").height:
        raise MissingDataError(
            f"{case.trace.path.name}: no runtime calls recorded; record with ProfilerActivity.CUDA"
        )
    return graph_capture.waiting_calls(case.trace, case.program)


def _outermost(case: Case, host: HostSpans, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """The outermost operator around each call that only brings a value, or the call itself."""
    ids = case.program.call_span[calls].astype(np.int64)
    outer = host.outermost(ids, host.named(_READS, "op"))
    return np.where(outer == NOBODY, ids, outer)


def _checks(case: Case, host: HostSpans, outer: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each operator that reads a value, the check for numbers that are none that it began with; else itself."""
    tracks = case.trace.spans["track_id"].to_numpy()
    ids = _outermost_operators(case, host)
    ids = ids[np.lexsort((host.start_ns[ids], tracks[ids]))]
    place = {span: at for at, span in enumerate(ids.tolist())}
    checks, checking = host.named(_CHECKS, "op")[ids], host.named(_CHECKING, "op")[ids]
    found = outer.copy()
    for at, read in enumerate(outer.tolist()):
        first = place.get(read, 0)
        while first and checking[first - 1] and tracks[ids[first - 1]] == tracks[read] and not checks[first]:
            first -= 1
        if len(ids) and checks[first] and read in place:
            found[at] = ids[first]
    return found


def _detours(case: Case, host: HostSpans, calls: NDArray[np.int64], outer: NDArray[np.int64]) -> _Detours:
    """After each copy to the host: long operators that launch nothing, from one on that takes what was copied."""
    program = case.program
    copies = host.named(_COPIES, "op")[outer]
    if not copies.any():
        return _Detours(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    launching = np.flatnonzero(np.diff(program.task_from) > 0)
    alone, start, end = _alone(case, host)
    sizes = _sizes(case)
    to_device = set(case.trace.copies.filter(pl.col("direction") == "HtoD")["span_id"].to_list())
    spans, before, work_ns = [], [], 0
    for call, copy in zip(calls[copies].tolist(), outer[copies].tolist(), strict=True):
        place = int(np.searchsorted(launching, call, "right"))
        if place == len(launching):
            continue
        behind = int(launching[place])
        until = int(program.call_start_ns[behind]) + program.start_ns
        between = [
            at for at in range(*np.searchsorted(start, (host.end_ns[copy], until))) if end[at] <= until
        ]
        taken = [at for at in between if sizes.get(int(alone[at]), set()) & sizes.get(copy, set())]
        long = [at for at in between if taken and at >= taken[0] and end[at] - start[at] >= _LONG_OP_NS]
        if not long:
            continue
        spans += alone[long].tolist()
        before += [behind] * len(long)
        work_ns += int((end - start)[long].sum())
        if to_device & set(
            program.task_span[program.task_from[behind] : program.task_from[behind + 1]].tolist()
        ):
            back = host.outermost(program.call_span[[behind]].astype(np.int64), host.named(_COPIES, "op"))
            spans += back[back != NOBODY].tolist()
    return _Detours(np.array(spans, np.int64), np.array(before, np.int64), work_ns)


def _alone(case: Case, host: HostSpans) -> tuple[NDArray[np.int64], ...]:
    """The outermost operators in which no call is made, on the threads that make calls, with start and end."""
    ids = _outermost_operators(case, host)
    start, end = host.start_ns[ids], host.end_ns[ids]
    calls = np.sort(case.program.call_start_ns) + case.program.start_ns
    free = np.searchsorted(calls, start) == np.searchsorted(calls, end)
    order = np.argsort(start[free], kind="stable")
    return ids[free][order], start[free][order], end[free][order]


def _outermost_operators(case: Case, host: HostSpans) -> NDArray[np.int64]:
    """Torch's operators on the threads that make calls, without those inside others."""
    tracks = case.trace.spans["track_id"].gather(case.program.call_span).unique().implode()
    ops = host.named("^aten::", "op") & case.trace.spans["track_id"].is_in(tracks).to_numpy()
    ids = np.flatnonzero(ops)
    outermost: NDArray[np.int64] = ids[host.outermost(ids, ops) == ids]
    return outermost


def _sizes(case: Case) -> dict[int, set[int]]:
    """For each operator, how many elements its tensors have; numbers are left out."""
    ops = case.trace.ops.select("span_id", pl.col("shapes").cast(pl.String)).drop_nulls()
    parsed = {text: _elements(text) for text in ops["shapes"].unique()}
    return {span: parsed[text] for span, text in ops.iter_rows()}


def _elements(shapes: str) -> set[int]:
    return {prod(each) for each in tensor_shapes(shapes)} - {1}


def _origins(
    case: Case, host: HostSpans, calls: NDArray[np.int64], outer: NDArray[np.int64]
) -> tuple[list[str], tuple[Place, ...]]:
    """The names of what waited, and the lines behind them."""
    ids = case.program.call_span[calls].astype(np.int64)
    ops = case.names.gather(outer).to_list()
    lines = Places(case.trace, host).lines(ids)
    counted = lines.drop_nulls().value_counts(sort=True)
    if counted.is_empty():
        shown = pl.Series("op", ops).value_counts(sort=True)["op"].head(3)
        return ops, tuple(Place(None, None, name) for name in shown)
    waiting: dict[str, Counter[str]] = {}
    for line, op in zip(lines, ops, strict=True):
        waiting.setdefault(line, Counter())[op] += 1
    return ops, tuple(case.exact(_place(text), waiting[text]) for text in counted.to_series(0).head(3))


def _place(text: str) -> Place:
    match = _LINE.fullmatch(text)
    return Place(match[1], int(match[2]), match[3]) if match else Place(None, None, text)


def _change(
    case: Case,
    calls: NDArray[np.int64],
    outer: NDArray[np.int64],
    around: intervals.Intervals,
    detours: _Detours,
) -> Change:
    """One launch in the place of each operator that waited; at best nothing, at worst all of it and more."""
    program = case.program
    launches = np.flatnonzero(program.kind == LAUNCH)
    cost = dense_ns(program) + program.base_ns
    usual = int(np.median(cost[launches])) if len(launches) else 10_000
    bare = np.isin(outer, program.call_span)  # no operator brings a value: nothing takes its place
    first = calls[~bare][np.unique(outer[~bare], return_index=True)[1]]
    host = case.host
    work = intervals.union(host.start_ns[detours.spans], host.end_ns[detours.spans])
    without = _removed(case, _together(around, work))
    loops, mixture = _loops(case, calls), _experts(case, calls)
    looped = np.concatenate([each.calls() for each in loops]) if loops else np.empty(0, np.int64)
    lone = ~np.isin(calls, looped)

    def launched(count: int, but: NDArray[np.int64] = looped[:0]) -> dict[int, int]:
        """Host time of so many launches for each operator that is gone, of one in a loop, and of none for some."""
        added = {call: usual if call in within else count * usual for call in first.tolist()}
        for call in detours.before.tolist():
            added[call] = added.get(call, 0) + count * usual
        return {call: extra for call, extra in added.items() if call not in set(but.tolist())}

    within = set(looped.tolist())
    one_each = replace(without, added_host_ns=launched(1))
    stays = replace(
        merge((_removed(case, work), _removed(case, _only(around, program, calls[~lone])))),
        unwaited_calls=calls[lone],
        added_host_ns=launched(_MOST_LAUNCHES),
    )
    doubt = (
        "what follows has as many rows as the values decide, and without the wait it may have more"
        if _shaped_by_values(case, calls)
        else ""
    )
    if mixture.loops:
        batched = _batched(case, mixture, without, launched)
        if mixture.alike:
            return Change(
                "loops over experts done as batched products, at worst waits replaced by one launch each",
                batched[0],
                others=(*batched[1:], one_each, stays),
                upside=repeated_passes.UPSIDE,
                doubt=doubt,
            )
        return Change(
            "waits replaced by one launch each, at best loops over experts done as batched products",
            one_each,
            others=(batched[0], without, stays),
            doubt=doubt,
        )
    if not loops:
        return Change("waits replaced by one launch each", one_each, others=(without, stays), doubt=doubt)
    at_once = repeated_passes.at_once(case, loops)
    gone = at_once.edit.removed_calls
    return Change(
        "loops that wait in each pass done for all at once, other waits replaced by one launch each",
        replace(merge((without, at_once.edit)), added_host_ns=launched(1, gone)),
        others=(merge((without, at_once.edit)), one_each, stays),
        upside=repeated_passes.UPSIDE,
        doubt=doubt,
    )


def _loops(case: Case, calls: NDArray[np.int64]) -> list[repeated_passes.Repeat]:
    """Loops over pieces that wait in nearly every pass and only move, compare and reduce: for all it is one operation.

    One with products in it is of layers or experts, each with weights of its own, or of tokens that follow each other.
    """
    found = []
    for each in repeated_passes.find(case, least=_LEAST_PASSES, shapes=False):
        waits = np.diff(np.searchsorted(calls, each.line.first[list(each.starts)])) > 0
        if (
            waits.mean() < _MOSTLY
            or repeated_passes.of_backward(case, each)
            or repeated_passes.products(case, each)
        ):
            continue
        if repeated_passes.takes_pieces(case, each):
            found.append(each)
    return repeated_passes.apart(tuple(found))


def _experts(case: Case, calls: NDArray[np.int64]) -> expert_loops.Experts:
    """Loops of experts that wait in nearly every pass."""

    def waits(each: repeated_passes.Repeat) -> bool:
        inside = np.diff(np.searchsorted(calls, each.line.first[list(each.starts)])) > 0
        return bool(inside.mean() >= _MOSTLY)

    return expert_loops.find(case, least=_LEAST_EXPERTS, chosen=waits)


def _batched(
    case: Case,
    mixture: expert_loops.Experts,
    without: Edit,
    launched: Callable[[int, NDArray[np.int64]], dict[int, int]],
) -> list[Edit]:
    """All experts of a loop at once: as expected, and at both ends of what is not known of the device's time."""
    made = repeated_passes.at_once(case, list(mixture.loops), own_weights=True)
    return [
        replace(merge((without, each)), added_host_ns=launched(1, each.removed_calls))
        for each in (made.edit, *made.others)
    ]


def _only(around: intervals.Intervals, program: Program, calls: NDArray[np.int64]) -> intervals.Intervals:
    """Of some stretches of the recording, those in which one of these calls is made."""
    start = np.sort(program.call_start_ns[calls]) + program.start_ns
    mine = np.searchsorted(start, around.start) < np.searchsorted(start, around.end)
    return intervals.Intervals(around.start[mine], around.end[mine])


def _together(*stretches: intervals.Intervals) -> intervals.Intervals:
    return intervals.union(*(np.concatenate(each) for each in zip(*stretches, strict=True)))


def _removed(case: Case, spans: intervals.Intervals) -> Edit:
    """Stretches of the recording left out, with the calls that lie in them."""
    return removal.without_time(case, case.program.in_program(RecordingTime(spans)))


def _shaped_by_values(case: Case, calls: NDArray[np.int64]) -> bool:
    """Whether most of the waiting is for the size of a result, such as that of nonzero or of a mask as index."""
    host = case.host
    ids = case.program.call_span[calls].astype(np.int64)
    within = host.nearest(ids, host.named(graph_capture.SHAPED, "op")) != NOBODY
    wait = (case.program.call_end_ns - case.program.call_start_ns)[calls]
    return bool(wait[within].sum() > 0.5 * wait.sum())
