"""What led to each communication of a rank: the one it stood still for before, and the work between the two.

A rank stands still for a communication if its device computes nothing when that ends. From there on it works until the next
is ready, which then starts, or waits for the one before it on its stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.intervals import Intervals
from foretrace.ranks.summary import NOBODY, ROWS, STEP
from foretrace.trace import Step, Trace

Array = NDArray[Any]
_IDLE_NS = 2_000  # shorter pauses between two kernels are no waiting
_NEXT_NS = 20_000  # from the end of one communication to the start of the next on its stream, if that is all it waits for
_NEXT_ON_THREAD_NS = 200_000  # the same for a thread of the host
_CLOCK_NS = 2_000  # by which ends and starts of one device may be out of order
# torch's own annotation, and what people call theirs.
_LOADING = (
    runtime_calls.DATA_LOADING
    + r"|(?i)data[_ ]?(?:load|wait|fetch|iter)|(?:load|wait|fetch|next|read)(?:ing)?[_ ]?(?:for[_ ])?(?:the[_ ])?(?:data|input)"
    + r"|(?:get|next|load|fetch|read|wait)(?:[_ ]for)?[_ ]?(?:a[_ ])?batch|input[_ ]?(?:pipeline|load|wait|fetch|queue)"
    + r"|^\W*(?:input|data)\W*$"
)
_MARK = r"^ProfilerStep#(\d{1,9})$"
# Operators of the communication libraries do not count as computation.
_NO_COMPUTATION = r"^c10d::|^record_param_comms|^_c10d_functional|^(?:nccl|rccl|xccl|gloo|mpi|ucc):"


@dataclass(frozen=True)
class Activity:
    """When a rank's device computed and when its host waited for input meanwhile; and each piece of work by launch."""

    busy: Intervals
    loading: Intervals
    launched_ns: Array  # of each piece of work that has a launch, in order of launch
    reached_ns: Array  # when all work launched until then had ended
    work_step: Array
    work_start_ns: Array
    work_dur_ns: Array

    @classmethod
    def of(cls, trace: Trace) -> Activity:
        """Of the device; where there is none, of innermost operators."""
        work = _device_work(trace) if trace.has_device else _host_work(trace)
        spans = trace.spans.filter(pl.col("dur_ns") > 0)
        names = device_time.names_like(spans, _LOADING)
        loads = spans.filter(
            pl.col("name").is_in(names) & pl.col("kind").is_in(("op", "annotation", "python"))
        )
        loads = loads.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        busy = device_time.covered(work)
        launched = work.filter(pl.col("launch_id").is_not_null())
        at = trace.spans["start_ns"].gather(launched["launch_id"]).to_numpy()
        order = np.argsort(at, kind="stable")
        return cls(
            busy,
            intervals.subtract(device_time.covered(loads), busy),
            at[order],
            np.maximum.accumulate(launched["end_ns"].to_numpy()[order]),
            step_of(trace, work).fill_null(NOBODY).to_numpy()
            if trace.steps
            else np.full(work.height, NOBODY, np.int32),
            work["start_ns"].to_numpy(),
            work["dur_ns"].to_numpy(),
        )

    def per_step(self, numbers: Array, begin_ns: int, under_way: Intervals) -> dict[str, Array]:
        """Computation of each step, and for how long its device was idle while no communication was under way."""
        order = np.argsort(numbers, kind="stable")
        count = len(numbers)

        def place(steps: Array) -> tuple[Array, Array]:
            at = np.minimum(np.searchsorted(numbers, steps, sorter=order), count - 1)
            return order[at], numbers[order[at]] == steps

        at, known = place(self.work_step)
        until = self.busy.start
        since = np.minimum(np.concatenate(([begin_ns], self.busy.end[:-1]))[: len(until)], until)
        by_start = np.argsort(self.work_start_ns, kind="stable")
        first = np.searchsorted(self.work_start_ns, until, sorter=by_start)
        gap_at, gap_known = place(self.work_step[by_start[first]])
        loading = intervals.covered_ns(intervals.subtract(self.loading, under_way), since, until)
        other = until - since - loading - intervals.covered_ns(under_way, since, until)
        return {
            "computation_ns": np.bincount(at[known], self.work_dur_ns[known], count).astype(np.int64),
            "input_ns": np.bincount(gap_at[gap_known], loading[gap_known], count).astype(np.int64),
            "other_ns": np.bincount(gap_at[gap_known], other[gap_known], count).astype(np.int64),
            "kernels_count": np.bincount(at[known], minlength=count),
        }

    def ended_before(self, at_ns: Array) -> Array:
        """When the last stretch of work that had ended by then did; NOBODY where none had."""
        place = np.searchsorted(self.busy.end, at_ns, side="right") - 1
        return np.where(
            place >= 0, self.busy.end[np.maximum(place, 0)] if len(self.busy.end) else NOBODY, NOBODY
        )

    def idle_since(self, at_ns: Array) -> Array:
        """When computation had last ended, for times at which nothing computes; else the time itself.

        What starts at that very time, by a clock of so many nanoseconds, does not count: it starts because of what ended then.
        """
        if not len(self.busy.start):
            return np.zeros_like(at_ns)
        place = np.searchsorted(self.busy.start, at_ns - _CLOCK_NS, side="right") - 1
        ended = np.where(place >= 0, self.busy.end[np.maximum(place, 0)], 0)
        return np.where(ended < at_ns, ended, at_ns)

    def busy_again(self, at_ns: Array) -> Array:
        """When computation next begins."""
        starts = np.append(self.busy.start, np.iinfo(np.int64).max)
        return starts[np.searchsorted(self.busy.start, at_ns - _CLOCK_NS, side="left")]


