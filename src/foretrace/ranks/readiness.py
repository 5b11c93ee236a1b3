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
from foretrace.ranks.summary import NOBODY, STEP
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
    which = matches.number * (int(role.max()) + 1) + role
    like = _last_with(which[follows], follows, which[queued])
    queued, like = queued[like >= 0], like[like >= 0]
    rows = np.flatnonzero(shared)
    own = job.member.astype(np.int64) * (int(slot.max()) + 1)
    after = _last_with((own + slot)[rows], rows, own[queued] + slot[job.before[like]])
    was_ns = np.where(job.before[queued] >= 0, job.end_ns[job.before[queued]], -np.inf)
    follow = (after >= 0) & (after != queued) & (after != job.queued[queued])
    follow &= (was_ns < job.end_ns[after]) & (job.end_ns[after] <= job.start_ns[queued])
    queued, like, after = queued[follow], like[follow], after[follow]
    before, lead, computation, loading = (
        values.copy() for values in (job.before, job.lead_ns, job.computation_ns, job.input_ns)
    )
    before[queued] = after
    lead[queued] = np.minimum(lead[like], job.start_ns[queued] - job.end_ns[after])
    computation[queued] = loading[queued] = 0.0
    return replace(job, before=before, lead_ns=lead, computation_ns=computation, input_ns=loading)


def _last_with(keys: Array, rows: Array, wanted: Array) -> Array:
    """For each wanted key the last row that has it; NOBODY where none has."""
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    place = np.searchsorted(keys, wanted, side="right") - 1
    found: Array = np.where((place >= 0) & (keys[place] == wanted), rows[place], NOBODY)
    return found


def _slots(job: Gathered) -> Array:
    """A number for each row, the same for the same communication of another rank's step: by kind, size, group's size and order."""
    known = job.group >= 0
    size = np.where(
        known, job.group_size[job.group_key[np.where(known, job.group, 0)]] if known.any() else 0, 0
    )
    alike = _numbered((size, job.size_bytes, job.kind, job.step))
    order = np.lexsort((job.start_ns, alike, job.member))
    first = np.flatnonzero(_changes((job.member[order], alike[order])))
    turn = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    slot = np.empty(len(order), np.int64)
    slot[order] = alike[order] * (int(turn.max(initial=0)) + 1) + turn
    return slot


def _numbered(facts: tuple[Array, ...]) -> Array:
    """A number for each row, the same for rows with the same facts."""
    order = np.lexsort(facts)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(_changes(tuple(fact[order] for fact in facts))) - 1
    return number


def _changes(facts: tuple[Array, ...]) -> Array:
    """Whether each row differs from the one before."""
    differs: Array = np.append(True, np.any([fact[1:] != fact[:-1] for fact in facts], axis=0))
    return differs


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
