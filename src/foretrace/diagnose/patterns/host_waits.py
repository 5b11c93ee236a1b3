"""Waits of the host for the device, the operators that wait, and the work that is there for them alone.

An operator that only brings a value to the host can go with its wait. With it go the operators that check for NaN what it
reads, and operators that compute on the host what was copied there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import NOBODY
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import SHOWN_SPANS
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.operators import torch_operators
from foretrace.predict.changes import Change
from foretrace.predict.numbers import Calls, RecordingTime, SpanIds
from foretrace.predict.replay import replay
from foretrace.predict.steady import settled
from foretrace.predict.waits import for_sizes, waiting_calls
from foretrace.sourced import JUDGEMENT, Count, Factor, Nanoseconds, Share

LEAST_SHARE = Share(0.02, "host time", JUDGEMENT)
LONG_OP_NS = Nanoseconds(
    50_000, "an operator that launches nothing: it computes, for longer than a launch takes", JUDGEMENT
)
MUCH_LONGER = Factor(1.5, "the recorded wait, from which the one without a profiler is told", JUDGEMENT)
TILES = Count(3, "times that the steps are replayed, for a queue as full as it will be", JUDGEMENT)
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


@dataclass(frozen=True)
class HostComputing:
    """Work that the host does on tensors that it waited for, before it launches again."""

    spans: SpanIds  # long operators, and those that copy back
    next_calls: Calls  # for each long operator, the next call that launches
    work_ns: int


@dataclass(frozen=True)
class HostWaits:
    """The calls that wait, and what they wait in."""

    calls: Calls
    readers: SpanIds  # for each call, the outermost operator that only brings a value; else the call itself
    reading: RecordingTime  # of the readers, with the checks for NaN that they begin with
    computing: HostComputing
    wait_ns: int
    host_share: float  # what reading and computing take of the host's time
    unrecorded_share: float  # the waits in the step without a profiler, whose faster host waits longer

    @property
    def count(self) -> bool:
        """Whether they take enough of the host's time to speak of, with a profiler or without."""
        return max(self.host_share, self.unrecorded_share) >= LEAST_SHARE


def host_waits(case: Case) -> HostWaits | None:
    """The waits that no finding explains yet; None where there are none."""
    calls = case.unclaimed(waiting_calls(case.trace, case.program))
    # Claims only grow: as many calls are the same calls.
    return case.keep(f"{len(calls)} host waits", lambda: of_calls(case, calls)) if len(calls) else None


def of_calls(case: Case, calls: Calls) -> HostWaits:
    """These waits, with what they wait in and how long."""
    program, host = case.program, case.host
    readers = _readers(case, calls)
    computing = _computing(case, calls, readers)
    reading = RecordingTime(intervals.union(host.start_ns[_checks(case, readers)], host.end_ns[readers]))
    wait_ns = int((program.call_end_ns - program.call_start_ns)[calls].sum())
    share = (reading.total_ns + computing.work_ns) / max(program.measured_host_ns, 1)
    return HostWaits(calls, readers, reading, computing, wait_ns, share, _unrecorded_share(case, calls))


def _unrecorded_share(case: Case, calls: Calls) -> float:
    """What these calls take of the replayed step; nothing where they do not come in every step, as a log's do now and then."""
    if len(np.unique(case.program.step[calls])) < case.step_count:
        return 0.0
    program = settled(case.program)
    end = replay(program, tiles=TILES).call_end_ns
    at = calls[calls > 0].astype(np.int64)
    took = end[at] - end[at - 1] - program.gap_ns[at]
    return float(took.sum()) / case.step_count / max(case.step_ns, 1.0)


def _readers(case: Case, calls: Calls) -> SpanIds:
    """The outermost operator around each call that only brings a value, or the call itself."""
    ids = case.program.call_span[calls].astype(np.int64)
    outermost = case.host.outermost(ids, case.host.named(_READS, "op"))
    return SpanIds(np.where(outermost == NOBODY, ids, outermost))


def _checks(case: Case, readers: SpanIds) -> SpanIds:
    """For each operator that reads a value, the check for numbers that are none that it began with; else itself."""
    host, tracks = case.host, case.trace.spans["track_id"].to_numpy()
    ids = torch_operators(case)
    ids = SpanIds(ids[np.lexsort((host.start_ns[ids], tracks[ids]))])
    place = {span: at for at, span in enumerate(ids.tolist())}
    checks, checking = host.named(_CHECKS, "op")[ids], host.named(_CHECKING, "op")[ids]
    first_checks = readers.copy()
    for at, read in enumerate(readers.tolist()):
        first = place.get(read, 0)
        while first and checking[first - 1] and tracks[ids[first - 1]] == tracks[read] and not checks[first]:
            first -= 1
        if len(ids) and checks[first] and read in place:
            first_checks[at] = ids[first]
    return SpanIds(first_checks)


