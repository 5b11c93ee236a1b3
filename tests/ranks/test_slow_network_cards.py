"""A slow network card of one rank is named beside fast links inside its node, and so is a slow link between two nodes."""

from __future__ import annotations

import pytest

from benchmarks.ranks.layouts import sharded, three_d
from benchmarks.ranks.simulate import Fault
from tests.ranks.jobs import made, named, true_saving_us


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "number", "who"), [("slow-nic", 5, "rank 5"), ("slow-pair", 0, "nodes 0 and 1")]
)
def test_a_slow_network_card_is_named_beside_fast_links_in_the_node(what: str, number: int, who: str) -> None:
    """Tensor parallel inside the node, data parallel between nodes 0 and 1 or 2 and 3, pipelines between 0 and 2 or 1 and 3.

    With a slow card only rank 5 takes part in all slow transfers; with a slow pair each of its ranks also has fast ones.
    """
    job = three_d(
        tensor=2,
        pipeline=2,
        data=2,
        per_node=2,
        steps=4,
        kernels=1,
        faults=(Fault(what, number, 4.0),),
    )
    simulated, ranks = made(job)
    assert named(ranks) == {("slow-link", who)}
    true_us = true_saving_us(simulated, what)
    assert true_us > 0.02 * simulated.step_us
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


@pytest.mark.slow
def test_a_group_is_named_where_nothing_tells_its_members_apart() -> None:
    """Each replica group is the only one in which its ranks leave the node: any of the four may have the slow card."""
    job = sharded(
        world=16, shard=4, per_node=4, steps=3, layers=3, kernels=1, faults=(Fault("slow-nic", 9, 6.0),)
    )
    simulated, ranks = made(job)
    assert named(ranks) == {("slow-link", "ranks 1, 5, 9 and 13")}
    assert "which of them is slow cannot be told" in ranks.findings[0].says
    true_us = true_saving_us(simulated, "slow-nic")
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.01 * simulated.step_us)
