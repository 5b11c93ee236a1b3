"""Who communicates with whom, where recordings do not tell: members of a group leave each of its collectives at the same moment.

On two clocks these moments differ by an offset and a drift, and by nothing else; those of ranks of other groups scatter by what
their computation scatters. Groups lie in a job as its axes do: so many ranks, so far apart, and all groups of an axis alike.
Each such layout is tried, and the one with the largest groups that scatters no more than the best is taken. What none explains
stays unmatched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from foretrace.ranks import clocks, matching
from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import OF_ONE_SIZE, RECV, SEND, SEND_RECV, partners
from foretrace.ranks.summary import NOBODY, STEP
from foretrace.sourced import JUDGEMENT, Factor, Share

MOST_SCATTER = Share(
    0.002, "the mean step, by which moments of leaving may differ where ranks leave together", JUDGEMENT
)
AS_GOOD = Factor(1.5, "the scatter of the best layout, that a layout with larger groups may have", JUDGEMENT)
ALIKE = Factor(5, "the scatter of the median pair of ranks, beyond which two are no pair", JUDGEMENT)
_EXACT_NS = 5_000.0  # what most collectives are left within
_LEAST_SCATTER_NS = 20_000.0  # what real collectives are left within
_CLOCK_NS = 100.0  # below this, layouts are equally good
_ERRORS = 3.0  # standard errors, by which the least scatter may be too small
_TIMES_RESIDUAL, _LEAST_RESIDUAL_NS = (
    4,
    2_000.0,
)  # by which two ends of one message may differ on the common clock
_MOST_AHEAD = 8  # others that may leave between the two ends of a message
_FEWEST = 4  # moments that an offset and a drift leave something of
_MOST_RANKS = 1_024  # beyond this, trying takes too long
_OTHER_WAY = {SEND: RECV, RECV: SEND}


@dataclass(frozen=True)
class _Lane:
    """Communications of one rank on one stream, in order."""

    rank: int
    rows: Array
    size: int  # members of its group, 0 where not told


def inferred(job: Gathered) -> Gathered:
    """The job with groups and ends of messages that moments of leaving tell; the same job where recordings tell all."""
    if not 1 < len(job.ranks) <= _MOST_RANKS:
        return job
    step_ns = _step_ns(job)
    limit_ns = max(MOST_SCATTER * step_ns, _LEAST_SCATTER_NS)
    return _with_single_ends(_with_groups(_with_ends(job, limit_ns), limit_ns), limit_ns)


def _step_ns(job: Gathered) -> float:
    marks = job.kind == STEP
    if not marks.any():
        return 0.0
    last = np.full(len(job.ranks), -np.inf)
    np.maximum.at(last, job.member[marks], job.end_ns[marks])
    return float(np.median(last - job.begin_ns)) / max(len(job.steps), 1)


def _keys(job: Gathered) -> Array:
    """The group of the job that each row is of."""
    known = job.group >= 0
    keys: Array = np.where(known, job.group_key[np.where(known, job.group, 0)] if known.any() else 0, NOBODY)
    return keys


def _lanes(job: Gathered, rows: Array, apart: Array) -> Iterator[_Lane]:
    """Rows by rank and by what keeps them apart, in order of start."""
    if not len(rows):
        return
    order = rows[np.lexsort((rows, apart[rows], job.member[rows]))]
    marks = np.stack((job.member[order], apart[order]))
    bounds = np.flatnonzero(np.any(marks[:, 1:] != marks[:, :-1], axis=0)) + 1
    keys = _keys(job)
    sizes = np.array([group.size for group in job.groups], np.int64)
    for own in np.split(order, bounds):
        group = int(job.group[own[0]])
        size = int(sizes[group]) if keys[own[0]] >= 0 else 0
        yield _Lane(int(job.ranks[job.member[own[0]]]), own, size)


def _streams(job: Gathered) -> Array:
    """A number for each stream of each rank: the first row on it."""
    first = np.where(job.queued >= 0, job.queued, np.arange(len(job.queued)))
    while True:
        again = first[first]
        if np.array_equal(again, first):
            return first
        first = again


# Groups


def _with_groups(job: Gathered, limit_ns: float) -> Gathered:
    keys = _keys(job)
    listed = np.array([bool(members) for members in job.group_members] + [False])
    message = np.isin(job.kind, (SEND, RECV)) | ((job.kind == SEND_RECV) & (job.peer >= 0))
    rows = np.flatnonzero((job.kind != STEP) & ~message & ~listed[keys])
    if not len(rows):
        return job
    stream = _streams(job).astype(np.int64) * (len(job.group_size) + 1) + keys
    facts = np.stack((stream, job.kind.astype(np.int64), job.size_bytes))
    by_size = np.asarray(np.unique(facts, axis=1, return_inverse=True)[1]).reshape(-1)
    found: dict[int, tuple[int, ...]] = {}  # of each row its members
    # A stream is a communicator; where one stream serves several, their sizes may tell them apart. What leaves together
    # exactly is taken first: several groups taken for one do so, too, but not as exactly.
    exact_ns = min(_EXACT_NS, limit_ns)
    for apart, most_ns in ((stream, exact_ns), (by_size, exact_ns), (stream, limit_ns), (by_size, limit_ns)):
        left = np.array([row for row in rows.tolist() if row not in found], np.int64)
        for alike in _alike(job, _lanes(job, left, apart)):
            for lane, members in _laid_out(job, alike, most_ns):
                found.update(dict.fromkeys(lane.rows.tolist(), members))
    return _regrouped(job, rows, found, keys)


def _alike(job: Gathered, lanes: Iterable[_Lane]) -> list[list[_Lane]]:
    """Lanes with the same collectives, one of each rank. Steps do not count: who waits may start one in the step before."""
    classes: dict[tuple[bytes, int, int], list[_Lane]] = {}
    turns: dict[tuple[bytes, int, int], int] = {}
    for lane in lanes:
        kind = job.kind[lane.rows].astype(np.int64)
        size = np.where(np.isin(kind, OF_ONE_SIZE), job.size_bytes[lane.rows], NOBODY)
        what = np.stack((kind, size)).tobytes()
        key = (what, lane.size, lane.rank)
        turns[key] = turns.get(key, -1) + 1
        classes.setdefault((what, lane.size, turns[key]), []).append(lane)
    return [lanes for lanes in classes.values() if len(lanes) > 1]


def _laid_out(job: Gathered, lanes: list[_Lane], limit_ns: float) -> list[tuple[_Lane, tuple[int, ...]]]:
    """The members of each lane's group by the best layout; nothing where none explains the lanes."""
    by_rank = {lane.rank: lane for lane in lanes}
    told = max(lane.size for lane in lanes)
    ends = {lane.rank: job.end_ns[lane.rows] for lane in lanes}
    tried = []
    for size, stride in _layouts(job.world):
        if told > 1 and size != told:
            continue
        groups = _groups_of(list(by_rank), size, stride)
        if groups is not None:
            scatter = _scatter_ns([np.stack([ends[rank] for rank in group]) for group in groups])
            tried.append((scatter, size, groups))
    if not tried:
        return []
    best, size, groups = min(tried, key=lambda each: each[0])
    if not best <= limit_ns:
        return []
    # How well the least scatter is known: of few moments it may be small by chance.
    freedom = len(groups) * (size - 1) * (len(lanes[0].rows) - 2)
    as_good = max(AS_GOOD, 1 + _ERRORS / np.sqrt(2 * freedom)) * best
    good = [each for each in tried if each[0] <= max(as_good, _CLOCK_NS)]
    _, _, groups = max(good, key=lambda each: (each[1], -each[0]))
    return [(by_rank[rank], group) for group in groups for rank in group]


