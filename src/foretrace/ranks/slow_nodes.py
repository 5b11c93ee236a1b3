"""Nodes whose ranks compute slowly: all ranks of a node together tell what none of them tells beyond chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretrace.ranks import chance, excess
from foretrace.ranks.excess import LEAST_EXCESS, LEAST_SLOWER, SPREADS, Slow
from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.roles import Roles
from foretrace.sourced import JUDGEMENT, Share

WHOLE_NODE = Share(0.75, "a node's ranks, that are slow where the node is", JUDGEMENT)
_FEWEST = 2  # ranks of a node, and of others, to be compared


@dataclass(frozen=True)
class SlowNode:
    """A node whose ranks take so many times as long as ranks of the same roles on other nodes."""

    node: int
    ratio: float
    members: Array  # places of its ranks
    usual: Array  # how many times as long as the others each of them takes


def find(job: Gathered, roles: Roles, step_ns: float) -> list[SlowNode]:
    """Slow nodes; where all ranks of a role are on one node, nothing tells it from the role."""
    shares = excess.over_roles(job, roles)
    usual = excess.median_of_steps(shares)
    nodes = np.unique(roles.node)
    found = []
    for node in nodes.tolist():
        own, others = _compared(roles, node, ~np.isnan(usual))
        if len(own) < _FEWEST or len(others) < _FEWEST:
            continue
        norm = float(np.median(usual[others]))
        times = usual[own] / norm
        ratio = float(np.median(times))
        more = float(excess.lower_median(times)) - 1
        limit = max(LEAST_SLOWER, _by_chance(shares, usual, own, others, len(nodes)))
        slow_ns = (ratio - 1) * float(np.nanmedian(job.per_step["computation_ns"][others]))
        whole = float(np.mean(times > 1 + (ratio - 1) / 2)) >= WHOLE_NODE
        if more > limit and whole and slow_ns >= LEAST_EXCESS * step_ns:
            found.append(SlowNode(node, ratio, own, times))
    return found


def _compared(roles: Roles, node: int, known: Array) -> tuple[Array, Array]:
    """Ranks of a node and those of other nodes, of roles that are on both."""
    here = known & (roles.node == node)
    there = known & (roles.node != node) & np.isin(roles.role, roles.role[here])
    here &= np.isin(roles.role, roles.role[there])
    return np.flatnonzero(here), np.flatnonzero(there)


def _by_chance(shares: Array, usual: Array, own: Array, others: Array, nodes: int) -> float:
    """How far the median of a node's ranks may be above that of others by chance: by how ranks differ, and how steps scatter."""
    ranks, steps = shares.shape
    by_steps = chance.errors(nodes, ranks * (steps - 1)) * chance.scatter(shares) / math.sqrt(steps)
    by_ranks = chance.errors(nodes) * excess.spread(usual[others])
    both = math.sqrt(1 / len(own) + 1 / len(others))
    return chance.OF_MEDIAN * both * max(by_steps, by_ranks)


def parted(node: SlowNode, slow: Sequence[Slow]) -> tuple[list[Slow], list[Slow]]:
    """What the ranks of a slow node take for its sake; and beyond that, of those found slow that are slower still."""
    limit = 1 + max(LEAST_SLOWER, SPREADS * excess.spread(node.usual / node.ratio))
    by_member = {each.member: each for each in slow if not each.once}
    of_node, beyond = [], []
    for member in node.members.tolist():
        each = by_member.get(member)
        steps = len(each.left) if each else 1
        of_node.append(Slow(member, "computation", np.full(steps, 1 / node.ratio), 0.0, node.ratio))
        if each is not None and each.ratio > limit * node.ratio:
            share = (each.ratio - node.ratio) / (each.ratio - 1)
            beyond.append(
                replace(
                    each,
                    left=each.left * node.ratio,
                    excess_ns=share * each.excess_ns,
                    ratio=each.ratio / node.ratio,
                    among="node",
                )
            )
    return of_node, beyond
