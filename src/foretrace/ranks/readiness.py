"""When queued communications were ready, where no launch tells: not later than after the work that others had done by then.

A communication that waits for its stream is ready some time before it starts. Its launch tells when; without launches only the
end of all computation until then is known, which for buckets of gradients behind a late one is that of the whole backward pass.
Ranks of the same role that had done less when theirs started tell that no more was needed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.ranks import excess
from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import Matches
from foretrace.ranks.roles import Roles
from foretrace.ranks.summary import STEP
from foretrace.sourced import JUDGEMENT, Factor

LEAST_MORE = Factor(
    1.05, "what others computed before a communication, from where on it was ready earlier", JUDGEMENT
)


def of_peers(job: Gathered, matches: Matches, roles: Roles) -> Gathered:
    """The job with shorter leads where communications waited for their stream longer than that of their peers."""
    rows = np.flatnonzero((matches.count > 1)[matches.number] & (job.kind != STEP))
    queued = job.queue_ns[rows] >= 0
    if not queued.any():
        return job
    needed = _least(job, matches, roles, rows) * _times_as_slow(job, roles)[job.member[rows]]
    less = np.where(
        queued & (job.computation_ns[rows] > LEAST_MORE * needed), job.computation_ns[rows] - needed, 0.0
    )
    lead, computation = job.lead_ns.copy(), job.computation_ns.copy()
    lead[rows] -= less
    computation[rows] -= less
    return replace(job, lead_ns=lead, computation_ns=computation)


def _least(job: Gathered, matches: Matches, roles: Roles, rows: Array) -> Array:
    """Of each row the least computation of a rank of its role before the same communication, since the same one."""
    since = np.where(job.before[rows] >= 0, matches.number[np.maximum(job.before[rows], 0)], -1)
    keys = np.stack((matches.number[rows], since, roles.role[job.member[rows]]))
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = np.asarray(group).reshape(-1)
    least = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(least, group, job.computation_ns[rows])
    return least[group]


def _times_as_slow(job: Gathered, roles: Roles) -> Array:
    """How many times as long as its role each rank computes."""
    times = excess.usual_over_roles(job, roles)
    slower: Array = np.maximum(np.nan_to_num(times, nan=1.0), 1.0)
    return slower
