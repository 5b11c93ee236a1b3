"""The Program: recorded steps as calls of the host and tasks of the device, ready to run again.

All calls of the host's line (the main thread, and threads that it waits for, such as autograd's) stand in
one order. A call does some host work before it (`gap`), takes its own time (`base`), and may start tasks,
wait for a stream, or both. What cannot be told from the recording takes the median of what can.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device.device_time import names_like
from foretrace.analyze.concepts.host.runtime_calls import DATA_LOADING
from foretrace.errors import MissingDataError
from foretrace.intervals import Intervals
from foretrace.predict.costs.transfer import STAGED_BYTES
from foretrace.predict.numbers import ProgramTime, RecordingTime
from foretrace.trace import Trace

Times = NDArray[np.int64]
Numbers = NDArray[np.int32]

NONE, LAUNCH, SYNC, BLOCKING_COPY, RECORD, WAIT = range(6)
ALL_STREAMS = -1

# CUDA's launch queue holds this many calls; the recordings at hand block at 1,020 to 1,022.
QUEUE_CALLS = 1024
_NEARLY_FULL = 900
_BLOCKED_LAUNCH_NS = 8_000  # far above what any launch takes that does not wait for the queue
_LONGEST_FREE_LAUNCH_NS = 6_000
_FREE_SYNC_NS = 3_000  # what a synchronising call costs when there is nothing to wait for
_WAKE_LIMIT_NS = 15_000  # a call that returns later than this after the work ended waited for something else
_LONG_WAIT_NS = 20_000  # between two tasks of a stream: more than any hand-over takes
_COPY_TAIL_NS = 50_000
_STREAMS = 1 << 32  # more than a device has
QUIET_NS = 200_000  # more than Python takes between two operators

_SYNCS = re.compile(r"(cuda|hip|cu)(Device|Ctx|Stream|Event)Synchronize")
_FREES = re.compile(r"(cuda|hip)Free$|(cu)MemFree")
_RECORDS = re.compile(r"(cuda|hip|cu)EventRecord")
_WAITS = re.compile(r"(cuda|hip|cu)StreamWaitEvent")
_DRIVER = re.compile(
    r"(cuda|hip|cu)(Malloc|Free|Mem(Alloc|Free|Create|Release|Map|Unmap|SetAccess)|Host(Alloc|Register))"
)
_PLAIN_COPY = re.compile(r"(cuda|hip)Memcpy$|cuMemcpy[HD]to[HD]")


@dataclass(frozen=True)
class Program:
    """Calls and tasks, in program order; times in nanoseconds since `start_ns`."""

    start_ns: int
    # calls of the host
    gap_ns: Times
    gap_ops: Numbers  # operators that began in the gap, outside of data loaders
    gap_frames: Numbers  # Python calls and allocations in it: what a rich recording pays for
    quiet_ns: Times  # of the gap as recorded, long stretches in which no operator begins or ends
    base_ns: Times
    in_driver: NDArray[np.bool_]  # calls whose time is the driver's, and the same without a profiler
    kind: NDArray[np.uint8]
    stream: Numbers  # waited for or recorded on; ALL_STREAMS for the whole device
    wake_ns: Times  # from the end of the awaited work to the end of the call
    call_span: NDArray[np.uint32]
    call_start_ns: Times  # as recorded
    call_end_ns: Times
    step: Numbers  # place among `step_starts`
    task_from: Numbers  # tasks of call i are task_from[i] .. task_from[i + 1]
    # tasks of the device
    task_stream: Numbers
    task_dur_ns: Times
    task_latency_ns: Times  # from the call to the start, on an idle stream
    task_gap_ns: Times  # from the end of the task before it on the stream
    task_after: Numbers  # a task of another stream that it waited for, or -1
    task_after_ns: Times  # from that task's end
    task_span: NDArray[np.uint32]
    # the rest
    tail_gap_ns: int  # host work behind the last call
    queue_calls: int
    stream_free_ns: Times  # when each stream has finished what was launched before the recording
    pending_ns: Times  # ends of calls launched before the recording, in order: they fill the queue
    step_calls: Numbers  # number of the first call of each step
    between_ns: Times  # of the gap before a step's first call, what lies between the marks of two steps
    streams: tuple[tuple[int, int], ...]  # device and stream number of each stream
    measured_host_ns: int
    measured_ns: int  # until host and device have both finished

    @property
    def task_call(self) -> NDArray[np.int64]:
        """The call that launched each task."""
        return np.repeat(np.arange(len(self.kind)), np.diff(self.task_from))

    def in_program(self, stretches: RecordingTime) -> ProgramTime:
        """Stretches of the recording on the program's clock."""
        return ProgramTime(Intervals(stretches.start - self.start_ns, stretches.end - self.start_ns))

    def in_recording(self, stretches: ProgramTime) -> RecordingTime:
        """Stretches of the program on the recording's clock."""
        return RecordingTime(Intervals(stretches.start + self.start_ns, stretches.end + self.start_ns))