def step_of(trace: Trace, spans: pl.DataFrame) -> pl.Series:
    """The step of each span: that of its launch; where no launch was recorded, the one on the device's clock that it starts in.

    The device's own marks of steps tell that, else the host's; work that starts after the last mark belongs to it.
    """
    device = trace.device_spans
    if device.is_empty() or device["launch_id"].null_count() < device.height or not trace.steps:
        return spans["step"]
    starts = _device_marks(trace) or {step.number: step.start_ns for step in trace.steps}
    numbers = np.array(sorted(starts, key=lambda number: starts[number]), np.int32)
    place = np.searchsorted([starts[number] for number in numbers], spans["start_ns"].to_numpy(), "right") - 1
    found = pl.Series("step", numbers[np.maximum(place, 0)], pl.Int32)
    return pl.select(pl.when(pl.Series(place >= 0)).then(found).alias("step")).to_series()


def _device_marks(trace: Trace) -> dict[int, int]:
    """When the device's work of each step began, where the recording marks that; empty where not of all steps."""
    on_device = trace.tracks.filter(pl.col("device").is_not_null())["id"]
    marks = trace.spans.filter(
        (pl.col("kind") == "annotation") & pl.col("track_id").is_in(on_device.implode())
    ).select(pl.col("name").cast(pl.String).str.extract(_MARK).cast(pl.Int64, strict=False), "start_ns")
    begins = dict(marks.drop_nulls().sort("start_ns", descending=True).iter_rows())
    known: dict[int, int] = {
        step.number: begins[step.number] for step in trace.steps if step.number in begins
    }
    return known if len(known) == len(trace.steps) else {}


def _device_work(trace: Trace) -> pl.DataFrame:
    """Kernels and memsets that are no communication."""
    return device_time.device_work(trace).filter((pl.col("kind") != "copy") & ~pl.col("communication"))


def _host_work(trace: Trace) -> pl.DataFrame:
    """Innermost operators that are no communication."""
    spans = trace.spans.filter((pl.col("kind") == "op") & pl.col("dur_ns").is_not_null())
    parents = trace.spans["parent_id"].drop_nulls().unique()
    idle = device_time.names_like(spans, _NO_COMPUTATION)
    spans = spans.filter(~pl.col("id").is_in(parents.implode()) & ~pl.col("name").is_in(idle))
    return spans.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))


