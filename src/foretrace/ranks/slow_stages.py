"""Stages of the pipeline that take longer than the median stage: by how much, and what they communicate more because of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.ranks import chance, excess
from foretrace.ranks.excess import LEAST_EXCESS, LEAST_SLOWER
from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import Matches
from foretrace.ranks.roles import Roles
from foretrace.ranks.summary import STEP
from foretrace.sourced import JUDGEMENT, Share

LEAST_STAGE = Share(0.05, "the computation of the median stage, by which a stage takes longer", JUDGEMENT)


@dataclass(frozen=True, eq=False)
class SlowStage:
    """A stage that computes so many times as long as the median stage; what is left of each transfer with as many layers as that."""

    stage: int
    ratio: float
    transfer: Array


def find(job: Gathered, matches: Matches, roles: Roles, step_ns: float) -> list[SlowStage]:
    """The slow stages."""
    return [
        SlowStage(stage, ratio, _left(job, matches, roles, stage, ratio))
        for stage, ratio in _slow(job, roles, step_ns)
    ]


def on_one_node(found: Sequence[SlowStage], roles: Roles) -> dict[int, list[SlowStage]]:
    """Nodes that hold nothing but slow stages, several of them and all alike: it is the node that is slow."""
    nodes: dict[int, list[SlowStage]] = {}
    for each in found:
        places = np.unique(roles.node[roles.stage == each.stage])
        if len(places) == 1:
            nodes.setdefault(int(places[0]), []).append(each)
    alike = {}
    for node, stages in nodes.items():
        ratios = [each.ratio for each in stages]
        held = np.isin(roles.stage[roles.node == node], [each.stage for each in stages]).all()
        if len(stages) > 1 and held and max(ratios) - min(ratios) <= LEAST_SLOWER:
            alike[node] = stages
    return alike


def _slow(job: Gathered, roles: Roles, step_ns: float) -> list[tuple[int, float]]:
    """Stages whose computation takes longer than the median stage's, and how many times as long."""
    if roles.stages_count < 2:
        return []
    table = excess.counted_steps(job.per_step["computation_ns"])
    each = np.array(
        [
            float(np.nanmedian(excess.lower_median(table[roles.stage == stage])))
            for stage in range(roles.stages_count)
        ]
    )
    norm = float(excess.lower_median(each))
    if not norm > 0:
        return []
    usual = excess.median_of_steps(table)
    known = usual > 0
    steps = table.shape[1]
    sizes = np.maximum(np.bincount(roles.stage, minlength=roles.stages_count) * steps, 1)
    error = chance.OF_MEDIAN * chance.scatter(table[known] / usual[known, None]) / np.sqrt(sizes)
    limit = 1 + np.maximum(LEAST_STAGE, chance.errors(len(each), len(table) * (steps - 1)) * error)
    return [
        (stage, float(each[stage] / norm))
        for stage in np.flatnonzero(each > limit * norm).tolist()
        if each[stage] - norm >= LEAST_EXCESS * step_ns
    ]


def _left(job: Gathered, matches: Matches, roles: Roles, slow: int, ratio: float) -> Array:
    """Of each communication within the stage: as many of its kind and size as the median stage has, over as many as it has.

    A stage with more layers also has more collectives of its tensor groups. What no other stage has is left as it is.
    """
    left = np.ones(len(matches.first))
    row = matches.order[matches.first]
    stage = roles.stage[job.member[matches.order]]
    same = np.minimum.reduceat(stage, matches.first) == np.maximum.reduceat(stage, matches.first)
    within = np.flatnonzero(same & (matches.count > 1) & (job.kind[row] != STEP))
    if not len(within):
        return left
    row = row[within]
    facts = np.stack((job.kind[row].astype(np.int64), job.size_bytes[row], matches.expected[within]))
    klass = np.asarray(np.unique(facts, axis=1, return_inverse=True)[1]).reshape(-1)
    counts = np.zeros((roles.stages_count, int(klass.max()) + 1))
    own = roles.stage[job.member[row]]
    np.add.at(counts, (own, klass), matches.count[within])
    counts /= np.maximum(np.bincount(roles.stage, minlength=roles.stages_count), 1)[:, None]
    norm = excess.lower_median(counts)
    share = np.where(norm > 0, norm / np.maximum(counts[slow], 1e-9), 1.0)
    left[within] = np.where(own == slow, np.clip(share, 1 / ratio, 1.0)[klass], 1.0)
    return left
