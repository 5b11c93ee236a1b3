"""Links: how fast transfers are, without the waiting before them, and which nodes, ranks or pairs are slower than the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import RECV, SEND, SEND_RECV, Matches
from foretrace.ranks.roles import Roles
from foretrace.ranks.summary import STEP
from foretrace.ranks.waits import Waits
from foretrace.sourced import JUDGEMENT, Bytes, Factor

LARGE_BYTES = Bytes(1 << 20, "a message whose time is that of its bytes", JUDGEMENT)
LEAST_SLOWER = Factor(
    1.3, "the time of a transfer over that of others of its kind, size and reach", JUDGEMENT
)
_USUAL_PCT = 25.0  # of the groups of a class: up to two thirds of them may be slow ones
_CLASS_RATIO = 1.1  # from here on a class of a slow group is counted as slow


@dataclass(frozen=True)
class Transfers:
    """Communications in classes of one kind, size and reach; and for each (group, class) how slow it is."""

    communication: Array  # those with several members, whole where any is
    lane: Array  # of each: the (group, class)
    group: Array  # of each lane
    ratio: Array  # of each lane: its median transfer over the class's usual one
    large: Array  # of each lane
    crossing: Array  # of each lane: whether it reaches over several nodes
    members: tuple[tuple[int, ...], ...]  # of each group, as places of ranks


@dataclass(frozen=True)
class SlowLink:
    """A node, rank or pair whose transfers are slower than all others: what is left of each transfer if they were not."""

    what: str  # slow-node or slow-link
    who: str
    left: Array  # of each communication
    ratio: float
    alike: int = 1  # how many ranks or nodes it may be: nothing tells them apart


def classify(job: Gathered, matches: Matches, waits: Waits, roles: Roles) -> Transfers | None:
    """The transfers of a job; None where there is nothing to compare."""
    first = matches.order[matches.first] if len(matches.first) else np.empty(0, np.int64)
    several = (matches.count > 1) & (job.kind[first] != STEP)
    whole = several & (matches.count == matches.expected)
    chosen = np.flatnonzero(whole if whole.any() else several)
    if not len(chosen):
        return None
    group, members = _parties(job, matches, chosen, first)
    nodes = np.array([len({int(roles.node[place]) for place in each}) for each in members])
    row = first[chosen]
    kind = np.where(job.kind[row] == RECV, SEND, job.kind[row]).astype(np.int64)
    size = _sizes(job, matches, chosen)
    facts = np.stack((kind, size, matches.expected[chosen], nodes[group]))
    klass = np.asarray(np.unique(facts, axis=1, return_inverse=True)[1]).reshape(-1)
    pairs, lane = np.unique(np.stack((group, klass)), axis=1, return_inverse=True)
    lane = np.asarray(lane).reshape(-1)
    taken = _medians(lane, waits.transfer_ns[chosen])
    ratio = np.ones(len(taken))
    for each in np.unique(pairs[1]):
        own = pairs[1] == each
        usual = _usual(taken[own])
        ratio[own] = taken[own] / usual if usual > 0 else 1.0
    of_lane = np.zeros(len(taken), np.int64)
    of_lane[lane] = np.arange(len(chosen))
    return Transfers(
        chosen, lane, pairs[0], ratio, size[of_lane] >= LARGE_BYTES, nodes[pairs[0]] > 1, members
    )


def _usual(taken: Array) -> float:
    """The median of the groups of a class that are not slow; what is slow is so beside the quarter that is fastest."""
    fast = float(np.percentile(taken, _USUAL_PCT, method="lower"))
    return float(np.median(taken[taken < LEAST_SLOWER * fast])) if fast > 0 else 0.0


def slow_links(transfers: Transfers | None, roles: Roles, job: Gathered, count: int) -> list[SlowLink]:
    """The fewest nodes, ranks or pairs of nodes all of whose transfers to other nodes are slow; else ranks all of whose are.

    A rank with a slow network card still has fast links inside its node: transfers between nodes are judged by themselves.
    """
    if transfers is None:
        return []
    groups = len(transfers.members)
    judged = transfers.large
    slowness = np.full(groups, np.inf)  # of each group the least over its large messages
    np.minimum.at(slowness, transfers.group[judged], transfers.ratio[judged])
    known = np.isfinite(slowness)
    slow = known & (slowness >= LEAST_SLOWER)
    crossing = np.zeros(groups, bool)
    crossing[transfers.group[transfers.crossing]] = True
    ranks = [set(members) for members in transfers.members]
    nodes = [{int(roles.node[place]) for place in members} for members in transfers.members]
    pairs = sorted({tuple(sorted(of_group)) for of_group in nodes if len(of_group) == 2})
    of_pair = [{pairs.index(tuple(sorted(of_group)))} if len(of_group) == 2 else set() for of_group in nodes]
    found = []
    passes = (
        (nodes, crossing, 2), (ranks, crossing, 2), (of_pair, crossing, 1), (ranks, known, 2),
        (ranks, crossing, len(job.ranks) // 2),
    )  # fmt: skip
    for parties, among, most in passes:
        for who, covered in _explained(parties, slow & among, known & among, most):
            # What is slow within a node, or at a rank, has the same cause.
            if parties is nodes:
                covered |= slow & ~crossing & np.array([members <= set(who) for members in nodes], bool)
            elif parties is ranks:
                covered |= slow & np.array([members >= set(who) for members in ranks], bool)
            named = pairs[who[0]] if parties is of_pair else who
            numbers = [int(job.ranks[place]) for place in who] if parties is ranks else list(named)
            name = _named("rank" if parties is ranks else "node", numbers)
            what = "slow-node" if parties is nodes and len(who) == 1 else "slow-link"
            found.append(_link(what, name, covered, transfers, slowness, count, len(who)))
            slow = slow & ~covered
    return found


def _named(kind: str, numbers: list[int]) -> str:
    """rank 5; nodes 1 and 2; ranks 1, 5 and 9."""
    *first, last = map(str, numbers)
    return f"{kind}s {', '.join(first)} and {last}" if first else f"{kind} {last}"


def _explained(
    parties: list[set[int]], slow: Array, known: Array, most: int
) -> list[tuple[tuple[int, ...], Array]]:
    """The fewest parties all of whose groups are slow that explain the slow groups; up to `most` that nothing tells apart."""
    touched: dict[int, list[int]] = {}
    for group in np.flatnonzero(known).tolist():
        for party in parties[group]:
            touched.setdefault(party, []).append(group)
    all_slow = set(np.flatnonzero(slow).tolist())
    whole = {party: own for party, groups in touched.items() if (own := set(groups)) <= all_slow}
    left = set(all_slow)
    found = []
    while left:
        able = {party: own & left for party, own in whole.items() if own & left}
        if not able:
            break
        longest = max(len(groups) for groups in able.values())
        best = sorted(party for party, groups in able.items() if len(groups) == longest)
        same = [party for party in best if able[party] == able[best[0]]]
        left -= able[best[0]]
        if len(same) > most:
            continue  # one group for all of them: nothing tells who it is
        covered = np.zeros(len(parties), bool)
        covered[sorted(able[best[0]])] = True
        found.append((tuple(same), covered))
    return found


def _link(
    what: str, who: str, covered: Array, transfers: Transfers, slowness: Array, count: int, alike: int
) -> SlowLink:
    slow = covered[transfers.group] & (transfers.ratio >= _CLASS_RATIO)
    left = np.ones(count)
    left[transfers.communication] = np.where(
        slow[transfers.lane], 1 / np.maximum(transfers.ratio[transfers.lane], 1.0), 1.0
    )
    return SlowLink(what, who, left, float(np.median(slowness[covered])), alike)


def _parties(
    job: Gathered, matches: Matches, chosen: Array, first: Array
) -> tuple[Array, tuple[tuple[int, ...], ...]]:
    """For each communication its group, and for each group the places of its members that were read."""
    row = first[chosen]
    paired = np.isin(job.kind[row], (SEND, RECV)) | ((job.kind[row] == SEND_RECV) & (job.peer[row] >= 0))
    key = np.where(job.group[row] >= 0, job.group_key[np.maximum(job.group[row], 0)], 0).astype(np.int64)
    second = job.member[matches.order[matches.first[chosen] + 1]].astype(np.int64)
    one = job.member[row].astype(np.int64)
    ends = np.minimum(one, second) * len(job.ranks) + np.maximum(one, second)
    key = np.where(paired, len(job.group_size) + ends, key)
    _, sample, group = np.unique(key, return_index=True, return_inverse=True)
    members = tuple(
        tuple(
            np.sort(
                job.member[
                    matches.order[
                        matches.first[chosen[at]] : matches.first[chosen[at]] + matches.count[chosen[at]]
                    ]
                ]
            ).tolist()
        )
        for at in sample
    )
    return np.asarray(group).reshape(-1), members


def _sizes(job: Gathered, matches: Matches, chosen: Array) -> Array:
    most = np.maximum.reduceat(job.size_bytes[matches.order], matches.first)
    return most[chosen]


def _medians(lane: Array, values: Array) -> Array:
    """The median of each lane's values."""
    order = np.lexsort((values, lane))
    begins = np.flatnonzero(np.append(True, lane[order][1:] != lane[order][:-1]))
    count = np.diff(np.append(begins, len(order)))
    low, high = begins + (count - 1) // 2, begins + count // 2
    middle: Array = (values[order[low]] + values[order[high]]) / 2
    return middle
