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

_AT_ONCE_NS = (
    20_000.0  # from the end of one communication to the start of the next, if nothing is computed between
)
LEAST_MORE = Factor(
    1.05, "what others computed before a communication, from where on it was ready earlier", JUDGEMENT
)


def of_peers(job: Gathered, matches: Matches, roles: Roles) -> Gathered:
    """The job with leads of communications that waited for their stream as those of peers that did not tell."""
    return _after_others(_not_later(job, matches, roles), matches, roles)


def _after_others(job: Gathered, matches: Matches, roles: Roles) -> Gathered:
    """Communications that waited for their stream, after the one that a peer's, which did not wait, follows at once.

    The launch tells which computation comes before, and not which communication the device stood still for after that.
    """
    shared = (matches.count > 1)[matches.number] & (job.kind != STEP)
    queued = np.flatnonzero(shared & (job.queue_ns >= 0))
    at_once = shared & (job.queue_ns < 0) & (job.before >= 0) & (job.lead_ns <= _AT_ONCE_NS)
    follows = np.flatnonzero(at_once & (job.computation_ns <= 0) & (job.input_ns <= 0))
    if not len(queued) or not len(follows):
        return job
    slot = _slots(job)
    role = roles.role[job.member].astype(np.int64)
    span = int(role.max()) + 1
    peer = {
        int(key): int(row)
        for key, row in zip(matches.number[follows] * span + role[follows], follows, strict=True)
    }
    ended = {(int(job.member[row]), int(slot[row])): int(row) for row in np.flatnonzero(shared)}
    before, lead, computation, loading = (
        values.copy() for values in (job.before, job.lead_ns, job.computation_ns, job.input_ns)
    )
    for row in queued.tolist():
        like = peer.get(int(matches.number[row] * span + role[row]))
        after = None if like is None else ended.get((int(job.member[row]), int(slot[job.before[like]])))
        if like is None or after is None or after == row or after == job.queued[row]:
            continue
        was = job.end_ns[job.before[row]] if job.before[row] >= 0 else -np.inf
        if was < job.end_ns[after] <= job.start_ns[row]:
            before[row], lead[row] = after, min(lead[like], job.start_ns[row] - job.end_ns[after])
            computation[row] = loading[row] = 0.0
    return replace(job, before=before, lead_ns=lead, computation_ns=computation, input_ns=loading)


def _slots(job: Gathered) -> Array:
    """A number for each row, the same for the same communication of another rank's step: by kind, size, group's size and order."""
    known = job.group >= 0
    size = np.where(
        known, job.group_size[job.group_key[np.where(known, job.group, 0)]] if known.any() else 0, 0
    )
    facts = np.stack((job.step.astype(np.int64), job.kind.astype(np.int64), job.size_bytes, size))
    klass = np.asarray(np.unique(facts, axis=1, return_inverse=True)[1]).reshape(-1)
    order = np.lexsort((job.start_ns, klass, job.member))
    keys = np.stack((job.member[order], klass[order]))
    first = np.flatnonzero(np.append(True, np.any(keys[:, 1:] != keys[:, :-1], axis=0)))
    turn = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    slot = np.empty(len(order), np.int64)
    slot[order] = klass[order] * (int(turn.max(initial=0)) + 1) + turn
    return slot


def _not_later(job: Gathered, matches: Matches, roles: Roles) -> Gathered:
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