def rows(calls: pl.DataFrame, activity: Activity, steps: Sequence[Step]) -> tuple[pl.DataFrame, Intervals]:
    """The communications with what led to them, and where the device's work of each step ends; and when any was under way."""
    start, dur = calls["start_ns"].to_numpy(), calls["dur_ns"].to_numpy()
    end = start + dur
    queued, queue_ns, ready = _queues(calls, start, end, activity)
    on_host = bool((calls["on"] == "host").any())
    still, idle_from = _chains(start, end) if on_host else _still(start, end, queue_ns, activity)
    stalls = np.flatnonzero(still)
    stalls = stalls[np.argsort(end[stalls], kind="stable")]
    begin = steps[0].start_ns
    marks, worked, behind = _marks(activity, end, calls["step"].to_numpy(), steps)
    at = np.concatenate((ready, worked))
    before, lead_from = _before(at, stalls, end, begin)
    # A stall must not come before itself, nor before one that ends later.
    work = np.full(len(at), NOBODY, np.int64)
    since = idle_from[stalls]
    previous = np.concatenate(([begin], end[stalls[:-1]])) if len(stalls) else np.empty(0, np.int64)
    since = np.maximum(since, previous)
    work[stalls] = since - previous
    work_computation, work_input = np.full(len(at), NOBODY, np.int64), np.full(len(at), NOBODY, np.int64)
    work_computation[stalls] = intervals.covered_ns(activity.busy, previous, since)
    work_input[stalls] = intervals.covered_ns(activity.loading, previous, since)
    filled = len(marks)
    frame = {
        "step": np.concatenate((calls["step"].to_numpy(), [step.number for step in steps])),
        "kind": np.concatenate((calls["kind"].to_numpy(), np.full(filled, STEP))),
        "group": np.concatenate((calls["group"].to_numpy(), np.full(filled, NOBODY))),
        "seq": _with(calls["seq"], filled),
        "peer": _with(calls["peer"], filled),
        "size_bytes": _with(calls["size_bytes"], filled),
        "received_bytes": _with(calls["received_bytes"], filled),
        "start_ns": np.concatenate((start, marks)),
        "dur_ns": np.concatenate((dur, np.zeros(filled, np.int64))),
        "before": before,
        "queued": np.concatenate((queued, behind)),
        "queue_ns": np.concatenate((queue_ns, np.where(behind >= 0, 0, NOBODY))),
        "still": np.concatenate((still, np.zeros(filled, bool))),
        "work_ns": work,
        "work_computation_ns": work_computation,
        "work_input_ns": work_input,
        "lead_ns": at - lead_from,
        "computation_ns": intervals.covered_ns(activity.busy, lead_from, at),
        "input_ns": intervals.covered_ns(activity.loading, lead_from, at),
    }
    table = pl.DataFrame(
        {name: pl.Series(np.asarray(values)).cast(ROWS[name]) for name, values in frame.items()}
    )
    return table, intervals.union(start, end)


def _with(column: pl.Series, more: int) -> Array:
    return np.concatenate((column.fill_null(NOBODY).to_numpy(), np.full(more, NOBODY)))


def _chains(start: Array, end: Array) -> tuple[Array, Array]:
    """Of communications on threads of the host: the last to end before a pause, and when the last of its chain had started.

    The host waits for a backward pass's collectives together, and its device is idle between kernels anyway.
    """
    count = len(start)
    reach = np.maximum.accumulate(end) if count else end
    chain = np.cumsum(np.append(True, start[1:] > reach[:-1] + _NEXT_ON_THREAD_NS)) if count else start
    still, since = np.zeros(count, bool), np.zeros(count, np.int64)
    for number in np.unique(chain):
        own = np.flatnonzero(chain == number)
        last = own[np.argmax(end[own])]
        still[last], since[last] = True, start[own].max()
    return still, since