def _layouts(world: int) -> Iterator[tuple[int, int]]:
    """Sizes of groups and how far apart their members are, that divide a job into equal parts."""
    for size in range(2, world + 1):
        for stride in range(1, world // size + 1):
            if world % (size * stride) == 0:
                yield size, stride


def _groups_of(ranks: list[int], size: int, stride: int) -> list[tuple[int, ...]] | None:
    """The ranks in groups of a layout; None where groups would not be whole."""
    groups: dict[tuple[int, int], list[int]] = {}
    for rank in sorted(ranks):
        groups.setdefault((rank // (size * stride), rank % stride), []).append(rank)
    whole = all(len(group) == size for group in groups.values())
    return [tuple(group) for group in groups.values()] if whole else None


def _scatter_ns(groups: list[Array]) -> float:
    """How far moments of leaving (rank, collective) of each group scatter beyond an offset and a drift of each clock."""
    ends = np.stack(groups)
    count = ends.shape[2]
    if count < _FEWEST:
        return np.inf
    zero = ends - ends[:, :, :1]
    centred = zero - zero.mean(axis=1, keepdims=True)
    left = _off_a_line(centred, zero.mean(axis=1, keepdims=True))
    freedom = (ends.shape[1] - 1) / ends.shape[1] * (count - 2) / count
    return float(np.sqrt(np.mean(left**2) / freedom))


def _off_a_line(values: Array, at: Array) -> Array:
    """What a straight line over the last axis leaves of values."""
    at = at - at.mean(axis=-1, keepdims=True)
    values = values - values.mean(axis=-1, keepdims=True)
    square = np.maximum((at**2).sum(axis=-1, keepdims=True), 1e-9)
    left: Array = values - at * ((values * at).sum(axis=-1, keepdims=True) / square)
    return left


def _regrouped(job: Gathered, rows: Array, found: dict[int, tuple[int, ...]], keys: Array) -> Gathered:
    """The job with a group for each set of members; what is in none, though several groups share its name, is alone."""
    users = np.zeros(len(job.group_size) + 1, np.int64)
    pairs = np.unique(np.stack((keys[rows], job.member[rows])), axis=1)
    np.add.at(users, pairs[0], 1)
    group = job.group.copy()
    places: dict[tuple[int, tuple[int, ...]], int] = {}
    groups, group_key = list(job.groups), job.group_key.tolist()
    group_size, group_members = job.group_size.tolist(), list(job.group_members)
    for row in rows.tolist():
        members = found.get(row)
        key = int(keys[row])
        if members is None:
            told = int(job.groups[group[row]].size) if group[row] >= 0 else 0
            # One group of that name, or no size that contradicts it.
            group[row] = group[row] if told == 0 or users[key] <= told else NOBODY
            continue
        if (key, members) not in places:
            places[key, members] = len(groups)
            groups.append(replace(job.groups[group[row]], size=len(members)))
            group_key.append(len(group_size))
            group_size.append(len(members))
            group_members.append(members)
        group[row] = places[key, members]
    return replace(
        job,
        group=group,
        groups=tuple(groups),
        group_key=np.array(group_key, np.int32),
        group_size=np.array(group_size, np.int64),
        group_members=tuple(group_members),
    )


# Messages


def _with_ends(job: Gathered, limit_ns: float) -> Gathered:
    """Sends and receives whose other end is not told, with that of the stream that they leave together with."""
    keys = _keys(job)
    untold = _untold(job)
    rows = np.flatnonzero(untold)
    if not len(rows):
        return job
    # Others of the group may be told as places in it: from here on all are ranks.
    peer, number = np.where(_messages(job), partners(job), job.peer).astype(job.peer.dtype), job.seq.copy()
    ended = np.zeros(len(peer), bool)
    # A stream serves two ranks; or it has what comes from one and what goes to another.
    apart = (_streams(job).astype(np.int64) * (STEP + 1) + job.kind) * (len(job.group_size) + 1) + keys
    for one, other in _pairs(job, list(_lanes(job, rows, apart)), limit_ns):
        peer[one.rows], peer[other.rows] = other.rank, one.rank
        number[one.rows] = number[other.rows] = one.rows[0]
        ended[one.rows] = ended[other.rows] = True
    if not ended.any():
        return job
    # Groups of which some messages are not told would have the others taken for places in them.
    group = np.where(untold & ~ended & np.isin(keys, keys[ended]), NOBODY, job.group)
    return replace(job, peer=peer, seq=number, group=group)


def _messages(job: Gathered) -> Array:
    return np.isin(job.kind, (SEND, RECV, SEND_RECV))


def _untold(job: Gathered) -> Array:
    """Messages whose other end is not told; without a direction, a group of two does not tell which message it is either."""
    directed = np.isin(job.kind, (SEND, RECV)) & (partners(job) < 0)
    untold: Array = directed | ((job.kind == SEND_RECV) & (job.peer < 0))
    return untold


def _with_single_ends(job: Gathered, limit_ns: float) -> Gathered:
    """Messages that no stream tells the other end of, with those that they leave together with on clocks that others tell.

    Only ranks as far apart as others that are known to talk to each other.
    """
    peer = partners(job)
    rows = np.flatnonzero(_untold(job))
    told = _messages(job) & (peer >= 0)
    if not len(rows) or not told.any():
        return job
    matches = matching.match(job)
    rows = rows[~(matches.whole & (matches.count > 2))[matches.number[rows]]]
    aligned = clocks.align(job, matches)
    own = job.ranks[job.member]
    strides = np.unique(np.abs(own - peer)[told])
    leave = aligned.true_ns(job.member, job.end_ns)
    rows = rows[np.argsort(leave[rows], kind="stable")]
    within_ns = min(max(_TIMES_RESIDUAL * aligned.residual_ns, _LEAST_RESIDUAL_NS), limit_ns)
    pairs = []
    for ahead in range(1, _MOST_AHEAD):
        one, other = rows[:-ahead], rows[ahead:]
        fits = (leave[other] - leave[one] <= within_ns) & (job.size_bytes[one] == job.size_bytes[other])
        fits &= np.isin(np.abs(own[one] - own[other]), strides)
        fits &= aligned.pieces[job.member[one]] == aligned.pieces[job.member[other]]
        ways = np.arange(STEP + 1)
        ways[[SEND, RECV]] = RECV, SEND
        fits &= job.kind[one] == ways[job.kind[other]]
        pairs.append(np.stack((one[fits], other[fits])))
    chosen = np.concatenate(pairs, axis=1)
    chosen = chosen[:, np.argsort(leave[chosen[1]] - leave[chosen[0]], kind="stable")]
    ends, number, group = job.peer.copy(), job.seq.copy(), job.group.copy()
    used: set[int] = set()
    for one, other in chosen.T.tolist():
        if not used & {one, other}:
            used |= {one, other}
            ends[one], ends[other] = own[other], own[one]
            number[one] = number[other] = one
    group[np.setdiff1d(rows, list(used))] = NOBODY
    return replace(job, peer=ends, seq=number, group=group)


def _pairs(job: Gathered, lanes: list[_Lane], limit_ns: float) -> list[tuple[_Lane, _Lane]]:
    """Lanes that are the two ends of each other: those so many ranks apart are so, or are not, all alike."""
    ways: dict[int, list[tuple[float, int, int]]] = {}
    fits = list(_fits(job, lanes))
    of_many = _of_many(job, lanes, fits)
    for scatter, one, other in fits:
        if of_many & {one, other}:
            continue
        apart = abs(lanes[other].rank - lanes[one].rank)
        ways.setdefault(apart, []).append((scatter, one, other))
    chosen: list[tuple[float, list[tuple[int, int]]]] = []
    scatters: dict[tuple[int, int], float] = {}
    for each in ways.values():
        taken: set[int] = set()
        pairs = []
        for scatter, one, other in sorted(each):
            if scatter <= limit_ns and not taken & {one, other}:
                taken |= {one, other}
                pairs.append((one, other))
                scatters[one, other] = scatter
        if pairs:
            chosen.append((float(np.median([scatters[pair] for pair in pairs])) / len(pairs), pairs))
    used: set[int] = set()
    found = []
    for _, pairs in sorted(chosen):
        for one, other in pairs:
            if not used & {one, other}:
                used |= {one, other}
                found.append((scatters[one, other], one, other))
    # Ranks that leave together by chance do so less exactly than most, which do for a reason.
    most_ns = ALIKE * float(np.median([each[0] for each in found])) if found else 0.0
    return [(lanes[one], lanes[other]) for scatter, one, other in found if scatter <= max(most_ns, _CLOCK_NS)]


def _of_many(job: Gathered, lanes: list[_Lane], fits: list[tuple[float, int, int]]) -> set[int]:
    """Lanes of no direction that leave as exactly with a second rank as with the first: all-to-alls, whose kernels are named alike."""
    nearest: dict[int, dict[int, float]] = {}
    for scatter, one, other in fits:
        for place, peer in ((one, other), (other, one)):
            by_rank = nearest.setdefault(place, {})
            rank = lanes[peer].rank
            by_rank[rank] = min(scatter, by_rank.get(rank, np.inf))
    found = set()
    for place, by_rank in nearest.items():
        scatters = sorted(by_rank.values())
        undirected = job.kind[lanes[place].rows[0]] == SEND_RECV
        if undirected and len(scatters) > 1 and scatters[1] <= max(AS_GOOD * scatters[0], _CLOCK_NS):
            found.add(place)
    return found


def _fits(job: Gathered, lanes: list[_Lane]) -> Iterator[tuple[float, int, int]]:
    """Pairs of lanes of different ranks that may be each other's end, and how far the moments of leaving scatter."""
    classes: dict[bytes, list[int]] = {}
    for place, lane in enumerate(lanes):
        if len(lane.rows) >= _FEWEST:
            classes.setdefault(_course(job, lane, {}), []).append(place)
    for place, lane in enumerate(lanes):
        others = classes.get(_course(job, lane, _OTHER_WAY), ()) if len(lane.rows) >= _FEWEST else ()
        later = [other for other in others if lanes[other].rank > lane.rank]
        if not later:
            continue
        own = job.end_ns[lane.rows]
        theirs = np.stack([job.end_ns[lanes[other].rows] for other in later])
        differ = (theirs - theirs[:, :1]) - (own - own[0])
        left = _off_a_line(differ, own - own[0])
        scatter = np.sqrt((left**2).sum(axis=1) / (len(own) - 2) / 2)
        yield from ((float(each), place, other) for each, other in zip(scatter, later, strict=True))


def _course(job: Gathered, lane: _Lane, ways: dict[int, int]) -> bytes:
    """The kinds and sizes of a lane's messages; with `ways`, as its other end has them."""
    kinds = [ways.get(kind, kind) for kind in job.kind[lane.rows].tolist()]
    return np.stack((np.asarray(kinds, np.int64), job.size_bytes[lane.rows])).tobytes()