def build(trace: Trace) -> Program:
    """The program of all recorded steps, or of the whole recording where no step is marked."""
    window = _window(trace)
    calls = _host_line(trace, window)
    if calls.is_empty():
        raise MissingDataError(f"{trace.path.name}: no runtime calls recorded, so there is nothing to replay")
    tasks, before = _tasks(trace, calls)
    return _Builder(trace, window, calls, tasks, before).program()


def _window(trace: Trace) -> tuple[int, int]:
    if trace.steps:
        return trace.steps[0].start_ns, trace.steps[-1].end_ns
    host = trace.spans.filter(pl.col("kind").is_in(("op", "runtime", "annotation", "python")))
    if host.is_empty():
        raise MissingDataError(f"{trace.path.name}: no host activity recorded, so there is nothing to replay")
    start, end = host.select(
        pl.col("start_ns").min(), (pl.col("start_ns") + pl.col("dur_ns")).max().alias("end_ns")
    ).row(0)
    return int(start), int(end)


def _host_line(trace: Trace, window: tuple[int, int]) -> pl.DataFrame:
    """The outermost runtime calls of the main thread and of threads that run while it waits, in order."""
    start, end = window
    host = trace.spans.filter(
        pl.col("kind").is_in(("op", "runtime")) & pl.col("dur_ns").is_not_null()
        & pl.col("start_ns").is_between(start, end, closed="left")
    ).with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))  # fmt: skip
    calls = host.filter(pl.col("kind") == "runtime")
    outer = calls.join(
        calls.select("id"), left_on="parent_id", right_on="id", how="anti", maintain_order="left"
    )
    main = _main_track(trace, outer)
    serial = [
        main,
        *(track for track in outer["track_id"].unique() if track != main and _serial(host, main, track)),
    ]
    return outer.filter(pl.col("track_id").is_in(serial)).sort("start_ns", maintain_order=True)


def _main_track(trace: Trace, calls: pl.DataFrame) -> int:
    """The thread that marks the steps, else the one with most calls."""
    steps = trace.spans.filter(
        (pl.col("kind") == "annotation") & pl.col("name").is_in(names_like(trace.spans, "^ProfilerStep#"))
    ).join(
        trace.tracks.filter(pl.col("device").is_null()).select("id"),
        left_on="track_id",
        right_on="id",
        how="semi",
    )
    frame = steps if not steps.is_empty() else calls
    counted = frame.group_by("track_id").len().sort("len", "track_id", descending=(True, False))
    return int(counted["track_id"][0]) if counted.height else -1


def _serial(host: pl.DataFrame, main: int, track: int) -> bool:
    """Whether a thread works only while the main thread stands still: many of its events in few of main's gaps."""

    def edges(number: int) -> Times:
        rows = host.filter(pl.col("track_id") == number)
        return np.sort(np.concatenate((rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())))

    own, others = edges(track), edges(main)
    if not len(own):
        return False
    return len(own) / len(np.unique(np.searchsorted(others, own))) >= 10