def _still(start: Array, end: Array, queue_ns: Array, activity: Activity) -> tuple[Array, Array]:
    """Which communications the device stood still for, and since when it had been idle at the end of each.

    Where several end in one pause, those before the last count only if another, whose stream was free, follows at once.
    """
    since = activity.idle_since(end)
    idle = end - since >= _IDLE_NS
    still: Array = np.zeros(len(end), bool)
    places = np.flatnonzero(idle)
    if not len(places):
        return still, since
    order = places[np.argsort(end[places], kind="stable")]
    again = activity.busy_again(end[order])
    still[order] = np.append(again[1:] != again[:-1], True)
    # Of each that starts in a pause, and not because its stream becomes free: the last that has ended by then.
    starts = start[queue_ns < 0]
    ended = np.searchsorted(end[order], starts + _CLOCK_NS, side="right") - 1
    followed = (ended >= 0) & (again[np.maximum(ended, 0)] > starts)
    still[order[ended[followed]]] = True
    return still, since


def _queues(calls: pl.DataFrame, start: Array, end: Array, activity: Activity) -> tuple[Array, Array, Array]:
    """For each the one before on its stream, how soon it follows that where it waited for it, and when it was ready itself."""
    count = len(start)
    queued = np.full(count, NOBODY, np.int64)
    track = calls["track_id"].to_numpy()
    order = np.lexsort((start, track))
    same = track[order][1:] == track[order][:-1]
    queued[order[1:][same]] = order[:-1][same]
    free = np.where(queued >= 0, end[np.maximum(queued, 0)], np.iinfo(np.int64).min // 2)
    launched = calls["launched_ns"].fill_null(NOBODY).to_numpy()
    reached = activity.ended_before(start + _CLOCK_NS)
    if len(activity.launched_ns):
        place = np.searchsorted(activity.launched_ns, launched, side="left") - 1
        by_launch = np.where(place >= 0, activity.reached_ns[np.maximum(place, 0)], 0)
        known = (launched >= 0) & (by_launch <= start + _CLOCK_NS)
        reached = np.where(known, np.maximum(by_launch, launched), reached)
    reached = np.minimum(reached, start)
    on_host = calls["on"].to_numpy() == "host"
    # What a thread does before it sends is seen of no launch: where it is free at last, that is what was waited for.
    waited = np.where(
        on_host, start - free <= _NEXT_ON_THREAD_NS, (start - free <= _NEXT_NS) & (reached < free)
    )
    ready = np.where(waited, np.where(on_host, np.minimum(reached, free), np.maximum(reached, 0)), start)
    return queued, np.where(waited, np.maximum(start - free, 0), NOBODY), ready


def _marks(activity: Activity, end: Array, step: Array, steps: Sequence[Step]) -> tuple[Array, Array, Array]:
    """Where the device's work of each step ends, never before that of the step before it; where its computation does; and
    the communication that is the last to end, where that is one.
    """
    marks, worked, behind = [], [], []
    latest = steps[0].start_ns
    for each in steps:
        own = activity.work_step == each.number
        computed = (activity.work_start_ns[own] + activity.work_dur_ns[own]).max(initial=latest)
        rows = np.flatnonzero(step == each.number)
        last = int(rows[np.argmax(end[rows])]) if len(rows) else NOBODY
        waits = last >= 0 and end[last] > computed
        latest = int(end[last]) if waits else int(computed)
        marks.append(latest)
        worked.append(int(computed))
        behind.append(last if waits else NOBODY)
    return np.array(marks, np.int64), np.array(worked, np.int64), np.array(behind, np.int64)


def _before(at: Array, stalls: Array, end: Array, begin: int) -> tuple[Array, Array]:
    """For each time the last communication that the device had stood still for by then, and when that had ended."""
    if not len(stalls):
        return np.full(len(at), NOBODY, np.int64), np.minimum(np.full(len(at), begin, np.int64), at)
    place = np.searchsorted(end[stalls], at + _CLOCK_NS, side="right") - 1
    # One that is over as soon as it starts does not come before itself.
    itself = (place >= 0) & (stalls[np.maximum(place, 0)] == np.arange(len(at)))
    place = np.where(itself, place - 1, place)
    before = np.where(place >= 0, stalls[np.maximum(place, 0)], NOBODY)
    since = np.where(place >= 0, end[np.maximum(before, 0)], begin)
    return before, np.minimum(since, at)
