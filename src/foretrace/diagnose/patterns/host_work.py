"""Work of the host that launches nothing, and what doing it ahead of the step would leave of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.analyze.concepts.names.named_spans import ids_like
from foretrace.diagnose import removal
from foretrace.diagnose.case import Case
from foretrace.diagnose.operators import on_calling_threads
from foretrace.intervals import Intervals
from foretrace.predict import edits
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import ProgramTime
from foretrace.predict.program import SYNC, Program
from foretrace.predict.steady import step_ns
from foretrace.sourced import JUDGEMENT, Bytes, Nanoseconds, Share

LEAST_NS = Nanoseconds(300_000, "a piece of work; shorter ones belong to calling operators", JUDGEMENT)
SHORT_NS = Nanoseconds(100_000, "a short piece of work, counted where there are many", JUDGEMENT)
SHORT_SHARE = Share(
    0.15,
    "host time, in short pieces of work",
    "at most 9 % of a step in recordings of the corpus and the pairs of docs/accuracy.md that only compute",
)
_COMPUTES_NS = Nanoseconds(
    50_000,
    "an operator that computes on the host; others that call no runtime are back within microseconds",
    JUDGEMENT,
)
_BETWEEN_NS = Nanoseconds(50_000, "Python between two operators of one piece of work", JUDGEMENT)
NUMBER_BYTES = Bytes(
    4, "a loss that is read; what decides (an index, a row of probabilities) is larger", JUDGEMENT
)
_OPTIMIZER = r"^Optimizer\.(?:step|zero_grad)#"
_RANKS = r"^c10d::|^(?:gloo|nccl|mpi|ucc):"
_COMPILES = r"(?i)compile|dynamo|inductor"


@dataclass(frozen=True)
class Work:
    """A stretch of the host's line within one step, in nanoseconds since the program's start."""

    start_ns: int
    end_ns: int
    operators_ns: int  # in torch's own operators
    feeds: bool  # the next thing that reaches the device is a copy from the host
    answers: bool  # results of the same step had just come from the device

    @property
    def dur_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns


def host_work(case: Case) -> tuple[Work, ...]:
    """Long stretches in which the host calls no runtime: Python, waiting, operators on the host.

    Of at least LEAST_NS each; also of SHORT_NS to LEAST_NS, where those are at least SHORT_SHARE of the recorded time, in
    which they are as much longer as the rest of the host's work.
    """
    return case.keep("host work", lambda: _host_work(case))


def recurs(case: Case, work: Iterable[Work]) -> bool:
    """Whether most steps have some of it: work of the program is there every time, once is a hiccup."""
    marks = _marks(case)
    stalled = np.unique(np.searchsorted(marks, [piece.start_ns for piece in work], "right"))
    return 2 * len(stalled) > len(marks)


def spent(work: Iterable[Work]) -> ProgramTime:
    """The time of some work."""
    pieces = list(work)
    return ProgramTime(
        intervals.union([piece.start_ns for piece in pieces], [piece.end_ns for piece in pieces])
    )


@dataclass(frozen=True)
class Reading:
    """Work of the host on results of the device, read one after another, and what is done for it alone."""

    between: Edit  # what lies between its pieces: further results that are read, shorter pieces
    all: Edit  # with the first result that is read


def reading(case: Case, work: Iterable[Work]) -> Reading:
    """What reads results for some work and would go with it.

    Pieces belong together where nothing but results of more than one number comes or goes between them, and they are most
    of that time. What makes the next input is no such work.
    """
    program = case.program
    reads, stops = _reads_and_stops(case)
    stretch = np.searchsorted(stops, program.call_start_ns[reads], "right")
    between, everything = [], []
    ordered = sorted(work, key=lambda piece: piece.start_ns)
    for number, together in groupby(
        ordered, key=lambda piece: int(np.searchsorted(stops, piece.start_ns, "right"))
    ):
        pieces, results = list(together), reads[stretch == number]
        start = pieces[0].start_ns
        later = results[program.call_start_ns[results] >= start]
        end = max([pieces[-1].end_ns, *program.call_end_ns[later].tolist()])
        if any(piece.feeds for piece in pieces) or 2 * sum(piece.dur_ns for piece in pieces) < end - start:
            continue
        if len(later):
            between.append((start, end))
        if len(results):
            everything.append((min(start, int(program.call_start_ns[results[0]])), end))
    return Reading(_without(case, between), _without(case, everything))


def _without(case: Case, stretches: list[tuple[int, int]]) -> Edit:
    """These stretches of the host's line, with all calls in them, gone."""
    host = intervals.union([start for start, _ in stretches], [end for _, end in stretches])
    return removal.without_time(case, ProgramTime(host))


