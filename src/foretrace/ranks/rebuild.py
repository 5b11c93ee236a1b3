"""Ranks that were not read, or not to their end, rebuilt from their neighbours, so that the job can be replayed whole.

Without that, waiting for such a rank looks like transfer, and nothing that others do better seems to help. A rank of the same
stage whose groups have the same shape tells what it did. When it left a collective, the other members tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from foretrace.ranks import excess, matching
from foretrace.ranks import roles as roles_of
from foretrace.ranks import waits as waits_of
from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import RECV, SEND, Matches, partners
from foretrace.ranks.roles import Roles
from foretrace.ranks.summary import NOBODY, STEP
from foretrace.ranks.waits import Waits

_MOST = 512  # ranks that are rebuilt
_WITH_COMPUTATION = {
    "lead_ns": "computation_ns",
    "computation_ns": "computation_ns",
    "work_ns": "work_computation_ns",
    "work_computation_ns": "work_computation_ns",
}
_FAR = 3.0  # times the usual distance from the role's work
_COPIED = (
    "step", "kind", "seq", "size_bytes", "queue_ns", "still", "work_ns", "work_computation_ns",
    "work_input_ns", "lead_ns", "computation_ns", "input_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Whole:
    """A job with the ranks in it that were rebuilt; these come last."""

    job: Gathered
    matches: Matches
    waits: Waits
    roles: Roles


def whole(
    job: Gathered, matches: Matches, waits: Waits, roles: Roles, *, partly: Gathered | None = None
) -> Whole:
    """The job with its missing ranks, those that can be rebuilt; `partly` has what was read of ranks that are cut off."""
    as_read = Whole(job, matches, waits, roles)
    if not job.missing:
        return as_read
    likes = _likes(job, waits, roles)
    if not likes:
        return as_read
    made = _extended(job, likes, _whole_steps(job, likes, partly))
    again = matching.match(made)
    read = len(job.member)
    # No communication that was seen may fall apart because of a rank that was not.
    if len(np.unique(again.number[:read])) != len(matches.first):
        return as_read
    arrive, leave, begin = _times(made, again, matches, waits, likes, read)
    lead = made.lead_ns.copy()
    since = np.where(made.before >= 0, leave[np.maximum(made.before, 0)], begin[made.member])
    free = made.queue_ns < 0
    rebuilt = np.arange(len(arrive)) >= read
    lead[rebuilt & free] = np.maximum(arrive - since, 0.0)[rebuilt & free]
    made = replace(made, lead_ns=lead)
    measured = waits_of.of_times(again, arrive, leave, begin)
    members = np.array([job_member for job_member, _ in likes.values()])
    stages = roles_of.stages_of_world(job, waits)
    absent = np.array(list(likes))
    per_node = np.bincount(np.unique(roles.node, return_inverse=True)[1]).max()
    told = Roles(
        np.concatenate((roles.stage, stages[absent])),
        roles.stages_count,
        np.concatenate((roles.role, roles.role[members])),
        np.concatenate((roles.node, [_node(rank, job, roles, int(per_node)) for rank in absent.tolist()])),
    )
    return Whole(made, again, measured, told)


def _node(rank: int, job: Gathered, roles: Roles, per_node: int) -> int:
    """That of the ranks with which it would share a node by number."""
    same = np.flatnonzero(job.ranks // per_node == rank // per_node)
    return int(np.bincount(roles.node[same]).argmax()) if len(same) else int(roles.node.max()) + 1


def _likes(job: Gathered, waits: Waits, roles: Roles) -> dict[int, tuple[int, Mapping[int, int]]]:
    """For each missing rank the member that it is like, and which group of that corresponds to which of its own."""
    stages = roles_of.stages_of_world(job, waits)
    used = _used(job)
    to, back = _talks(job)
    shapes = _shapes(job)
    groups_of: dict[int, list[int]] = {}
    for key, members in enumerate(job.group_members):
        for rank in members:
            groups_of.setdefault(rank, []).append(key)
    found: dict[int, tuple[int, Mapping[int, int]]] = {}
    whole_steps = (~np.isnan(job.per_step["computation_ns"])).sum(axis=1)
    able = np.flatnonzero(whole_steps == whole_steps.max())
    absent = set(job.missing)
    unusual = _unusual(job, roles)
    for rank in job.missing[:_MOST]:
        nearest = able[np.lexsort((np.abs(job.ranks[able] - rank), unusual[able]))]
        for member in nearest[stages[job.ranks[nearest]] == stages[rank]].tolist():
            own = int(job.ranks[member])
            would = {other - own + rank for other in to.get(own, ())}
            if not _same_talks(would, back.get(rank, set()), absent):
                continue
            mapping = _mapping(used[member], groups_of.get(rank, []), shapes)
            if mapping is not None:
                found[rank] = member, mapping
                break
    return found


def _unusual(job: Gathered, roles: Roles) -> Array:
    """Whether a rank's work is far from that of its role, in any step: nobody is rebuilt from the one that is late."""
    away = np.zeros(len(job.ranks))
    usual = np.zeros(len(job.ranks))
    for role in np.unique(roles.role):
        members = roles.members(role)
        for name in ("computation_ns", "input_ns", "other_ns"):
            table = job.per_step[name][members]
            middle = excess.lower_median(table)
            away[members] += np.nan_to_num(np.abs(table - middle)).max(axis=1, initial=0.0)
        usual[members] = float(excess.lower_median(away[members]))
    return away > _FAR * usual