def _tasks(trace: Trace, calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Device work of these calls, with `call` (its row), and the work launched before the recording."""
    device = trace.device_spans.sort("start_ns", maintain_order=True)
    parents = trace.spans.select(
        pl.col("id").alias("launch_id"), pl.col("parent_id"), pl.col("kind").alias("_kind")
    )
    runtime_parent = parents.filter(pl.col("_kind") == "runtime").select("launch_id", "parent_id")
    rows = calls.select(pl.col("id").alias("outer"), pl.int_range(pl.len(), dtype=pl.Int32).alias("call"))
    linked = device.join(runtime_parent, on="launch_id", how="left", maintain_order="left", suffix="_call")
    direct = linked.join(rows, left_on="launch_id", right_on="outer", how="left", maintain_order="left")
    nested = direct.join(
        rows.rename({"call": "outer_call"}),
        left_on="parent_id_call",
        right_on="outer",
        how="left",
        maintain_order="left",
    )
    known = nested.with_columns(call=pl.coalesce("call", "outer_call"))
    return known.drop_nulls("call"), device.filter(pl.col("launch_id").is_null())


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
        self.stream_of = _codes(tasks, number)
        self.before_stream = _codes(before, number)
        self.before_end = (before["end_ns"] - window[0]).to_numpy()

    def program(self) -> Program:
        """Everything, put together."""
        task_from = np.searchsorted(self.call_of, np.arange(len(self.start) + 1)).astype(np.int32)
        launches = task_from[1:] > task_from[:-1]
        self.first_of, self.last_of = task_from[:-1], task_from[1:] - 1
        latency, gap = self._task_delays()
        after, after_ns = self._awaited(gap)
        pending = self._pending()
        kind, base, stream, wake = self._calls(launches, pending)
        reach = np.maximum.accumulate(self.end)
        gaps = self.start - np.concatenate(([0], reach[:-1]))
        steps = np.array([step.start_ns - self.window[0] for step in self.trace.steps] or [0], np.int64)
        ends = np.array([step.end_ns - self.window[0] for step in self.trace.steps] or [0], np.int64)
        between = np.concatenate(([0], np.maximum(steps[1:] - ends[:-1], 0)))
        host_ns = self.window[1] - self.window[0]
        return Program(
            start_ns=self.window[0], gap_ns=np.maximum(gaps, 0), gap_ops=self._begun(("op",), loading=False),
            gap_frames=self._begun(("python",)) + self._allocated(), quiet_ns=self._quiet(), base_ns=base, in_driver=_matches(self.names, _DRIVER), kind=kind, stream=stream, wake_ns=wake,
            call_span=self.calls["id"].to_numpy(),
            call_start_ns=self.start, call_end_ns=self.end, step=(np.searchsorted(steps, self.start, "right") - 1).astype(np.int32),
            task_from=task_from, task_stream=self.stream_of, task_dur_ns=self.task_end - self.task_start,
            task_latency_ns=latency, task_gap_ns=gap, task_after=after, task_after_ns=after_ns, task_span=self.tasks["id"].to_numpy(),
            tail_gap_ns=max(host_ns - int(reach[-1]), 0), queue_calls=self._queue_calls(launches, pending),
            stream_free_ns=self._stream_free(), pending_ns=pending,
            step_calls=np.searchsorted(self.start, steps).astype(np.int32), between_ns=between, streams=self.streams,
            measured_host_ns=host_ns, measured_ns=max(host_ns, int(self.task_end.max(initial=0))),
        )  # fmt: skip

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
        edges = np.sort(np.concatenate((start, ends, [0, self.window[1] - self.window[0]])))
        long = np.diff(edges) >= QUIET_NS
        quiet = Intervals(edges[:-1][long], edges[1:][long])
        begin = np.concatenate(([0], np.maximum.accumulate(self.end)[:-1]))
        return intervals.covered_ns(quiet, begin, np.maximum(self.start, begin))

    def _loading(self) -> Intervals:
        """The time in data loaders."""
        loaders = self.trace.spans.filter(
            pl.col("kind").is_in(("op", "annotation"))
            & pl.col("name").is_in(names_like(self.trace.spans, DATA_LOADING))
        )
        start = (loaders["start_ns"] - self.window[0]).to_numpy()
        return intervals.union(start, start + loaders["dur_ns"].fill_null(0).to_numpy())

    def _allocated(self) -> Numbers:
        rows = self.trace.allocations
        times = np.concatenate(
            (rows["start_ns"].drop_nulls().to_numpy(), rows["end_ns"].drop_nulls().to_numpy())
        )
        return self._count(np.sort(times) - self.window[0])

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
        """For each task, the end of the work before it on its stream; far in the past if there is none."""
        order = np.lexsort((self.task_start, self.stream_of))
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
        limited = previous >= called + usual_latency
        usual_gap = int(np.median(gap[limited])) if limited.any() else 1_200
        return (
            np.where(drained, latency, np.minimum(latency, usual_latency)),
            np.where(limited | ~first, gap, np.minimum(gap, usual_gap)),
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

    def _outstanding(self, launches: NDArray[np.bool_], pending: Times) -> Times:
        """For each call, how many launching calls, itself included, were unfinished when it returned."""
        ends = np.sort(np.concatenate((pending, self.task_end[self.last_of[launches]])))
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
        return kind, base, stream, wake

    def _waits(self, kind: Any, base: Times, stream: Numbers, wake: Times, quartile: Any) -> None:
        """Calls that return when work is done: by name, and others that took long and ended with the device's work."""
        length = self.end - self.start
        named = _matches(self.names, _SYNCS) | _matches(self.names, _FREES)
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
        count = np.searchsorted(self.call_of, call)
        ends = self._stream_free()
        np.maximum.at(ends, self.stream_of[:count], self.task_end[:count])
        return ends

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
        plain = _matches(self.names, _PLAIN_COPY)
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
        records = np.flatnonzero(_matches(self.names, _RECORDS) & (kind == NONE))
        waits = np.flatnonzero(_matches(self.names, _WAITS) & (kind == NONE))
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
        slacks = []
        for wait in waits.tolist():
            at = np.searchsorted(records, wait) - 1
            after = np.flatnonzero((self.call_of > wait) & (self.stream_of == target))
            if at < 0 or not len(after):
                continue
            done = self._last_ends(int(records[at]))[source]
            slack = self.task_start[after[0]] - done
            if slack < 0:
                return None
            slacks.append(slack)
        return float(np.median(slacks)) if slacks else None


def _codes(frame: pl.DataFrame, number: dict[tuple[int, int], int]) -> Numbers:
    """For each row, the number of its device and stream."""
    device, stream = (frame[each].fill_null(0).cast(pl.Int64).to_numpy() for each in ("device", "stream"))
    known = {each * _STREAMS + other: place for (each, other), place in number.items()}
    keys = np.array(sorted(known), np.int64)
    places = np.array([known[key] for key in keys.tolist()], np.int32)
    found: Numbers = places[np.searchsorted(keys, device * _STREAMS + stream)]
    return found


def _matches(names: pl.Series, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    matched = {name: bool(pattern.match(name)) for name in names.unique()}
    return names.replace_strict(matched, return_dtype=pl.Boolean).to_numpy()
