"""One step of several ranks on the common clock: what each rank's device did, and its communications beside that.

Made from the summaries. Between two communications these hold how long a rank computed and waited for input, not in which
order: pauses are put where no communication is under way, as far as they fit there, and the input first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.errors import UsageError
from foretrace.ranks.gathered import Array
from foretrace.ranks.reduce import Ranks
from foretrace.ranks.summary import KINDS, NOBODY, STEP

PARTS = ("computation", "communication", "waiting", "input", "other")
COMPUTATION, COMMUNICATION, WAITING, INPUT, OTHER = range(len(PARTS))
MOST_ROWS = 16
_MOST_LATE = 4  # of the rows that nobody asked for
_MOST_SPANS = 40_000  # of all rows together; those that are beyond it are left out
_SPANS = {
    "rank": pl.Int64,
    "part": pl.Int64,  # of PARTS
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "communication": pl.Int64,  # that it communicated in or waited for; NOBODY where it is something else
}
_CALLS = {
    "rank": pl.Int64,
    "communication": pl.Int64,
    "kind": pl.String,
    "arrive_ns": pl.Int64,
    "latest_ns": pl.Int64,  # when the last member arrived
    "leave_ns": pl.Int64,
    "last_rank": pl.Int64,
}
Span = tuple[int, float, float, int]  # part, start, end, communication


@dataclass(frozen=True)
class Stack:
    """Rows of ranks; times are nanoseconds on the common clock, from the earliest begin of the step among these ranks."""

    step: int
    ranks: tuple[int, ...]
    left_out: tuple[int, ...]  # ranks that were chosen and would have been too much to draw
    spans: pl.DataFrame  # of each rank one after the other without a gap, from the step's begin to its end
    calls: pl.DataFrame  # communications of the step, also those that computation hides


def worst_step(ranks: Ranks) -> int:
    """The step in which a rank was latest."""
    late = np.nan_to_num(ranks.lateness_ns)
    return int(ranks.job.steps[int(late.max(axis=0).argmax())])


def choose(ranks: Ranks, step: int, asked: Sequence[int]) -> list[int]:
    """The ranks to stack: those asked for, the latest ones, and the nearest that have the role of any of these."""
    job = ranks.job
    place = _place(ranks, step)
    known = {rank: member for member, rank in enumerate(job.ranks.tolist())}
    unknown = [rank for rank in asked if rank not in known]
    if unknown:
        raise UsageError(f"rank {unknown[0]} was not read")
    chosen = list(dict.fromkeys(asked))[:MOST_ROWS]
    late = np.nan_to_num(ranks.lateness_ns[:, place])
    latest = [member for member in np.argsort(-late, kind="stable").tolist() if late[member] > 0]
    for member in latest[:_MOST_LATE]:
        if len(chosen) < MOST_ROWS and int(job.ranks[member]) not in chosen:
            chosen.append(int(job.ranks[member]))
    anchors = np.array([known[rank] for rank in chosen] or [0])
    away = np.abs(np.arange(len(job.ranks))[:, None] - anchors).min(axis=1)
    others = ~np.isin(ranks.roles.role, ranks.roles.role[anchors])
    for member in np.lexsort((away, others)).tolist():
        if len(chosen) >= MOST_ROWS:
            break
        if int(job.ranks[member]) not in chosen:
            chosen.append(int(job.ranks[member]))
    return sorted(chosen)


def stack(ranks: Ranks, step: int, chosen: Sequence[int]) -> Stack:
    """One step of these ranks; those that have no such step are left out."""
    _place(ranks, step)
    spans: list[tuple[int, int, int, int, int]] = []
    calls: list[tuple[int, int, str, int, int, int, int]] = []
    shown: list[int] = []
    too_much: list[int] = []
    members = np.searchsorted(ranks.job.ranks, chosen).tolist()
    lines = {member: _Line(ranks, member) for member in members}
    bounds = {member: line.bounds(step) for member, line in lines.items()}
    begins = [line.true(between[0]) for member, line in lines.items() if (between := bounds[member])]
    zero = min(begins, default=0.0)
    for rank, member in zip(chosen, members, strict=True):
        line, between = lines[member], bounds[member]
        if between is None:
            continue
        own = line.spans(*between)
        if shown and len(spans) + len(own) > _MOST_SPANS:
            too_much.append(rank)
            continue
        shown.append(rank)
        for part, start, end, number in own:
            since, until = round(line.true(start) - zero), round(line.true(end) - zero)
            if until > since:
                spans.append((rank, part, since, until, number))
        calls += [(rank, *call) for call in line.calls(step, zero)]
    return Stack(
        step,
        tuple(shown),
        tuple(too_much),
        pl.DataFrame(spans, schema=_SPANS, orient="row"),
        pl.DataFrame(calls, schema=_CALLS, orient="row"),
    )


def _place(ranks: Ranks, step: int) -> int:
    places = np.flatnonzero(ranks.job.steps == step)
    if not len(places):
        raise UsageError(f"no step {step}")
    return int(places[0])


class _Line:
    """One rank's time, on its own clock."""

    def __init__(self, ranks: Ranks, member: int) -> None:
        self.ranks, self.member = ranks, member
        job, measured = ranks.job, ranks.measured
        first, last = np.searchsorted(job.member, [member, member + 1])
        self.rows = np.arange(first, last)
        self.begin = float(job.begin_ns[member])
        self.talks = self.rows[job.kind[self.rows] != STEP]
        self.start, self.end = job.start_ns[self.talks], job.end_ns[self.talks]
        latest = measured.latest_ns[ranks.matches.number[self.talks]]
        # Where clocks are not known better, somebody may seem to arrive after this rank left.
        self.latest = np.clip(self._local(latest), self.start, self.end)
        still = self.rows[job.still[self.rows]]
        self.stalls = still[np.argsort(job.end_ns[still], kind="stable")]
        self.by_before = self.rows[np.argsort(job.before[self.rows], kind="stable")]
        self.befores = job.before[self.by_before]

    def true(self, local_ns: float) -> float:
        return float(self.ranks.aligned.true_ns(np.array([self.member]), np.array([local_ns]))[0])

    def _local(self, true_ns: Array) -> Array:
        clocks = self.ranks.aligned
        back: Array = (true_ns + clocks.offset_ns[self.member]) / (1 - clocks.drift[self.member])
        return back

    def bounds(self, step: int) -> tuple[float, float] | None:
        """From where the device's work of the step before ended to where that of this one ended."""
        job = self.ranks.job
        marks = self.rows[job.kind[self.rows] == STEP]
        place = np.flatnonzero(job.step[marks] == step)
        if not len(place):
            return None
        end = float(job.end_ns[marks[place[0]]])
        earlier = job.end_ns[marks[job.step[marks] < step]]
        return float(earlier.max()) if len(earlier) else self.begin, end

    def calls(self, step: int, zero: float) -> list[tuple[int, str, int, int, int, int]]:
        """The communications of a step."""
        job, matches, measured = self.ranks.job, self.ranks.matches, self.ranks.measured
        own = self.talks[job.step[self.talks] == step]
        told = []
        for row in own[np.argsort(job.start_ns[own], kind="stable")].tolist():
            number = int(matches.number[row])
            arrive, leave = float(measured.arrive_ns[row]), float(measured.leave_ns[row])
            latest = min(max(float(measured.latest_ns[number]), arrive), leave)
            last = int(job.ranks[job.member[measured.last_row[number]]])
            times = (round(arrive - zero), round(latest - zero), round(leave - zero))
            told.append((number, KINDS[int(job.kind[row])], *times, last))
        return told

    def spans(self, low: float, high: float) -> list[Span]:
        """What the device did between two times, one after the other."""
        job = self.ranks.job
        ends = job.end_ns[self.stalls]
        found: list[Span] = []
        for place in range(int(np.searchsorted(ends, low, "right")), len(self.stalls) + 1):
            previous = int(self.stalls[place - 1]) if place else NOBODY
            since = float(job.end_ns[previous]) if place else self.begin
            if since >= high:
                break
            stall = int(self.stalls[place]) if place < len(self.stalls) else NOBODY
            found += self._between(previous, since, stall, high)
        clipped = [
            (part, max(start, low), min(end, high), number)
            for part, start, end, number in found
            if min(end, high) > max(start, low)
        ]
        return _merged(clipped)

    def _between(self, previous: int, since: float, stall: int, high: float) -> list[Span]:
        """From one communication that the rank stood still for to the end of the next, or to the end of the step."""
        job = self.ranks.job
        first, last = np.searchsorted(self.befores, [previous, previous + 1])
        rows = self.by_before[first:last]
        points = np.stack((job.lead_ns[rows], job.computation_ns[rows], job.input_ns[rows]), axis=1)
        if stall == NOBODY:
            worked, until = high - since, high
        else:
            worked, until = float(job.work_ns[stall]), float(job.end_ns[stall])
            ready = (worked, float(job.work_computation_ns[stall]), float(job.work_input_ns[stall]))
            points = np.concatenate((points, [ready]))
        points = points[np.argsort(points[:, 0], kind="stable")]
        loaded = float(points[:, 2].max(initial=0.0))
        points = points[points[:, 0] <= worked]
        spans: list[Span] = []
        at, computed, waited = 0.0, 0.0, 0.0
        for lead, computation, loading in points.tolist():
            busy = min(max(computation - computed, 0.0), lead - at)
            spans += self._stretch(since + at, since + lead, busy, loading - waited)
            at, computed, waited = lead, max(computed, computation), max(waited, loading)
        return spans + self._stretch(since + at, until, 0.0, loaded - waited)

    def _stretch(self, since: float, until: float, busy: float, loaded: float) -> list[Span]:
        """So much computation, and pauses: in these a communication that is under way, else input, then what is left."""
        over = np.flatnonzero((self.start < until) & (self.end > since))
        cuts = np.concatenate((self.start[over], self.latest[over], self.end[over], [since, until]))
        cuts = np.unique(np.clip(cuts, since, until))
        pieces = [
            (start, end, *self._under_way(over, start, end))
            for start, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
        ]
        pause = until - since - busy
        free = min(pause, sum(end - start for start, end, part, _ in pieces if part == OTHER))
        taken = pause - free
        spans: list[Span] = []
        for start, end, part, number in pieces:
            stood = min(end - start, free if part == OTHER else taken)
            if part == OTHER:
                idle = min(max(loaded, 0.0), stood)
                spans.append((INPUT, start, start + idle, NOBODY))
                spans.append((OTHER, start + idle, start + stood, NOBODY))
                free, loaded = free - stood, loaded - idle
            else:
                spans.append((part, start, start + stood, number))
                taken -= stood
            spans.append((COMPUTATION, start + stood, end, NOBODY))
        return spans

    def _under_way(self, over: Array, start: float, end: float) -> tuple[int, int]:
        """The communication at a time, or that the last member is still to come; OTHER where there is none."""
        under_way = over[(self.start[over] <= start) & (self.end[over] >= end)]
        if not len(under_way):
            return OTHER, NOBODY
        moving = under_way[self.latest[under_way] <= start]
        own = moving if len(moving) else under_way
        row = self.talks[own[np.argmin(self.end[own])]]
        return COMMUNICATION if len(moving) else WAITING, int(self.ranks.matches.number[row])


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Neighbours that are the same as one."""
    merged: list[Span] = []
    for part, start, end, number in spans:
        if merged and merged[-1][0] == part and merged[-1][3] == number:
            merged[-1] = (part, merged[-1][1], end, number)
        else:
            merged.append((part, start, end, number))
    return merged