def _used(job: Gathered) -> dict[int, set[int]]:
    """The groups in which each member communicates, sends and receives left out."""
    rows = np.flatnonzero((job.kind != STEP) & (job.kind != SEND) & (job.kind != RECV) & (job.group >= 0))
    found: dict[int, set[int]] = {member: set() for member in range(len(job.ranks))}
    pairs = np.unique(np.stack((job.member[rows], job.group_key[job.group[rows]])), axis=1)
    for member, key in pairs.T.tolist():
        found[member].add(key)
    return found


def _talks(job: Gathered) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Of each rank that was read whom it sends to or receives from; and of each rank who was seen to do that with it."""
    rows = np.flatnonzero((job.kind == SEND) | (job.kind == RECV))
    peer = partners(job)[rows]
    pairs = np.unique(np.stack((job.ranks[job.member[rows]], peer)), axis=1)
    to: dict[int, set[int]] = {}
    back: dict[int, set[int]] = {}
    for own, other in pairs.T.tolist():
        if other >= 0:
            to.setdefault(own, set()).add(other)
            back.setdefault(other, set()).add(own)
    return to, back


def _same_talks(would: set[int], do: set[int], absent: set[int]) -> bool:
    """Whether all who talk to the missing rank stand to it as those stand to the one that it may be like."""
    return do <= would and would - do <= absent


def _mapping(used: set[int], own: Sequence[int], shapes: Sequence[object]) -> Mapping[int, int] | None:
    """For each group of one rank that of another with the same description and shape; None where that is not clear."""
    mapping = {}
    for key in used:
        same = [each for each in own if shapes[each] == shapes[key]]
        if len(same) != 1:
            return None
        mapping[key] = same[0]
    return mapping


def _shapes(job: Gathered) -> list[object]:
    """Of each group of the job its description, and how its members lie to the first."""
    described = {
        key: group.description for group, key in zip(job.groups, job.group_key.tolist(), strict=True)
    }
    return [
        (described.get(key, ""), tuple((np.array(members) - members[0]).tolist()) if members else key)
        for key, members in enumerate(job.group_members)
    ]


def _whole_steps(
    job: Gathered, likes: Mapping[int, tuple[int, Mapping[int, int]]], partly: Gathered | None
) -> dict[str, Array]:
    """What was read of the ranks that are cut off, in steps with as many kernels as others have in them; else NaN."""
    tables = {name: np.full((len(likes), len(job.steps)), np.nan) for name in job.per_step}
    for place, (rank, (like, _)) in enumerate(likes.items()):
        if partly is None or rank not in partly.ranks or not np.array_equal(partly.steps, job.steps):
            continue
        own = int(np.flatnonzero(partly.ranks == rank)[0])
        same = partly.per_step["kernels_count"][own] == job.per_step["kernels_count"][like]
        for name, table in tables.items():
            table[place] = np.where(same, partly.per_step[name][own], np.nan)
    return tables


def _extended(
    job: Gathered, likes: Mapping[int, tuple[int, Mapping[int, int]]], known: Mapping[str, Array]
) -> Gathered:
    """The table with rows for the missing ranks, those of the ranks that they are like; their times are not known yet."""
    fields = ("member", "group", "peer", "before", "queued", "previous", "start_ns", "end_ns", *_COPIED)
    columns: dict[str, list[Array]] = {name: [getattr(job, name)] for name in fields}
    first_of_key = {key: place for place, key in reversed(list(enumerate(job.group_key.tolist())))}
    peers = partners(job)
    height = len(job.member)
    for place, (rank, (like, mapping)) in enumerate(likes.items()):
        rows = np.flatnonzero(job.member == like)
        shift = height - int(rows[0])
        slower = _slower(job.per_step["computation_ns"][like], known["computation_ns"][place])
        for name in (*_COPIED, "start_ns", "end_ns"):
            values = getattr(job, name)[rows]
            if name in _WITH_COMPUTATION:
                more = (slower - 1) * np.maximum(getattr(job, _WITH_COMPUTATION[name])[rows], 0.0)
                values = np.where(values >= 0, values + more, values)
            columns[name].append(values)
        columns["member"].append(np.full(len(rows), len(job.ranks) + place, job.member.dtype))
        for name in ("before", "queued", "previous"):
            links = getattr(job, name)[rows]
            columns[name].append(np.where(links >= 0, links + shift, NOBODY))
        paired = (job.kind[rows] == SEND) | (job.kind[rows] == RECV)
        other = peers[rows] - int(job.ranks[like]) + rank
        columns["peer"].append(np.where(paired & (peers[rows] >= 0), other, NOBODY).astype(job.peer.dtype))
        group = [
            first_of_key[mapping[int(job.group_key[each])]]
            if each >= 0 and int(job.group_key[each]) in mapping
            else NOBODY
            for each in job.group[rows].tolist()
        ]
        columns["group"].append(np.array(group, job.group.dtype))
        height += len(rows)
    count = len(likes)
    table: dict[str, Any] = {name: np.concatenate(parts) for name, parts in columns.items()}
    return replace(
        job,
        ranks=np.concatenate((job.ranks, list(likes))),
        **table,
        begin_ns=np.concatenate((job.begin_ns, np.full(count, np.nan))),
        per_step={name: np.concatenate((own, known[name])) for name, own in job.per_step.items()},
        hosts=(*job.hosts, *(None,) * count),
        devices=(*job.devices, *(None,) * count),
    )


def _usual_transfers(job: Gathered, matches: Matches, waits: Waits) -> Array:
    """Of each communication its transfer; where members of it are missing, the median of whole ones of its kind and size."""
    taken: Array = waits.transfer_ns.copy()
    if not len(taken):
        return taken
    first = matches.order[matches.first]
    kind = np.where(job.kind[first] == RECV, SEND, job.kind[first]).astype(np.int64)
    facts = np.stack((kind, job.size_bytes[first], matches.expected))
    klass = np.asarray(np.unique(facts, axis=1, return_inverse=True)[1]).reshape(-1)
    whole = matches.whole
    for each in np.unique(klass[~whole]):
        same = taken[whole & (klass == each)]
        if len(same):
            taken[~whole & (klass == each)] = np.median(same)
    return taken


def _slower(like_ns: Array, own_ns: Array) -> float:
    """How many times as long a rank computes as the one that it is like, by the steps that are known of it."""
    both = ~np.isnan(own_ns) & (like_ns > 0)
    return float(np.median(own_ns[both] / like_ns[both])) if both.any() else 1.0


def _times(
    made: Gathered,
    again: Matches,
    matches: Matches,
    waits: Waits,
    likes: Mapping[int, tuple[int, Mapping[int, int]]],
    read: int,
) -> tuple[Array, Array, Array]:
    """Arrival and leaving of all rows and begin of all ranks, on the common clock.

    A rebuilt rank leaves with those that were seen, and works as long as the rank that it is like; it cannot have arrived
    later than the transfer takes, unless all others came earlier still.
    """
    count = len(made.member)
    arrive, leave = np.empty(count), np.empty(count)
    arrive[:read], leave[:read] = waits.arrive_ns, waits.leave_ns
    like_begin = [float(waits.begin_ns[like]) for like, _ in likes.values()]
    begin = np.concatenate((waits.begin_ns, like_begin))
    seen_left = np.full(len(again.first), np.nan)
    seen_latest = np.full(len(again.first), np.nan)
    seen_left[again.number[:read]] = waits.left_ns[matches.number]
    seen_latest[again.number[:read]] = waits.latest_ns[matches.number]
    transfer = _usual_transfers(made, matches, waits)[matches.number]
    at = read
    for like, _ in likes.values():
        rows = np.flatnonzero(made.member[:read] == like)
        shift = at - int(rows[0])
        for row in rows[np.argsort(waits.leave_ns[rows], kind="stable")].tolist():
            own = row + shift
            before, queued = int(made.before[own]), int(made.queued[own])
            start = (leave[before] if before >= 0 else begin[made.member[own]]) + made.lead_ns[own]
            if queued >= 0 and made.queue_ns[own] >= 0:
                start = max(start, leave[queued] + made.queue_ns[own])
            number = again.number[own]
            left, latest = seen_left[number], seen_latest[number]
            if np.isnan(left) or made.kind[own] == STEP:
                arrive[own], leave[own] = start, start + max(transfer[row], 0.0)
            else:
                arrive[own] = min(start, max(latest, left - max(transfer[row], 0.0)))
                leave[own] = left
        at += len(rows)
    return arrive, leave, begin