def _reads_and_stops(case: Case) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Calls that bring results of more than one number, with the waits behind them; when anything else is asked of the device.

    The edges of steps are such moments too.
    """
    program = case.program
    sizes = case.trace.copies.select(pl.col("span_id").alias("id"), "direction", "size_bytes")
    tasks = case.tasks.select("id", "call").join(sizes, on="id", how="left", maintain_order="left")
    results = (pl.col("direction") == "DtoH").fill_null(value=False) & (pl.col("size_bytes") > NUMBER_BYTES)
    calls = tasks.group_by("call", maintain_order=True).agg(results.all().alias("reads"))
    reads = calls.filter("reads")["call"].to_numpy().astype(np.int64)
    others = calls.filter(~pl.col("reads"))["call"].to_numpy().astype(np.int64)
    following = (reads + 1)[reads + 1 < len(program.kind)]
    waits = following[program.kind[following] == SYNC]
    stops = np.sort(np.concatenate((program.call_start_ns[others], _edges(case))))
    return np.unique(np.concatenate((reads, waits))), stops


def beside(case: Case, host: ProgramTime, part: float) -> Edit:
    """This work done by others beside the step, at this part of the time that it takes now."""
    return _late(case, host, lambda load_ns, without: load_ns * part - step_ns(without))


def in_thread(case: Case, host: ProgramTime) -> Edit:
    """This work done by a Python thread: it runs while the main thread waits for the device, for one of them runs."""
    return _late(case, host, lambda load_ns, without: load_ns - step_ns(without) + _busy_ns(case, without))


def _late(case: Case, host: ProgramTime, late_ns: Callable[[float, Program], float]) -> Edit:
    """The work removed, and what is not ready in time added to every step."""
    without = edits.apply(case.program, Edit(removed_host=host))
    saved_ns = (
        case.program.gap_ns.sum() - without.gap_ns.sum() + case.program.tail_gap_ns - without.tail_gap_ns
    )
    late = max(late_ns(int(saved_ns) / case.step_count, without), 0)
    calls = [int(call) for call in case.program.step_calls if call < len(case.program.kind)]
    return Edit(removed_host=host, added_host_ns=dict.fromkeys(calls, round(late)) if late else {})


def _busy_ns(case: Case, program: Program) -> float:
    """Host work of a step, without its waiting."""
    busy = program.gap_ns.sum() + program.base_ns.sum() + program.tail_gap_ns - program.between_ns.sum()
    return float(busy) / case.step_count


def _host_work(case: Case) -> tuple[Work, ...]:
    operators = _without_calls(case)
    pieces = _joined(case, _quiet(case, operators))
    pieces = intervals.subtract(pieces, _annotated(case, runtime_calls.DATA_LOADING))
    pieces = intervals.subtract(pieces, _communicating(case))
    dur = pieces.end - pieces.start
    chosen = dur >= LEAST_NS
    short = (dur >= SHORT_NS) & ~chosen
    if dur[short].sum() >= SHORT_SHARE * case.program.measured_host_ns:
        chosen |= short
    edges = list(zip(pieces.start[chosen].tolist(), pieces.end[chosen].tolist(), strict=True))
    return _described(case, edges, operators)


def _described(case: Case, edges: list[tuple[int, int]], operators: ProgramTime) -> tuple[Work, ...]:
    """Stretches as work: with the time in operators, and what goes to and comes from the device beside them."""
    sizes = case.trace.copies.select(pl.col("span_id").alias("id"), "direction", "size_bytes")
    copies = case.tasks.select("id", "call").join(sizes, on="id", how="left", maintain_order="left")
    first = copies.unique("call", keep="first", maintain_order=True).sort("call")
    calls = first["call"].to_numpy()
    direction, size = first["direction"].cast(pl.String).to_list(), first["size_bytes"].to_list()
    at, marks = case.program.call_start_ns[calls], _marks(case)
    work = []
    for start, end in edges:
        after, before = int(np.searchsorted(at, end)), int(np.searchsorted(at, start)) - 1
        feeds = direction[after % len(at)] == "HtoD" if len(at) else False
        answers = before >= 0 and direction[before] == "DtoH" and (size[before] or 0) > NUMBER_BYTES
        answers = answers and np.searchsorted(marks, at[before], "right") == np.searchsorted(
            marks, start, "right"
        )
        inside = intervals.covered_ns(operators, [start], [end])
        work.append(Work(start, end, int(inside[0]), feeds, bool(answers)))
    return tuple(work)


def _marks(case: Case) -> list[int]:
    return [step.start_ns - case.program.start_ns for step in case.trace.steps]


def _edges(case: Case) -> NDArray[np.int64]:
    """Starts and ends of steps."""
    marks = [edge for step in case.trace.steps for edge in (step.start_ns, step.end_ns)]
    return np.array(marks, np.int64) - case.program.start_ns


def _joined(case: Case, pieces: ProgramTime) -> ProgramTime:
    """Pieces that a little Python parts, as one; not across a call or the edge of a step."""
    stops = np.sort(np.concatenate((case.program.call_start_ns, _edges(case))))
    apart = pieces.start[1:] - pieces.end[:-1] > _BETWEEN_NS
    apart |= np.searchsorted(stops, pieces.end[:-1]) < np.searchsorted(stops, pieces.start[1:], "right")
    first = np.concatenate(([True], apart)) if len(pieces.start) else np.empty(0, bool)
    last = np.concatenate((apart, [True])) if len(pieces.start) else np.empty(0, bool)
    return ProgramTime(Intervals(pieces.start[first], pieces.end[last]))


def _without_calls(case: Case) -> ProgramTime:
    """Time in operators that call no runtime, other than those that compile."""
    host, program = case.host, case.program
    chosen = host.kind("op") & ~host.named(_COMPILES, "op")
    chosen &= on_calling_threads(case)
    ids = np.flatnonzero(chosen)
    start, end = host.start_ns[ids] - program.start_ns, host.end_ns[ids] - program.start_ns
    alone = np.searchsorted(program.call_start_ns, start) == np.searchsorted(program.call_start_ns, end)
    return intervals.clip(ProgramTime(intervals.union(start[alone], end[alone])), 0, program.measured_host_ns)


def _quiet(case: Case, operators: ProgramTime) -> ProgramTime:
    """Stretches of the host's line in which no operator or call begins or ends: long ones, shorter ones in operators.

    Not between steps, where the profiler works, nor what an optimizer's own Python takes.
    """
    program = case.program
    host, updating = case.host, _annotated(case, _OPTIMIZER)
    events = np.flatnonzero(
        host.kind("op", "runtime")
        & on_calling_threads(case)
        & case.trace.spans["dur_ns"].is_not_null().to_numpy()
    )
    # Starts are in order already, and what is in order is only merged.
    times = host.start_ns[events] - program.start_ns, np.sort(host.end_ns[events]) - program.start_ns
    edges = np.sort(np.concatenate((*times, *updating, _edges(case))), kind="stable")
    some = np.flatnonzero(np.diff(edges) >= min(SHORT_NS, _COMPUTES_NS))
    low, high = edges[some], edges[some + 1]
    inside = intervals.covered_ns(operators, low, high) == high - low
    long = (high - low >= SHORT_NS) & (intervals.covered_ns(updating, low, high) == 0)
    chosen = long | (inside & (high - low >= _COMPUTES_NS))
    low, high = low[chosen], high[chosen]
    reach = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)))
    until = np.concatenate((program.call_start_ns, [program.measured_host_ns]))
    call = np.searchsorted(program.call_start_ns, low, "right")
    ends = [step.end_ns - program.start_ns for step in case.trace.steps]
    outside = np.isin(low, ends) & ~np.isin(low, _marks(case))
    within = (reach[call] <= low) & (high <= until[call]) & ~outside
    return ProgramTime(Intervals(low[within], high[within]))


def _communicating(case: Case) -> ProgramTime:
    """Time in which any thread of the host speaks to other ranks: whoever waits then, waits for them."""
    on_host = case.trace.tracks.filter(pl.col("device").is_null())["id"]
    spans = case.trace.spans[ids_like(case.trace, ("op", "annotation"), _RANKS)]
    return case.during(spans.filter(pl.col("track_id").is_in(on_host.implode())))


def _annotated(case: Case, pattern: str) -> ProgramTime:
    """Time in annotations of such a name on the host's line; the profiler repeats them on the device's."""
    ids = ids_like(case.trace, ("op", "annotation"), pattern)
    return case.during(case.trace.spans[ids[on_calling_threads(case)[ids]]])
