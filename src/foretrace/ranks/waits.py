"""Arrivals on the common clock: who waited how long for whom, and how long the transfer itself took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.ranks.clocks import Clocks
from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import Matches


@dataclass(frozen=True)
class Waits:
    """Of each row its arrival, leaving and wait; of each communication its latest arrival, skew, transfer and last member."""

    arrive_ns: Array
    leave_ns: Array
    wait_ns: Array
    begin_ns: Array  # of each rank
    latest_ns: Array
    left_ns: Array  # the median leaving
    last_row: Array  # of the member that arrived last

    @property
    def transfer_ns(self) -> Array:
        """From the last arrival to the median leaving: may be a little below 0 where clocks are not known better."""
        taken: Array = self.left_ns - self.latest_ns
        return taken


def measure(job: Gathered, matches: Matches, clocks: Clocks) -> Waits:
    """Waits of all rows."""
    arrive = clocks.true_ns(job.member, job.start_ns)
    leave = clocks.true_ns(job.member, job.end_ns)
    members = np.arange(len(job.ranks))
    return of_times(matches, arrive, leave, clocks.true_ns(members, job.begin_ns))


def of_times(matches: Matches, arrive: Array, leave: Array, begin: Array) -> Waits:
    """Waits from arrivals and leavings on the common clock."""
    order, first = matches.order, matches.first
    if not len(first):
        return Waits(arrive, leave, np.zeros(0), begin, np.zeros(0), np.zeros(0), np.zeros(0, np.int64))
    latest = np.maximum.reduceat(arrive[order], first)
    by_leave = order[np.lexsort((leave[order], matches.number[order]))]
    low, high = first + (matches.count - 1) // 2, first + matches.count // 2
    left = (leave[by_leave[low]] + leave[by_leave[high]]) / 2
    by_arrival = order[np.lexsort((arrive[order], matches.number[order]))]
    last = by_arrival[first + matches.count - 1]
    return Waits(arrive, leave, latest[matches.number] - arrive, begin, latest, left, last)


def skew_ns(waits: Waits, matches: Matches) -> Array:
    """Of each communication: from the first arrival to the last."""
    spread: Array = np.maximum.reduceat(waits.wait_ns[matches.order], matches.first)
    return spread


def lateness(job: Gathered, matches: Matches, measured: Waits) -> Array:
    """Of each rank and step the most by which it arrived after the median member; NaN where it arrived at nothing."""
    order, first, count = matches.order, matches.first, matches.count
    by_arrival = order[np.lexsort((measured.arrive_ns[order], matches.number[order]))]
    low = by_arrival[first + (count - 1) // 2]
    high = by_arrival[first + count // 2]
    middle = (measured.arrive_ns[low] + measured.arrive_ns[high]) / 2
    rows = np.flatnonzero((count > 1)[matches.number])
    late_ns = np.maximum(measured.arrive_ns[rows] - middle[matches.number[rows]], 0.0)
    table = np.full((len(job.ranks), len(job.steps)), -1.0)
    np.maximum.at(table, (job.member[rows], np.searchsorted(job.steps, job.step[rows])), late_ns)
    return np.where(table < 0, np.nan, table)
