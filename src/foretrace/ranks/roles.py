"""Roles: ranks that do the same work, and so can be compared: the stage of the pipeline, and the collectives of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import RECV, SEND, SEND_RECV, partners
from foretrace.ranks.summary import STEP
from foretrace.ranks.waits import Waits

_LEAST_MEMBERS = 3  # of a part of a stage that is compared with itself only
DEFAULT_PER_NODE = 8


@dataclass(frozen=True)
class Roles:
    """Of each rank that was read: its stage, its role, and its node."""

    stage: Array
    stages_count: int
    role: Array
    node: Array

    def members(self, role: int) -> Array:
        """Places of the ranks with a role."""
        return np.flatnonzero(self.role == role)


def find(job: Gathered, waits: Waits, *, ranks_per_node: int | None) -> Roles:
    """The roles of a job's ranks."""
    stage = stages_of_world(job, waits)[job.ranks]
    signature = _signatures(job)
    both = np.unique(np.stack((stage, signature)), axis=1, return_inverse=True)[1]
    role = np.asarray(both).reshape(-1)
    small = np.bincount(role)[role] < _LEAST_MEMBERS
    # What is too few to be compared with itself is compared with its whole stage.
    role = np.unique(np.where(small, -1 - stage, role), return_inverse=True)[1]
    return Roles(stage, int(stage.max()) + 1, role, _nodes(job, ranks_per_node))


def stages_of_world(job: Gathered, waits: Waits) -> Array:
    """Of each rank of the job, read or not. Along the first messages of a step: those that send before they receive are stage 0, who they send to is stage 1.

    Ranks that were not read have their place too: those who talk to them tell it.
    """
    rows = np.flatnonzero((job.kind == SEND) | (job.kind == RECV))
    if not len(rows):  # where no direction is told, pipelines go to higher ranks
        rows = np.flatnonzero(job.kind == SEND_RECV)
    peer = partners(job)[rows]
    rows, peer = rows[peer >= 0], peer[peer >= 0]
    if not len(rows):
        return np.zeros(job.world, np.int64)
    own = job.ranks[job.member[rows]]
    both = job.kind[rows] == SEND_RECV
    source = np.where(both, np.minimum(own, peer), np.where(job.kind[rows] == SEND, own, peer))
    destination = np.where(both, np.maximum(own, peer), np.where(job.kind[rows] == SEND, peer, own))
    order = np.lexsort((waits.leave_ns[rows], job.step[rows]))
    source, destination, step = source[order], destination[order], job.step[rows][order]
    pairs = np.stack((step, np.minimum(source, destination), np.maximum(source, destination)))
    first = np.unique(pairs, axis=1, return_index=True)[1]
    source, destination = np.unique(np.stack((source[first], destination[first])), axis=1)
    begins = np.zeros(job.world, bool)
    begins[job.ranks] = _first_is_send(job, waits, len(job.ranks))
    begins[np.setdiff1d(source, destination)] = True
    far = np.iinfo(np.int64).max // 2
    stage = np.where(begins, 0, far)
    for _ in range(job.world):
        reached = stage.copy()
        np.minimum.at(reached, destination, np.minimum(stage[source] + 1, far))
        if np.array_equal(reached, stage):
            break
        stage = reached
    return np.where(stage >= far, 0, stage)


def _first_is_send(job: Gathered, waits: Waits, ranks: int) -> Array:
    """Ranks whose first message, in most steps, goes out."""
    rows = np.flatnonzero((job.kind == SEND) | (job.kind == RECV))
    # A receive may be posted early: what counts is which one is over first.
    order = rows[np.lexsort((waits.leave_ns[rows], job.step[rows], job.member[rows]))]
    if not len(order):
        return np.zeros(ranks, bool)
    keys = np.stack((job.member[order], job.step[order]))
    new = np.append(True, np.any(keys[:, 1:] != keys[:, :-1], axis=0))
    first = order[new]
    sent = np.bincount(job.member[first], job.kind[first] == SEND, ranks)
    steps = np.bincount(job.member[first], minlength=ranks)
    result: Array = (steps > 0) & (2 * sent > steps)
    return result


def _signatures(job: Gathered) -> Array:
    """A number for each rank: the same for ranks with as many collectives of the same kinds and group sizes."""
    rows = np.flatnonzero((job.kind != STEP) & (job.kind != SEND) & (job.kind != RECV) & (job.group >= 0))
    ranks = len(job.ranks)
    if not len(rows):
        return np.zeros(ranks, np.int64)
    size = job.group_size[job.group_key[job.group[rows]]]
    what = np.unique(np.stack((job.kind[rows].astype(np.int64), size)), axis=1, return_inverse=True)[1]
    what = np.asarray(what).reshape(-1)
    counts = np.zeros((ranks, int(what.max()) + 1))
    np.add.at(counts, (job.member[rows], what), 1.0)
    steps = np.maximum((~np.isnan(job.per_step["computation_ns"])).sum(axis=1), 1)
    per_step = np.round(counts / steps[:, None])
    return np.asarray(np.unique(per_step, axis=0, return_inverse=True)[1]).reshape(-1)


def _nodes(job: Gathered, ranks_per_node: int | None) -> Array:
    """By the names of the hosts where recordings have them, else by number."""
    if ranks_per_node is None and all(host is not None for host in job.hosts) and len(set(job.hosts)) > 1:
        names = {host: place for place, host in enumerate(dict.fromkeys(job.hosts))}
        return np.array([names[host] for host in job.hosts])
    return job.ranks // (ranks_per_node or _by_devices(job) or DEFAULT_PER_NODE)


def _by_devices(job: Gathered) -> int | None:
    """Ranks of a node, where each uses the device of its number within the node."""
    if any(device is None for device in job.devices):
        return None
    devices = np.array(job.devices)
    count = int(devices.max()) + 1
    return count if count > 1 and np.array_equal(devices, job.ranks % count) else None
