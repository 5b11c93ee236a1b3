"""The job run again with other leads and transfers: what a step would take if something were otherwise.

A communication starts on a rank when the work since the last one that the rank stood still for is done and its stream is free;
it ends its transfer after the last member has started. A rank goes on when the communication that it stands still for has
ended, and the work that it overlapped with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import Matches
from foretrace.ranks.summary import STEP
from foretrace.ranks.waits import Waits


@dataclass(frozen=True)
class Change:
    """What is otherwise: time less per row, and per communication."""

    lead_less_ns: Array | None = None
    work_less_ns: Array | None = None
    transfer_less_ns: Array | None = None


@dataclass(frozen=True)
class Replayed:
    """A replayed job: when each row starts and ends, on the common clock."""

    start_ns: Array
    end_ns: Array
    total_ns: float  # from the first begin to the last end of ranks that communicate


class Replay:
    """A job's communications in an order in which each comes after what it depends on."""

    def __init__(self, job: Gathered, matches: Matches, waits: Waits) -> None:
        self.job, self.matches, self.waits = job, matches, waits
        self.levels = _levels(job, matches, waits)
        of_row = self.levels[matches.number]
        self.rows = np.lexsort((matches.number, of_row))
        number = matches.number[self.rows]
        new = np.ones(len(number), bool)
        new[1:] = number[1:] != number[:-1]
        self.starts = np.flatnonzero(new)  # of communications, in `rows`
        self.communication = number[self.starts]
        level = self.levels[self.communication]
        self.bounds = np.append(
            np.flatnonzero(np.append(True, level[1:] != level[:-1])) if len(level) else 0, len(level)
        )
        self.marks = _marks(job, matches)
        self.begin = float(waits.begin_ns.min()) if len(waits.begin_ns) else 0.0

    def run(self, change: Change = Change()) -> Replayed:  # noqa: B008
        """The job with a change."""
        job, waits, rows = self.job, self.waits, self.rows
        lead = job.lead_ns if change.lead_less_ns is None else job.lead_ns - change.lead_less_ns
        work = job.work_ns if change.work_less_ns is None else job.work_ns - change.work_less_ns
        transfer = waits.transfer_ns
        if change.transfer_less_ns is not None:
            transfer = transfer - change.transfer_less_ns
        count = len(rows)
        # One place more, read where there is nothing before: -1.
        end, resume = np.full(count + 1, -np.inf), np.full(count + 1, -np.inf)
        start = np.empty(count)
        own_leave = (waits.leave_ns - waits.left_ns[self.matches.number])[rows]
        begin = waits.begin_ns[job.member][rows]
        before, queued, previous = job.before[rows], job.queued[rows], job.previous[rows]
        lead, work, still = lead[rows], work[rows], job.still[rows]
        queue = np.maximum(job.queue_ns, 0.0)[rows]
        begins = np.append(self.starts, count)
        for first, last in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            a, b = begins[first], begins[last]
            from_work = np.where(before[a:b] >= 0, resume[before[a:b]], begin[a:b]) + lead[a:b]
            at = np.maximum(from_work, end[queued[a:b]] + queue[a:b])
            done = np.maximum.reduceat(at, begins[first:last] - a) + transfer[self.communication[first:last]]
            left = np.repeat(done, np.diff(begins[first : last + 1])) + own_leave[a:b]
            start[a:b] = at
            end[rows[a:b]] = left
            goes_on = np.where(previous[a:b] >= 0, resume[previous[a:b]], begin[a:b]) + work[a:b]
            resume[rows[a:b]] = np.where(still[a:b], np.maximum(left, goes_on), left)
        by_row = np.empty(count)
        by_row[rows] = start
        ends = end[:-1]
        total = float(ends[self.marks].max()) - self.begin if len(self.marks) else 0.0
        return Replayed(by_row, ends, total)


def _marks(job: Gathered, matches: Matches) -> Array:
    """Rows in which the steps of ranks end; without ranks that communicate with nobody, where others do: nobody waits for them."""
    shared = (matches.count > 1)[matches.number]
    apart = np.bincount(job.member, shared, len(job.ranks)) == 0
    marks = job.kind == STEP
    return np.flatnonzero(marks & ~apart[job.member] if shared.any() else marks)


def _levels(job: Gathered, matches: Matches, waits: Waits) -> Array:
    """For each communication a number that is higher than those of all that it depends on."""
    source, target = _edges(job, matches)
    count = len(matches.first)
    level = np.zeros(count, np.int64)
    waiting = np.bincount(target, minlength=count)
    order = np.argsort(source, kind="stable")
    target = target[order]
    begins = np.searchsorted(source[order], np.arange(count + 1))
    front = np.flatnonzero(waiting == 0)
    done, depth = 0, 0
    while len(front):
        level[front] = depth
        done += len(front)
        depth += 1
        sizes = begins[front + 1] - begins[front]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        reached = target[np.repeat(begins[front], sizes) + within]
        np.subtract.at(waiting, reached, 1)
        reached = np.unique(reached)
        front = reached[waiting[reached] == 0]
    if done < count:  # what contradicts itself, in the order in which it ended
        left = np.flatnonzero(waiting > 0)
        level[left[np.argsort(waits.left_ns[left], kind="stable")]] = depth + np.arange(len(left))
    return level


def _edges(job: Gathered, matches: Matches) -> tuple[Array, Array]:
    """Pairs of communications of which the second depends on the first, each once."""
    sources, targets = [], []
    for link in (job.before, job.queued, job.previous):
        rows = np.flatnonzero(link >= 0)
        sources.append(matches.number[link[rows]])
        targets.append(matches.number[rows])
    source, target = np.concatenate(sources), np.concatenate(targets)
    count = len(matches.first)
    pairs = np.unique(source * count + target) if count else source
    return (pairs // count, pairs % count) if count else (source, target)
