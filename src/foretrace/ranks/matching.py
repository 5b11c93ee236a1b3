"""Which communications of different ranks are one and the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.summary import KIND_CODE, NOBODY, STEP

SEND, RECV, SEND_RECV = KIND_CODE["send"], KIND_CODE["recv"], KIND_CODE["send_recv"]
# Every member has the same bytes in these.
OF_ONE_SIZE = tuple(KIND_CODE[name] for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"))


@dataclass(frozen=True)
class Matches:
    """Rows sorted by the communication that they are of; a row that matches nothing is one of its own."""

    order: Array  # rows
    first: Array  # for each communication where its rows begin in `order`
    number: Array  # for each row its communication
    count: Array  # rows of each communication
    expected: Array  # members of each communication

    @property
    def whole(self) -> Array:
        """Communications of which every member was seen."""
        whole: Array = (self.count == self.expected) & (self.count > 1)
        return whole


def match(job: Gathered) -> Matches:
    """By members and number, else by members and order within a step; point to point by its ends and order."""
    owner, part, number, expected = _identity(job)
    turn = _turns(job.member, owner, part, number)
    order = np.lexsort((job.member, turn, number, part, owner))
    fields = [values[order] for values in (owner, part, number, turn)]
    new = np.ones(len(order), bool)
    if len(order):
        new[1:] = np.any([values[1:] != values[:-1] for values in fields], axis=0)
    first = np.flatnonzero(new)
    of_row = np.cumsum(new) - 1
    sound = _sound(job, order, first, of_row)
    # What does not fit together is taken apart: each row on its own.
    new |= ~sound[of_row]
    first = np.flatnonzero(new)
    communication = np.empty(len(order), np.int64)
    communication[order] = np.cumsum(new) - 1
    count = np.diff(np.append(first, len(order)))
    return Matches(order, first, communication, count, np.maximum(expected[order[first]], 1))


def _identity(job: Gathered) -> tuple[Array, Array, Array, Array]:
    """For each row: the group or pair, the part of the recording within which numbers count, the number, and how many members."""
    rows = len(job.member)
    groups = len(job.group_size)
    key = np.where(
        job.group >= 0, job.group_key[np.maximum(job.group, 0)] if len(job.group_key) else 0, NOBODY
    )
    numbered = np.ones(groups + 1, bool)
    numbered[key[(job.seq < 0) & (key >= 0)]] = False
    owner = key.astype(np.int64)
    expected = np.where(key >= 0, job.group_size[np.maximum(key, 0)] if groups else 1, 1)
    by_number = numbered[owner] & (owner >= 0)
    part = np.where(by_number, NOBODY, job.step).astype(np.int64)
    # Without numbers those of one kind count among themselves: different kinds may run on different streams.
    number = np.where(by_number, job.seq, NOBODY - 1 - job.kind.astype(np.int64))
    peer = partners(job)
    paired = ((job.kind == SEND) | (job.kind == RECV)) & (peer >= 0)
    own = job.ranks[job.member]
    source = np.where(job.kind == SEND, own, peer)
    destination = np.where(job.kind == SEND, peer, own)
    owner = np.where(paired, groups + source * job.world + destination, owner)
    part = np.where(paired, job.step, part)
    number = np.where(paired, NOBODY, number)
    expected = np.where(paired, 2, expected)
    # Messages in both directions at once, or in one that is not told.
    exchanged = (job.kind == SEND_RECV) & (job.peer >= 0)
    ends = np.minimum(own, job.peer) * job.world + np.maximum(own, job.peer)
    owner = np.where(exchanged, groups + job.world**2 + ends, owner)
    part = np.where(exchanged, job.step, part)
    number = np.where(exchanged, job.seq, number)
    expected = np.where(exchanged, 2, expected)
    alone = (job.kind == STEP) | (owner < 0)
    part = np.where(_out_of_step(job, owner, part, number, ~alone), NOBODY, part)
    owner = np.where(alone, -1 - np.arange(rows), owner)
    return owner, part, number, np.where(alone, 1, expected)


def _out_of_step(job: Gathered, owner: Array, part: Array, number: Array, useful: Array) -> Array:
    """Rows that only the order in the whole recording matches: members have as many in all, but not in each step.

    Without launches a communication is in the step that it starts in, which for those who wait may be the step before.
    """
    rows = np.flatnonzero(useful & (part >= 0))
    out = np.zeros(len(part), bool)
    if not len(rows):
        return out
    kinds = number[rows] - number[rows].min()
    sort = np.unique(owner[rows] * (kinds.max() + 1) + kinds, return_inverse=True)[1]
    lanes, lane, in_all = _counted(sort * len(job.ranks) + job.member[rows])
    of_lane = lanes // len(job.ranks)
    count = int(of_lane.max()) + 1
    step = np.searchsorted(job.steps, part[rows])
    cells, _, in_step = _counted(lane * len(job.steps) + step)
    of_cell = of_lane[cells // len(job.steps)] * len(job.steps) + cells % len(job.steps)
    least, most, seen = _extremes(of_cell, in_step, count * len(job.steps))
    members = np.bincount(of_lane, minlength=count)
    differs = (seen > 0) & ((least < most) | (seen < np.repeat(members, len(job.steps))))
    fewest, greatest, _ = _extremes(of_lane, in_all, count)
    out[rows] = (differs.reshape(count, -1).any(axis=1) & (fewest == greatest))[sort]
    return out


def _counted(keys: Array) -> tuple[Array, Array, Array]:
    """The different keys, for each key its place among these, and how many there are of each."""
    return np.unique(keys, return_inverse=True, return_counts=True)


def _extremes(place: Array, values: Array, count: int) -> tuple[Array, Array, Array]:
    """The least and the greatest of the values of each place, and how many it has."""
    least = np.full(count, np.iinfo(np.int64).max)
    most = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(least, place, values)
    np.maximum.at(most, place, values)
    return least, most, np.bincount(place, minlength=count)


def partners(job: Gathered) -> Array:
    """The other rank of each send and receive; where the recorded numbers are places in a group, the rank at that place."""
    peer = job.peer.astype(np.int64)
    key = np.where(
        job.group >= 0, job.group_key[np.maximum(job.group, 0)] if len(job.group_key) else 0, NOBODY
    )
    message = (job.kind == SEND) | (job.kind == RECV)
    told_rows = np.flatnonzero(((job.peer >= 0) | message) & (key >= 0))
    told_rows = told_rows[np.argsort(key[told_rows], kind="stable")]
    bounds = np.flatnonzero(key[told_rows][1:] != key[told_rows][:-1]) + 1
    for rows in np.split(told_rows, bounds) if len(told_rows) else ():
        members = job.group_members[key[rows[0]]]
        told = peer[rows]
        own = job.ranks[job.member[rows]]
        if not members or (np.isin(told, members).all() and (told != own).all()):
            continue
        if len(members) == 2:
            peer[rows] = np.where(own == members[0], members[1], members[0])
        elif told.max() < len(members):
            peer[rows] = np.where(told >= 0, np.array(members)[told], NOBODY)
    return np.where(peer < job.world, peer, NOBODY)


def _turns(member: Array, owner: Array, part: Array, number: Array) -> Array:
    """How many of the same number the rank has had before, in order of start."""
    order = np.lexsort((np.arange(len(member)), number, part, owner, member))
    new = np.ones(len(order), bool)
    if len(order):
        new[1:] = np.any(
            [values[order][1:] != values[order][:-1] for values in (member, owner, part, number)], axis=0
        )
    begins = np.flatnonzero(new)
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    return turn


def _sound(job: Gathered, order: Array, first: Array, of_row: Array) -> Array:
    """Whether kinds and sizes of a communication agree, and a pair has one sender and one receiver."""
    if not len(first):
        return np.ones(0, bool)
    kind = job.kind[order].astype(np.int64)
    low, high = np.minimum.reduceat(kind, first), np.maximum.reduceat(kind, first)
    count = np.diff(np.append(first, len(order)))
    pair = (low == min(SEND, RECV)) & (high == max(SEND, RECV)) & (count == 2)
    one_way = np.isin(low, (SEND, RECV)) & (count > 1) & ~pair
    size = job.size_bytes[order]
    known = size >= 0
    least = np.minimum.reduceat(np.where(known, size, np.iinfo(np.int64).max), first)
    most = np.maximum.reduceat(np.where(known, size, -1), first)
    sizes_agree = (most < 0) | (least == most) | ~np.isin(low, OF_ONE_SIZE)
    sound: Array = pair | ((low == high) & sizes_agree & ~one_way)
    return sound
