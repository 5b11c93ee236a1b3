"""How a recording becomes a Program: what each call does, costs and waits for, read from when its work ran."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host import settled_steps
from foretrace.analyze.concepts.host.cpu_program import computes_on_cpu
from foretrace.analyze.concepts.host.runtime_calls import DATA_LOADING
from foretrace.analyze.concepts.names.named_spans import ids_like
from foretrace.errors import MissingDataError
from foretrace.intervals import Intervals
from foretrace.predict import cpu_host, host_line
from foretrace.predict.costs.transfer import STAGED_BYTES
from foretrace.predict.library_streams import NO_OPERATOR, Launched, awaited
from foretrace.predict.program import (
    ALL_STREAMS,
    BLOCKING_COPY,
    LAUNCH,
    NONE,
    RECORD,
    SYNC,
    WAIT,
    Numbers,
    Program,
    Times,
)
from foretrace.runtime_names import Effect, calls_that
from foretrace.sourced import JUDGEMENT, Count, Nanoseconds
from foretrace.trace import Trace

_AT_HAND = "the recordings of the corpus and the pairs of docs/accuracy.md"
QUEUE_CALLS = Count(
    1024, "calls that CUDA's launch queue holds", f"{_AT_HAND}: launches block at 1,020 to 1,022"
)
_NEARLY_FULL = Count(900, "calls in the queue from which a slow launch may wait for it", JUDGEMENT)
_BLOCKED_LAUNCH_NS = Nanoseconds(8_000, "a launch, far above any that does not wait for the queue", _AT_HAND)
_LONGEST_FREE_LAUNCH_NS = Nanoseconds(6_000, "a launch that does not wait for the queue", _AT_HAND)
_FREE_SYNC_NS = Nanoseconds(3_000, "a synchronising call with nothing to wait for", _AT_HAND)
_WAKE_LIMIT_NS = Nanoseconds(
    15_000, "a call's return after the work ended; later, it waited for something else", JUDGEMENT
)
_LONG_WAIT_NS = Nanoseconds(20_000, "the gap between two tasks of a stream, above any hand-over", JUDGEMENT)
_COPY_TAIL_NS = Nanoseconds(50_000, "a copy's last piece, still on its way when its call returns", _AT_HAND)
QUIET_NS = Nanoseconds(
    200_000, "the host without events: more than Python takes between two operators", _AT_HAND
)


def build(trace: Trace) -> Program:
    """The program of all recorded steps, or of the whole recording where no step is marked."""
    window = host_line.window(trace)
    calls = host_line.host_line(trace, window)
    if calls.is_empty() and trace.steps and computes_on_cpu(trace):
        calls = cpu_host.moments(trace, window)
    if calls.is_empty():
        raise MissingDataError(f"{trace.path.name}: no runtime calls recorded, so there is nothing to replay")
    tasks, before = host_line.tasks(trace, calls)
    return _Builder(trace, window, calls, tasks, before).program()


class _Builder:
    """Works out what each call and task does."""

    def __init__(
        self,
        trace: Trace,
        window: tuple[int, int],
        calls: pl.DataFrame,
        tasks: pl.DataFrame,
        before: pl.DataFrame,
    ) -> None:
        self.trace, self.window, self.calls = trace, window, calls
        self.start = (calls["start_ns"] - window[0]).to_numpy()
        self.end = (calls["end_ns"] - window[0]).to_numpy()
        self.names = calls["name"].cast(pl.String)
        tasks = tasks.sort("call", "start_ns", maintain_order=True)
        self.tasks = tasks
        self.call_of = tasks["call"].to_numpy()
        self.task_start = (tasks["start_ns"] - window[0]).to_numpy()
        self.task_end = (tasks["end_ns"] - window[0]).to_numpy()
        self.before = before
        keys = pl.concat((tasks.select("device", "stream"), before.select("device", "stream"))).unique(
            maintain_order=True
        )
        self.streams = tuple((device or 0, stream or 0) for device, stream in keys.iter_rows())
        number = {key: index for index, key in enumerate(self.streams)}
        self.stream_of = host_line.stream_numbers(tasks, number)
        self.before_stream = host_line.stream_numbers(before, number)
        self.before_end = (before["end_ns"] - window[0]).to_numpy()

    def program(self) -> Program:
        """Everything, put together."""
        task_from = np.searchsorted(self.call_of, np.arange(len(self.start) + 1)).astype(np.int32)
        launches = task_from[1:] > task_from[:-1]
        self.first_of, self.last_of = task_from[:-1], task_from[1:] - 1
        latency, gap = self._task_delays()
        after, after_ns = self._awaited(gap)
        self._within_operators(gap, latency, after, after_ns)
        pending = self._pending()
        kind, base, stream, wake = self._calls(launches, pending)
        reach = np.maximum.accumulate(self.end)
        before = np.concatenate(([0], reach[:-1]))
        # The profiler's own allocations are no work of the program.
        requests = self._buffer_requests()
        gaps = self.start - before - intervals.covered_ns(requests, before, np.maximum(self.start, before))
        base = np.maximum(base - intervals.covered_ns(requests, self.start, self.end), 0)
        steps = np.array([step.start_ns - self.window[0] for step in self.trace.steps] or [0], np.int64)
        ends = np.array([step.end_ns - self.window[0] for step in self.trace.steps] or [0], np.int64)
        between = np.concatenate(([0], np.maximum(steps[1:] - ends[:-1], 0)))
        host_ns = self.window[1] - self.window[0]
        return Program(
            start_ns=self.window[0], gap_ns=np.maximum(gaps, 0), gap_ops=self._begun(("op",), loading=False),
            gap_frames=self._begun(("python",)) + self._allocated(), quiet_ns=self._quiet(), base_ns=base, in_driver=calls_that(self.names, Effect.ALLOCATE, Effect.FREE), kind=kind, stream=stream, wake_ns=wake,
            call_span=self.calls["id"].to_numpy(),
            call_start_ns=self.start, call_end_ns=self.end, step=(np.searchsorted(steps, self.start, "right") - 1).astype(np.int32),
            task_from=task_from, task_stream=self.stream_of, task_dur_ns=self.task_end - self.task_start,
            task_latency_ns=latency, task_gap_ns=gap, task_after=after, task_after_ns=after_ns, task_span=self.tasks["id"].to_numpy(),
            tail_gap_ns=max(host_ns - int(reach[-1]), 0), queue_calls=self._queue_calls(launches, pending),
            stream_free_ns=self._stream_free(), pending_ns=pending,
            step_calls=np.searchsorted(self.start, steps).astype(np.int32), between_ns=between, streams=self.streams,
            measured_host_ns=host_ns, measured_ns=max(host_ns, int(self.task_end.max(initial=0))),
        )  # fmt: skip

    def _buffer_requests(self) -> Intervals:
        requests = settled_steps.buffer_requests(self.trace)
        return Intervals(requests.start - self.window[0], requests.end - self.window[0])

    def _begun(self, kinds: tuple[str, ...], *, loading: bool = True) -> Numbers:
        """How many spans of these kinds began since the call before, on the threads of the host's line."""
        tracks = self.calls["track_id"].unique().implode()
        rows = self.trace.spans.filter(pl.col("kind").is_in(kinds) & pl.col("track_id").is_in(tracks))
        start = (rows["start_ns"] - self.window[0]).to_numpy()
        if not loading:  # a loader computes on the host: its operators are no sign of launches
            start = start[intervals.covered_ns(self._loading(), start, start + 1) == 0]
        return self._count(start)

    def _quiet(self) -> Times:
        """Of each gap, the time in long stretches without the begin or end of an operator or call of the host's line."""
        tracks = self.calls["track_id"].unique().implode()
        events = self.trace.spans.select("kind", "track_id", "start_ns", "dur_ns").filter(
            pl.col("kind").is_in(("op", "runtime"))
            & pl.col("track_id").is_in(tracks)
            & pl.col("dur_ns").is_not_null()
        )
        start = (events["start_ns"] - self.window[0]).to_numpy()
        ends = start + events["dur_ns"].to_numpy()
        edges = np.concatenate((start, ends, [0, self.window[1] - self.window[0]]))
        edges = np.sort(edges, kind="stable")
        long = np.diff(edges) >= QUIET_NS
        quiet = Intervals(edges[:-1][long], edges[1:][long])
        begin = np.concatenate(([0], np.maximum.accumulate(self.end)[:-1]))
        return intervals.covered_ns(quiet, begin, np.maximum(self.start, begin))

    def _loading(self) -> Intervals:
        """The time in data loaders."""
        loading = ids_like(self.trace, ("op", "annotation"), DATA_LOADING)
        loaders = self.trace.spans.select("start_ns", "dur_ns")[loading]
        start = (loaders["start_ns"] - self.window[0]).to_numpy()
        return intervals.union(start, start + loaders["dur_ns"].fill_null(0).to_numpy())

    def _allocated(self) -> Numbers:
        rows = self.trace.allocations
        times = np.concatenate(
            (rows["start_ns"].drop_nulls().to_numpy(), rows["end_ns"].drop_nulls().to_numpy())
        )
        return self._count(np.sort(times, kind="stable") - self.window[0])

    def _count(self, times: Times) -> Numbers:
        places = np.searchsorted(times, self.start)
        return np.diff(places, prepend=np.searchsorted(times, 0)).clip(0).astype(np.int32)

    def _stream_free(self) -> Times:
        free = np.zeros(max(len(self.streams), 1), np.int64)
        np.maximum.at(free, self.before_stream, self.before_end)
        return free

    def _pending(self) -> Times:
        """Ends of the calls that were launched before the recording and were not finished when it began."""
        if self.before.is_empty():
            return np.empty(0, np.int64)
        ids = self.trace.args.filter(pl.col("key") == "correlation").select(
            "span_id", pl.col("int").alias("group")
        )
        known = self.before.join(ids, left_on="id", right_on="span_id", how="left")
        grouped = known.with_columns(group=pl.coalesce(pl.col("group"), -pl.col("id").cast(pl.Int64)))
        ends = grouped.group_by("group").agg(pl.col("end_ns").max() - self.window[0])["end_ns"].to_numpy()
        return np.sort(ends[ends > 0])

    def _previous(self) -> Times:
        """For each task, the end of the work launched before it on its stream; far in the past if there is none."""
        order = np.argsort(self.stream_of, kind="stable")
        previous = np.full(len(order), -(1 << 60), np.int64)
        stream = self.stream_of[order]
        same = stream[1:] == stream[:-1]
        # A stream's work may overlap: what counts is the latest end. One stream's ends lie above all of the stream before.
        apart = stream.astype(np.int64) * (int(np.ptp(self.task_end)) + 1)
        reach = np.maximum.accumulate(self.task_end[order] + apart) - apart
        previous[order[1:][same]] = reach[:-1][same]
        free = self._stream_free()
        first = np.ones(len(order), bool)
        first[1:] = ~same
        heads = order[first]
        used = np.isin(self.stream_of[heads], self.before_stream)
        previous[heads[used]] = free[self.stream_of[heads[used]]]
        return previous

    def _overtakes(self) -> NDArray[np.bool_]:
        """Tasks that began before one launched earlier on their stream, which cannot be: their times tell no gap."""
        overtakes = np.zeros(len(self.task_start), bool)
        for stream in range(len(self.streams)):
            tasks = np.flatnonzero(self.stream_of == stream)
            overtakes[tasks] = self.task_start[tasks] < np.maximum.accumulate(self.task_start[tasks])
        return overtakes

    def _task_delays(self) -> tuple[Times, Times]:
        """Latency from the call and gap from the task before, each as observed where it was what held the task back."""
        if not len(self.task_start):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        called = self.start[self.call_of]
        previous = self._previous()
        latency, gap = self.task_start - called, self.task_start - previous
        first = np.ones(len(called), bool)
        first[1:] = self.call_of[1:] != self.call_of[:-1]
        drained = (previous <= called) & first
        usual_latency = int(np.median(latency[drained])) if drained.any() else _LONGEST_FREE_LAUNCH_NS
        overtakes = self._overtakes()
        limited = (previous >= called + usual_latency) & ~overtakes
        usual_gap = int(np.median(gap[limited])) if limited.any() else 1_200
        return (
            np.where(drained, latency, np.minimum(latency, usual_latency)),
            np.where(overtakes, usual_gap, np.where(limited | ~first, gap, np.minimum(gap, usual_gap))),
        )

    def _awaited(self, gap: Times) -> tuple[Numbers, Times]:
        """For tasks that began just when one of another stream had ended, that task; their gap becomes a usual one.

        The recording names no events: a long wait on an own stream that ends with another stream's work is one.
        """
        after = np.full(len(gap), -1, np.int32)
        after_ns = np.zeros(len(gap), np.int64)
        if len(self.streams) < 2 or not len(gap):
            return after, after_ns
        usual = int(np.median(gap))
        by_end = np.argsort(self.task_end, kind="stable")
        ends = self.task_end[by_end]
        for task in np.flatnonzero(gap > max(_LONG_WAIT_NS, 5 * usual)).tolist():
            last = int(np.searchsorted(ends, self.task_start[task], "right"))
            for place in range(last - 1, max(last - 9, -1), -1):
                other = int(by_end[place])
                late = int(self.task_start[task] - self.task_end[other])
                if late > _WAKE_LIMIT_NS:
                    break
                if self.stream_of[other] != self.stream_of[task] and self.call_of[other] < self.call_of[task]:
                    after[task], after_ns[task] = other, late
                    gap[task] = min(usual, int(gap[task]))
                    break
        return after, after_ns

    def _within_operators(self, gap: Times, latency: Times, after: Numbers, after_ns: Times) -> None:
        """What work of operators with streams of their own waits for, and what follows them."""
        if len(self.streams) < 2 or not len(gap):
            return
        tasks = Launched(
            self.tasks["op_id"].cast(pl.Int64).fill_null(NO_OPERATOR).to_numpy(), self.call_of, self.stream_of,
            self.task_start, self.task_end,
            np.flatnonzero(calls_that(self.names, Effect.RECORD)), np.flatnonzero(calls_that(self.names, Effect.AWAIT)),
        )  # fmt: skip
        waiting = awaited(tasks, np.maximum(self.start[self.call_of] + latency, self._previous()))
        after[waiting.tasks], after_ns[waiting.tasks] = waiting.others, waiting.late_ns
        gap[waiting.tasks] = np.minimum(gap[waiting.tasks], int(np.median(gap)))

    def _outstanding(self, launches: NDArray[np.bool_], pending: Times) -> Times:
        """For each call, how many launching calls, itself included, were unfinished when it returned."""
        ends = np.sort(np.concatenate((pending, self.task_end[self.last_of[launches]])), kind="stable")
        started = np.cumsum(launches) + len(pending)
        return started - np.searchsorted(ends, self.end, "right")

    def _queue_calls(self, launches: NDArray[np.bool_], pending: Times) -> int:
        held = launches & (self.end - self.start > 5 * _BLOCKED_LAUNCH_NS)
        counts = self._outstanding(launches, pending)[held]
        counts = counts[counts >= _NEARLY_FULL]
        return int(np.median(counts)) if len(counts) >= 5 else QUEUE_CALLS

    def _calls(
        self, launches: NDArray[np.bool_], pending: Times
    ) -> tuple[NDArray[np.uint8], Times, Numbers, Times]:
        """Kind, own time, stream and wake-up time of every call."""
        length = self.end - self.start
        kind = np.where(launches, LAUNCH, NONE).astype(np.uint8)
        base, wake = length.copy(), np.zeros(len(length), np.int64)
        stream = np.full(len(length), ALL_STREAMS, np.int32)
        quartile = self.calls.select(pl.col("dur_ns").quantile(0.25).over("name"))["dur_ns"].to_numpy()
        full = (
            launches & (self._outstanding(launches, pending) >= _NEARLY_FULL) & (length > _BLOCKED_LAUNCH_NS)
        )
        base[full] = np.minimum(quartile[full], _LONGEST_FREE_LAUNCH_NS).astype(np.int64)
        self._waits(kind, base, stream, wake, quartile)
        self._copies(kind, base, wake, launches)
        self._events(kind, stream)
        if (own := self._profilers_own(kind)) is not None:
            kind[own], base[own] = NONE, min(int(length[own]), _FREE_SYNC_NS)
        return kind, base, stream, wake

    def _profilers_own(self, kind: Any) -> int | None:
        """The profiler waits for the device once, when it ends: behind all launches, and nothing else of that name does."""
        named = np.flatnonzero(calls_that(self.names, Effect.WHOLE_DEVICE))
        behind = (
            len(named) == 1
            and kind[named[0]] == SYNC
            and not np.isin(kind[named[0] :], (LAUNCH, BLOCKING_COPY)).any()
        )
        return int(named[0]) if behind and len(self.trace.steps) > 1 else None

    def _waits(self, kind: Any, base: Times, stream: Numbers, wake: Times, quartile: Any) -> None:
        """Calls that return when work is done: by name, and others that took long and ended with the device's work."""
        length = self.end - self.start
        named = calls_that(self.names, Effect.SYNC, Effect.FREE | Effect.BLOCKS)
        odd = (kind == NONE) & ~named & (length > 20_000) & (length > 5 * quartile)
        for call in np.flatnonzero((named | odd) & (kind == NONE)).tolist():
            ends = self._last_ends(call)
            late = self.end[call] - ends
            possible = (
                (late >= 0) & (ends > self.start[call]) & (late <= max(_WAKE_LIMIT_NS, length[call] // 20))
            )
            if possible.any():
                which = int(np.argmin(np.where(possible, late, np.iinfo(np.int64).max)))
                kind[call], stream[call] = SYNC, which
                base[call], wake[call] = min(int(length[call]), _FREE_SYNC_NS), int(late[which])
            elif named[call] and (ends <= self.start[call]).all():
                kind[call] = SYNC  # there was nothing to wait for
        waited = (kind == SYNC) & (wake > 0)
        usual = int(np.median(wake[waited])) if waited.any() else 5_000
        wake[(kind == SYNC) & (wake == 0)] = usual

    def _last_ends(self, call: int) -> Times:
        """For each stream, when the last work launched before this call ended."""
        return np.array([ends[np.searchsorted(calls, call)] for calls, ends in self._ended], np.int64)

    @cached_property
    def _ended(self) -> list[tuple[Times, Times]]:
        """For each stream, the calls that launched its tasks, and when what was launched before each, and in all, ended."""
        ended = []
        for stream, free in enumerate(self._stream_free().tolist()):
            tasks = np.flatnonzero(self.stream_of == stream)
            ends = np.maximum.accumulate(np.append(free, self.task_end[tasks]))
            ended.append((self.call_of[tasks], ends))
        return ended

    def _copies(self, kind: Any, base: Times, wake: Times, launches: NDArray[np.bool_]) -> None:
        """Copies whose call returns only when the data is there."""
        copies = self.trace.copies.select(
            pl.col("span_id").alias("id"), "size_bytes", "direction", "pageable"
        )
        rows = self.tasks.select("id").join(copies, on="id", how="left", maintain_order="left")
        large = (rows["size_bytes"].fill_null(0) > STAGED_BYTES) | (rows["direction"] == "DtoH").fill_null(
            False
        )
        pageable = (rows["pageable"].fill_null(False) & large).to_numpy()
        plain = calls_that(self.names, Effect.COPY | Effect.BLOCKS)
        calls = np.flatnonzero(launches)
        last = self.last_of[calls]
        early = self.task_end[last] - self.end[calls]  # the last piece may still be on its way
        allowed = np.maximum(_COPY_TAIL_NS, (self.task_end[last] - self.task_start[last]) // 20)
        waits = (plain[calls] | pageable[last]) & (early <= allowed)
        calls = calls[waits]
        kind[calls] = BLOCKING_COPY
        wake[calls] = -early[waits]
        base[calls] = np.minimum(self.end[calls] - self.start[calls], _FREE_SYNC_NS)

    def _events(self, kind: Any, stream: Numbers) -> None:
        """Events between streams. The recording names none, so an edge is kept only if every wait respects it."""
        if len(self.streams) < 2:
            return
        records = np.flatnonzero(calls_that(self.names, Effect.RECORD) & (kind == NONE))
        waits = np.flatnonzero(calls_that(self.names, Effect.AWAIT) & (kind == NONE))
        if not len(records) or not len(waits):
            return
        best: tuple[float, int, int] | None = None
        for source in range(len(self.streams)):
            for target in range(len(self.streams)):
                slack = self._slack(records, waits, source, target)
                if slack is not None and (best is None or slack < best[0]):
                    best = (slack, source, target)
        if best:
            kind[records], stream[records] = RECORD, best[1]
            kind[waits], stream[waits] = WAIT, best[2]

    def _slack(self, records: Any, waits: Any, source: int, target: int) -> float | None:
        """How closely the target's work follows the source's at each wait; None if it ever runs ahead of it."""
        if source == target:
            return None
        calls, ends = self._ended[source]
        following = np.flatnonzero(self.stream_of == target)
        at = np.searchsorted(records, waits) - 1
        after = np.searchsorted(self.call_of[following], waits, side="right")
        known = (at >= 0) & (after < len(following))
        done = ends[np.searchsorted(calls, records[at[known]])]
        slacks = self.task_start[following[after[known]]] - done
        return float(np.median(slacks)) if len(slacks) and (slacks >= 0).all() else None
