"""How far what Foretrace says of a synthetic job is from what the job did."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.ranks.simulate import Row, Simulated
from foretrace.ranks.reduce import Ranks
from foretrace.ranks.summary import KINDS, STEP

_TELLING_US = 20.0


@dataclass(frozen=True)
class WaitErrors:
    """Of each communication of each rank the error of its wait; of each with enough skew, whether the last arriver is right."""

    wait_us: NDArray[np.float64]
    last_right: NDArray[np.bool_]


def clock_errors_us(simulated: Simulated, ranks: Ranks) -> NDArray[np.float64]:
    """Of each rank, at the begin, the middle and the end of the job; without what all clocks have in common."""
    end_us = simulated.step_us * simulated.job.steps
    members = np.arange(len(ranks.job.ranks))
    own = [simulated.ranks[number] for number in ranks.job.ranks]
    zero_us = _zero_us(simulated, ranks)
    errors = []
    for at in (0.0, end_us / 2, end_us):
        local = np.array([rank.local_us(1_000 + at) for rank in own]) - zero_us
        true = ranks.aligned.true_ns(members, local * 1e3) / 1e3
        errors.append(true - np.median(true))
    return np.array(errors)


def _zero_us(simulated: Simulated, ranks: Ranks) -> float:
    """What a recording's clock showed where the job's times are 0: the first begin."""
    begins = [
        simulated.ranks[number].local_us(simulated.ranks[number].marks[0][1]) for number in ranks.job.ranks
    ]
    return round(min(begins), 3)


def wait_errors(simulated: Simulated, ranks: Ranks) -> WaitErrors:
    """Waits and last arrivers beside the true ones."""
    job = ranks.job
    truth = {number: _by_group(simulated.ranks[number].rows) for number in job.ranks.tolist()}
    turns: dict[tuple[int, object], int] = defaultdict(int)
    wait_us, last_right = [], []
    for row in np.flatnonzero(job.kind != STEP).tolist():
        number = int(job.ranks[job.member[row]])
        key = (KINDS[job.kind[row]], job.groups[job.group[row]].members, int(job.peer[row]))
        found = truth[number][key][turns[number, key]]
        turns[number, key] += 1
        assert all(peer.start_us is not None for peer in found.peers)
        arrivals = {peer.rank: peer.start_us or 0.0 for peer in found.peers}
        latest = max(arrivals.values())
        wait_us.append(float(ranks.measured.wait_ns[row]) / 1e3 - (latest - arrivals[number]))
        if latest - min(arrivals.values()) > _TELLING_US:
            last = ranks.measured.last_row[ranks.matches.number[row]]
            last_right.append(arrivals[int(job.ranks[job.member[last]])] == latest)
    return WaitErrors(np.array(wait_us), np.array(last_right))


def _by_group(rows: list[Row]) -> dict[object, list[Row]]:
    found: dict[object, list[Row]] = defaultdict(list)
    for row in rows:
        peer = {"send": row.op.destination, "recv": row.op.source}.get(row.op.kind, -1)
        found[row.op.kind, row.op.members, peer].append(row)
    return found