def _computing(case: Case, calls: Calls, readers: SpanIds) -> HostComputing:
    """After each copy to the host: long operators that launch nothing, from one on that takes what was copied."""
    program, host = case.program, case.host
    copying = host.named(_COPIES, "op")
    copies = copying[readers]
    launching = np.flatnonzero(np.diff(program.task_from) > 0)
    alone = _without_calls(case) if copies.any() else SpanIds(readers[:0])
    start, end = host.start_ns[alone], host.end_ns[alone]
    sizes = _sizes(case) if copies.any() else {}
    to_device = set(case.trace.copies.filter(pl.col("direction") == "HtoD")["span_id"].to_list())
    spans: list[int] = []
    next_calls: list[int] = []
    work_ns = 0
    for call, copy in zip(calls[copies].tolist(), readers[copies].tolist(), strict=True):
        place = int(np.searchsorted(launching, call, "right"))
        if place == len(launching):
            continue
        following = int(launching[place])
        until = int(program.call_start_ns[following]) + program.start_ns
        between = [
            at for at in range(*np.searchsorted(start, (host.end_ns[copy], until))) if end[at] <= until
        ]
        taken = [at for at in between if sizes.get(int(alone[at]), set()) & sizes.get(copy, set())]
        long = [at for at in between if taken and at >= taken[0] and end[at] - start[at] >= LONG_OP_NS]
        if not long:
            continue
        spans += alone[long].tolist()
        next_calls += [following] * len(long)
        work_ns += int((end - start)[long].sum())
        tasks = program.task_span[program.task_from[following] : program.task_from[following + 1]]
        if to_device & set(tasks.tolist()):
            back = host.outermost(program.call_span[[following]].astype(np.int64), copying)
            spans += back[back != NOBODY].tolist()
    return HostComputing(SpanIds(np.array(spans, np.int64)), Calls(np.array(next_calls, np.int64)), work_ns)


def _without_calls(case: Case) -> SpanIds:
    """Torch's operators in which no call is made, by their start."""
    ids = torch_operators(case)
    start, end = case.host.start_ns[ids], case.host.end_ns[ids]
    calls = np.sort(case.program.call_start_ns) + case.program.start_ns
    free = np.searchsorted(calls, start) == np.searchsorted(calls, end)
    return SpanIds(ids[free][np.argsort(start[free], kind="stable")])


def _sizes(case: Case) -> dict[int, set[int]]:
    """For each operator, how many elements its tensors have; numbers are left out."""
    ops = case.arguments.select("op_id", "shapes").drop_nulls()
    parsed = {text: _elements(text) for text in ops["shapes"].unique()}
    return {op: parsed[text] for op, text in ops.iter_rows()}


def _elements(shapes: str) -> set[int]:
    return {prod(shape) for shape in tensor_shapes(shapes)} - {1}


def for_sizes_mostly(case: Case, waits: HostWaits) -> bool:
    """Whether most of the waiting is for the size of a result, such as that of nonzero or of a mask as index."""
    wait_ns = (case.program.call_end_ns - case.program.call_start_ns)[waits.calls]
    return bool(2 * wait_ns[for_sizes(case.host, case.program, waits.calls)].sum() > wait_ns.sum())


def reader_names(case: Case, waits: HostWaits) -> pl.Series:
    """The names of the operators or calls that wait, most frequent first."""
    return case.op_names(waits.readers).value_counts(sort=True).to_series(0)


def sentence(case: Case, waits: HostWaits) -> str:
    """What waits, how often and how long."""
    names = reader_names(case, waits)
    makes = f" and {len(names) - 1} more make" if len(names) > 1 else " makes"
    says = (
        f"{names[0]}{makes} the host wait for the GPU {len(waits.calls) / case.step_count:.3g} times a step, "
        f"{waits.wait_ns / case.step_count / 1e6:.3g} ms in all{_unrecorded(case, waits)}."
    )
    if not waits.computing.work_ns:
        return says
    return f"{says} Operators on the host then compute on it for {waits.computing.work_ns / case.step_count / 1e6:.3g} ms."


def _unrecorded(case: Case, waits: HostWaits) -> str:
    """How long they wait without a profiler, where that is not about the same."""
    without_ns = waits.unrecorded_share * case.step_ns
    much_longer = without_ns * case.step_count > MUCH_LONGER * waits.wait_ns
    return f" (about {without_ns / 1e6:.2g} ms without a profiler)" if much_longer else ""


def finding(case: Case, waits: HostWaits, *, why: str, fix: Fix, change: Change, unless: str) -> Finding:
    """A finding about these waits, which claims them."""
    return Finding(
        sentence(case, waits),
        why,
        fix,
        evidence(case, waits),
        lines(case, waits),
        change,
        unless,
        waits.calls,
    )


def evidence(case: Case, waits: HostWaits) -> dict[str, Any]:
    """The waits in numbers."""
    return {
        "calls_per_step_count": len(waits.calls) / case.step_count,
        "wait_ns": waits.wait_ns // case.step_count,
        "wait_pct": 100 * waits.wait_ns / max(case.program.measured_host_ns, 1),
        "host_work_ns": waits.computing.work_ns // case.step_count,
        "op": str(reader_names(case, waits)[0]),
        "spans": case.program.call_span[waits.calls][:SHOWN_SPANS].tolist(),
    }


def lines(case: Case, waits: HostWaits) -> tuple[Place, ...]:
    """The source lines behind the waits, most frequent first; what waits where no stack was recorded."""
    places = case.places_of_calls(waits.readers.astype(np.int64))
    return places or tuple(Place(None, None, name) for name in reader_names(case, waits)[:3])
