"""Causes of idle time: every gap of a device cut into parts, each with one cause and the host span responsible.

A gap ends with the start of some GPU work. What matters is when the host launched that work:

- before the gap began: the device was not waiting for the host (`kernel-to-kernel`, or `queued` where it
  took long);
- after: until the call began, the device waited for whatever the launching thread did then; then for the call
  itself (`launch call`) and for the work to reach the device (`launch latency`, or `queued`).

Where the launching thread recorded no operator or call, the thread that launched the work before the gap is
looked at: control passes between the main thread and autograd's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host import host_activity, runtime_calls
from foretrace.analyze.concepts.host.host_activity import Pieces
from foretrace.analyze.concepts.host.runtime_calls import NOBODY, Flags, HostSpans, Ids
from foretrace.intervals import Intervals
from foretrace.runtime_names import Effect
from foretrace.trace import Trace

CAUSES = (
    "input",
    "sync",
    "copy",
    "allocator",
    "communication",
    "profiler",
    "code loading",
    "host: operator",
    "host: runtime call",
    "host: Python",
    "host: not recorded",
    "launch call",
    "launch latency",
    "kernel-to-kernel",
    "queued",
    "unexplained",
)
_NAMES = pl.Series(CAUSES, dtype=pl.Enum(CAUSES))
_CODE = {cause: code for code, cause in enumerate(CAUSES)}
# Collectives of these run on the host; NCCL's calls only launch.
_HOST_COLLECTIVE = r"^(?:gloo|mpi|ucc):"
# Judgement: two kernels of one stream follow each other within 10 us, a launch reaches an idle device within 20. HTA
# uses the same threshold between "kernel wait" and "other" (its 30 is compared with microseconds).
_LONG_NS = 30_000
_PROFILER_FRAME = r"(?:^|/)torch/profiler/"
# A launch time that is later than any gap: nothing is known of a launch.
_NEVER = np.iinfo(np.int64).max
_BLOCK = 16_384
_IN_OP, _IN_PYTHON, _IN_PROFILER, _IN_COLLECTIVE, _IN_INPUT, _IN_CALL = (1 << bit for bit in range(6))
# A thread in one of these tells why the device waits; in Python alone it may itself be waiting for another.
_TELLING = _IN_OP | _IN_CALL | _IN_INPUT | _IN_COLLECTIVE


@dataclass(frozen=True)
class Gaps:
    """The gaps of one device in order, with the work around them as span ids (NOBODY where there is none)."""

    free: Intervals
    before: Ids
    after: Ids
    launch: Ids  # the call, or where that was not recorded the operator, that started `after`
    orphan: Flags  # `after` was queued before the recording began


def find_gaps(work: pl.DataFrame, free: Intervals) -> Gaps:
    """The gaps with the device work that ends before each and the first that starts after it."""
    ids = work["id"].cast(pl.Int64).to_numpy()
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    by_end = np.argsort(end, kind="stable")
    last = np.searchsorted(end[by_end], free.start, side="right") - 1
    real = np.flatnonzero(end > start)  # work without a length ends no gap
    place = np.searchsorted(start[real], free.end, side="left")
    known = place < len(real)
    row = np.append(real, 0)[np.where(known, place, len(real))]
    cause = pl.coalesce(pl.col("launch_id"), pl.col("op_id")).cast(pl.Int64).fill_null(NOBODY)
    launch = work.select(cause).to_series().to_numpy()
    return Gaps(
        free=free,
        before=np.where(last >= 0, ids[by_end][np.maximum(last, 0)], NOBODY),
        after=np.where(known, ids[row], NOBODY),
        launch=np.where(known, launch[row], NOBODY),
        orphan=known & work["orphan"].to_numpy()[row],
    )


class Explainer:
    """Finds the causes of gaps; what it needs of the trace is worked out once."""

    def __init__(self, trace: Trace, host: HostSpans) -> None:
        self._host = host
        self._track: Ids = trace.spans["track_id"].cast(pl.Int64).to_numpy()
        named = host.named
        self.loading = named(runtime_calls.DATA_LOADING, "op", "annotation")
        self._sync = host.calls_that(Effect.SYNC)
        self._copy = host.calls_that(Effect.COPY)
        self._allocate = host.calls_that(Effect.ALLOCATE, Effect.FREE)
        self._collective = named(_HOST_COLLECTIVE, "op", "annotation")
        self._profiler = named(_PROFILER_FRAME, "python")
        self._op, self._runtime, self._python = host.kind("op"), host.kind("runtime"), host.kind("python")
        self._members: dict[int, Ids] = {}
        self._overhead, self._code_loading = _overheads(trace)
        self._launchers = _launchers(trace)
        marks = intervals.union(
            [step.start_ns for step in trace.steps], [step.end_ns for step in trace.steps]
        )
        # profiler.step() closes one mark and opens the next: what lies between is its own time.
        by_profiler = (trace.meta.get("step_marks") or {}).get("source", "profiler") == "profiler"
        count = len(marks.end) if by_profiler else 0
        self._between = Intervals(marks.end[: max(count - 1, 0)], marks.start[1:count])

    @cached_property
    def _marks(self) -> NDArray[np.uint8]:
        """For each span, what it and its callers are."""
        own = np.zeros(len(self._host.start_ns), np.uint8)
        for bit, flags in (
            (_IN_OP, self._op),
            (_IN_PYTHON, self._python),
            (_IN_PROFILER, self._profiler),
            (_IN_COLLECTIVE, self._collective),
            (_IN_INPUT, self.loading),
            (_IN_CALL, self._runtime),
        ):
            own[flags] |= bit
        # Beyond the last span stands NOBODY, which is nothing.
        return np.append(self._host.inherited(own), np.uint8(0))

    def explain(self, gaps: Gaps, min_gap_ns: int) -> pl.DataFrame:
        """All parts of the gaps: `gap` (row), `part_at_ns`, `part_ns`, `cause`, `span_id` of the host (or null)."""
        begin, done = self._calls(gaps)
        gap, start, end = self._cut(gaps, begin, done)
        free_start, free_end = gaps.free
        short = (free_end - free_start < min_gap_ns)[gap]
        queued = (done <= free_start)[gap] | gaps.orphan[gap]
        known = (begin < _NEVER)[gap]
        late = (free_end - np.maximum(np.where(gaps.orphan, free_start, done), free_start))[gap] >= _LONG_NS
        code = np.full(len(gap), _CODE["unexplained"])
        code[known & (start >= done[gap])] = _CODE["launch latency"]
        code[queued] = _CODE["kernel-to-kernel"]
        code[(queued | (known & (start >= done[gap]))) & late] = _CODE["queued"]
        calling = known & (start >= begin[gap]) & (start < done[gap])
        copies = (gaps.launch != NOBODY) & self._copy[gaps.launch]
        code[calling] = np.where(copies[gap[calling]], _CODE["copy"], _CODE["launch call"])
        code[short] = _CODE["kernel-to-kernel"]
        waits = known & (start < begin[gap]) & ~short & ~queued
        for name, busy in (("code loading", self._code_loading), ("profiler", self._overhead)):
            inside = intervals.covered_ns(busy, start, end) > 0
            code[inside & ~short] = _CODE[name]
            waits &= ~inside
        owner = np.full(len(gap), NOBODY, np.int64)
        called = np.flatnonzero(
            np.isin(code, [_CODE[cause] for cause in ("launch call", "launch latency", "copy")])
        )
        owner[called] = gaps.launch[gap[called]]
        rows = np.flatnonzero(waits)
        parts = self._host_parts(gaps, gap[rows], start[rows], end[rows])
        rest = ~waits
        return pl.concat((_frame(gap[rest], start[rest], end[rest], code[rest], owner[rest]), parts))

    def _calls(self, gaps: Gaps) -> tuple[Ids, Ids]:
        """When the launch of the work after each gap began and was done; _NEVER where none is known."""
        known = gaps.launch != NOBODY
        begin = np.where(known, self._host.start_ns[gaps.launch], _NEVER)
        # An operator, taken where the call was not recorded, says when the launch began, not when it was done.
        done = np.where(known & self._runtime[gaps.launch], self._host.end_ns[gaps.launch], begin)
        return begin, done

    def _cut(self, gaps: Gaps, begin: Ids, done: Ids) -> tuple[Ids, Ids, Ids]:
        """The gaps, cut where the launch began and ended and where the profiler's own time begins and ends."""
        free = gaps.free
        inner = [times[(times > free.start) & (times < free.end)] for times in (begin, done)]
        sets = (free, self._overhead, self._code_loading, self._between)
        edges = np.sort(
            np.concatenate([*inner, *(part for stretches in sets for part in stretches)]), kind="stable"
        )
        edges = edges[np.append(edges[1:] > edges[:-1], True)] if len(edges) else edges
        start, end = edges[:-1], edges[1:]
        gap = np.searchsorted(free.start, start, side="right") - 1
        inside = (gap >= 0) & (start < free.end[np.maximum(gap, 0)]) if len(free.start) else gap >= 0
        return gap[inside], start[inside], end[inside]

    def _host_parts(self, gaps: Gaps, gap: Ids, start: Ids, end: Ids) -> pl.DataFrame:
        """Stretches in which the device waited for the host, cut by what the host did."""
        frames = [_frame(gap[:0], start[:0], end[:0], gap[:0], gap[:0])]
        track = self._track[gaps.launch[gap]]
        for thread, rows in _blocks(track):
            pieces = self._doing(thread, start[rows], end[rows])
            of_gap = gap[rows][pieces.window]
            for part_gap, part in self._other_thread(gaps, thread, of_gap, pieces):
                codes = self._classify(part)
                frames.append(_frame(part_gap, part.start_ns, part.end_ns, codes, part.span_id))
        return pl.concat(frames)

    def _doing(self, track: int, start: Ids, end: Ids) -> Pieces:
        if track not in self._members:
            self._members[track] = np.flatnonzero(self._track == track)
        return host_activity.doing(self._host, self._members[track], start, end)

    def _other_thread(self, gaps: Gaps, track: int, gap: Ids, pieces: Pieces) -> list[tuple[Ids, Pieces]]:
        """The pieces; where the thread had no operator or call open, the other thread's."""
        before = gaps.before[gap]
        launcher = np.where(before == NOBODY, NOBODY, self._launchers[before])
        other = np.where(launcher == NOBODY, track, self._track[launcher])
        ask = (self._marks[pieces.span_id] & _TELLING == 0) & (other != track)
        parts = [(gap[~ask], Pieces(*(column[~ask] for column in pieces)))]
        for thread in np.unique(other[ask]).tolist():
            rows = np.flatnonzero(ask & (other == thread))
            others = self._doing(thread, pieces.start_ns[rows], pieces.end_ns[rows])
            busy = self._marks[others.span_id] & _TELLING != 0
            own = pieces.span_id[rows][others.window]
            who = np.where(busy | (own == NOBODY), others.span_id, own)
            parts.append((gap[rows][others.window], others._replace(span_id=who)))
        return parts

    def _classify(self, pieces: Pieces) -> Ids:
        """The cause of each piece, by the innermost span over it and that span's callers."""
        who = pieces.span_id
        marks = self._marks[who]
        code = np.full(len(who), _CODE["host: not recorded"])
        for cause, bit in (("host: Python", _IN_PYTHON), ("host: operator", _IN_OP)):
            code[marks & bit != 0] = _CODE[cause]
        code[self._python[who] & (who != NOBODY)] = _CODE["host: Python"]
        for cause, bit in (("profiler", _IN_PROFILER), ("communication", _IN_COLLECTIVE)):
            code[marks & bit != 0] = _CODE[cause]
        for cause, flags in (
            ("host: runtime call", self._runtime),
            ("copy", self._copy),
            ("allocator", self._allocate),
            ("sync", self._sync),
        ):
            code[flags[who] & (who != NOBODY)] = _CODE[cause]
        code[marks & _IN_INPUT != 0] = _CODE["input"]
        idle = np.isin(code, (_CODE["host: not recorded"], _CODE["host: Python"]))
        between = intervals.covered_ns(self._between, pieces.start_ns, pieces.end_ns) > 0
        code[idle & between] = _CODE["profiler"]
        return code


