"""The clocks of the ranks: local = true + offset + drift * t, from the moments at which members of a collective leave it.

All members leave a collective at nearly the same true time. The sum of squared differences within each is made least, with
Huber's weights, by conjugate gradients. A common shift and a common stretch of all clocks cannot be told, and are taken out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import Matches
from foretrace.ranks.summary import KIND_CODE
from foretrace.statistics import deviation_of

# In these no member is done before all have come; the root of a broadcast waits for nobody.
FOR_ALL = tuple(
    KIND_CODE[name]
    for name in (
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "all_to_all",
        "barrier",
        "send",
        "recv",
        "send_recv",
    )
)
_PER_GROUP = 256  # collectives of a group that clocks are taken from
_PER_GROUP_OF_MANY = 96  # the same of a job with more rows than:
_MANY_ROWS = 2_000_000
_ROUNDS, _ITERATIONS = 5, 400
_LEAST_SCALE_NS = 200.0


@dataclass(frozen=True)
class Clocks:
    """Of each rank that was read: how far its clock is off, and by how much it runs fast; and what is left unexplained."""

    offset_ns: Array
    drift: Array  # nanoseconds per nanosecond
    residual_ns: float  # 99 % of the leaving moments agree within this
    pieces: Array  # ranks with the same number have clocks that can be compared

    def true_ns(self, member: Array, local_ns: Array) -> Array:
        """Moments on the common clock."""
        aligned: Array = local_ns - self.offset_ns[member] - self.drift[member] * local_ns
        return aligned


def align(job: Gathered, matches: Matches) -> Clocks:
    """The clocks of a job."""
    ranks = len(job.ranks)
    rows, collective = _telling(job, matches)
    pieces = _pieces(job.member[rows], collective, ranks)
    if not len(rows):
        return Clocks(np.zeros(ranks), np.zeros(ranks), 0.0, pieces)
    member, end = job.member[rows], job.end_ns[rows]
    rough = _rough_offsets(member, collective, end, ranks, pieces)
    system = _System(member, collective, end - rough[member], ranks, pieces)
    solution = np.zeros((2, ranks))
    for _ in range(_ROUNDS):
        solution, moved = system.solve(solution)
        system.reweigh(solution)
        if moved < 10.0:  # ns
            break
    offset, drift = system.clocks(solution)
    left = np.abs(system.residual(solution))
    return Clocks(offset + rough - drift * rough, drift, float(np.percentile(left, 99)), pieces)


def _rough_offsets(member: Array, collective: Array, end_ns: Array, ranks: int, pieces: Array) -> Array:
    """Offsets of clocks without drift.

    Where clocks are further apart than the recording is long, offset and drift can hardly be told from each other, and a
    common stretch is none of all clocks together: these are taken out first.
    """
    system = _System(member, collective, end_ns, ranks, pieces)
    system.at = np.zeros(len(member))
    offsets: Array = system.solve(np.zeros((2, ranks)))[0][0]
    return offsets


def _telling(job: Gathered, matches: Matches) -> tuple[Array, Array]:
    """Rows of collectives that all of their members wait in, at most so many of each group, sorted by collective."""
    useful = (matches.count > 1) & np.isin(job.kind[matches.order[matches.first]], FOR_ALL)
    numbers = np.flatnonzero(useful)
    if not len(numbers):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    lead_row = matches.order[matches.first[numbers]]
    group = job.group[lead_row]
    owner = np.where(group >= 0, job.group_key[np.maximum(group, 0)], -1)
    order = np.argsort(owner, kind="stable")
    begins = np.flatnonzero(np.append(True, owner[order][1:] != owner[order][:-1]))
    count = np.diff(np.append(begins, len(order)))
    place = np.arange(len(order)) - np.repeat(begins, count)
    most = _PER_GROUP if matches.count[numbers].sum() <= _MANY_ROWS else _PER_GROUP_OF_MANY
    every = np.maximum(np.repeat(count, count) // most, 1)
    numbers = np.sort(numbers[order[place % every == 0]])
    counts = matches.count[numbers]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = matches.order[np.repeat(matches.first[numbers], counts) + within]
    return rows, np.repeat(np.arange(len(numbers)), counts)


def _pieces(member: Array, collective: Array, ranks: int) -> Array:
    """Ranks that are connected through collectives have the same number."""
    label = np.arange(ranks)
    if not len(member):
        return label
    first = np.flatnonzero(np.append(True, collective[1:] != collective[:-1]))
    while True:
        least = np.minimum.reduceat(label[member], first)
        new = label.copy()
        np.minimum.at(new, member, least[collective])
        new = new[new]
        if np.array_equal(new, label):
            return label
        label = new


class _System:
    """The least squares problem; its unknowns are each rank's offset and its drift over half the recording."""

    def __init__(self, member: Array, collective: Array, end_ns: Array, ranks: int, pieces: Array) -> None:
        self.member, self.collective, self.ranks = member, collective, ranks
        self.first = np.flatnonzero(np.append(True, collective[1:] != collective[:-1]))
        self.pieces = np.unique(pieces, return_inverse=True)[1]
        self.middle = float((end_ns.min() + end_ns.max()) / 2)
        self.half = max(float(end_ns.max() - end_ns.min()) / 2, 1.0)
        self.end = end_ns - self.middle
        self.at = self.end / self.half
        self.weight = np.ones(len(member))
        self.target = self._centred(self.end)

    def _centred(self, values: Array) -> Array:
        """Values less their collective's weighted mean."""
        total = np.add.reduceat(self.weight, self.first)
        mean = np.add.reduceat(self.weight * values, self.first) / total
        centred: Array = values - mean[self.collective]
        return centred

    def _project(self, x: Array) -> Array:
        """Without what all clocks of a piece have in common."""
        size = np.bincount(self.pieces)
        means = np.array([np.bincount(self.pieces, values) / size for values in x])
        projected: Array = x - means[:, self.pieces]
        return projected

    def _per_rank(self, values: Array) -> Array:
        weighted = self.weight * values
        return np.array(
            [
                np.bincount(self.member, weighted, self.ranks),
                np.bincount(self.member, weighted * self.at, self.ranks),
            ]
        )

    def _apply(self, x: Array) -> Array:
        return self._project(self._per_rank(self._centred(x[0][self.member] + x[1][self.member] * self.at)))

    def solve(self, x: Array) -> tuple[Array, float]:
        """A better solution by preconditioned conjugate gradients, and how far a clock moved."""
        begin = x
        right = self._project(self._per_rank(self._centred(self.end)))
        scale = np.array(
            [
                np.bincount(self.member, self.weight, self.ranks),
                np.bincount(self.member, self.weight * self.at**2, self.ranks),
            ]
        )
        scale = 1 / np.maximum(scale, 1e-6)
        residual = right - self._apply(x)
        step = direction = self._project(scale * residual)
        energy = float((residual * step).sum())
        for _ in range(_ITERATIONS):
            if energy <= 0 or np.abs(step).max() < 1.0:  # ns
                break
            image = self._apply(direction)
            along = energy / max(float((direction * image).sum()), 1e-300)
            x = x + along * direction
            residual = residual - along * image
            step = self._project(scale * residual)
            next_energy = float((residual * step).sum())
            direction = step + (next_energy / energy) * direction
            energy = next_energy
        return x, float(np.abs(x - begin).max())

    def residual(self, x: Array) -> Array:
        """By how much each leaving moment differs from its collective's mean."""
        return self._centred(self.end - x[0][self.member] - x[1][self.member] * self.at)

    def reweigh(self, x: Array) -> None:
        """Huber's weights: what is far off counts less."""
        self.weight = np.ones(len(self.member))
        left = np.abs(self.residual(x))
        scale = max(2 * deviation_of(float(np.median(left))), _LEAST_SCALE_NS)
        self.weight = np.minimum(1.0, scale / np.maximum(left, 1e-9))

    def clocks(self, x: Array) -> tuple[Array, Array]:
        """Offsets at time 0 and drifts, of the unknowns."""
        drift = x[1] / self.half
        return x[0] - drift * self.middle, drift