def _blocks(track: Ids) -> Iterator[tuple[int, Ids]]:
    """The rows of each track, so many at a time: what is made of them is then small beside the trace."""
    for thread in np.unique(track).tolist():
        rows = np.flatnonzero(track == thread)
        for first in range(0, len(rows), _BLOCK):
            yield thread, rows[first : first + _BLOCK]


def _frame(gap: Ids, start: Ids, end: Ids, code: Ids, span: Ids) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "gap": pl.Series(gap, dtype=pl.Int64),
            "part_at_ns": pl.Series(start, dtype=pl.Int64),
            "part_ns": pl.Series(end - start, dtype=pl.Int64),
            "cause": _NAMES.gather(code),
            "span_id": pl.Series(span, dtype=pl.Int64).replace(NOBODY, None),
        }
    )


def _overheads(trace: Trace) -> tuple[Intervals, Intervals]:
    """When the profiler worked for itself, and when GPU code was loaded or compiled at its first use."""
    spans = trace.spans.filter((pl.col("kind") == "overhead") & (pl.col("dur_ns") > 0)).with_columns(
        pl.col("name").cast(pl.String), end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )
    loading = pl.col("name").is_in(runtime_calls.LOADING)
    own = ~loading & (pl.col("name") != runtime_calls.QUEUE_FULL)
    return _covered(spans.filter(own)), _covered(spans.filter(loading))


def _covered(spans: pl.DataFrame) -> Intervals:
    return intervals.union(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())


def _launchers(trace: Trace) -> Ids:
    """For each device span, the call (or operator) that started it; NOBODY elsewhere."""
    launcher = np.full(trace.spans.height, NOBODY, np.int64)
    work = trace.device_spans
    cause = pl.coalesce(pl.col("launch_id"), pl.col("op_id")).cast(pl.Int64).fill_null(NOBODY)
    launcher[work["id"].to_numpy()] = work.select(cause).to_series().to_numpy()
    return launcher
