"""Half of the compared ranks have the fault: the other half shows what is normal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.ranks.layouts import three_d
from benchmarks.ranks.simulate import Fault
from tests.ranks.jobs import SMALL, made, named, simulate, true_saving_us


@pytest.mark.slow
def test_a_slow_node_is_measured_by_the_one_group_that_goes_around_it() -> None:
    """Two tensor groups, each over two nodes: the quarter between their times would be slower than the fast one."""
    job = three_d(tensor=4, pipeline=1, data=2, per_node=2, faults=(Fault("slow-node", 0, 3.0),), **SMALL)
    simulated, ranks = made(job)
    assert named(ranks) == {("slow-node", "node 0")}
    true_us = true_saving_us(simulated, "slow-node")
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


@pytest.mark.slow
def test_input_that_half_of_the_ranks_wait_for_in_every_step_counts_whole() -> None:
    """The median of all waits would be half of what the late ones wait."""
    late = tuple(Fault("late-input", rank, late_us=2_000, steps=(0, 1, 2, 3)) for rank in (4, 5, 6, 7))
    job = three_d(tensor=2, pipeline=1, data=4, per_node=4, faults=late, **SMALL)
    simulated, ranks = made(job)
    assert named(ranks) == {("late-input", "node 1")}
    true_us = simulated.step_us - simulate(replace(job, faults=())).step_us
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


@pytest.mark.slow
def test_a_node_is_named_though_none_of_its_ranks_is_beyond_chance_alone() -> None:
    """Each rank's steps differ by 1.5 %, in three that count: what eight ranks take longer together is not by chance."""
    job = three_d(
        tensor=2, pipeline=1, data=8, per_node=8, faults=(Fault("hot-node", 1, 1.08),), jitter=0.015, **SMALL
    )
    simulated, ranks = made(job)
    assert named(ranks) == {("slow-node", "node 1")}
    assert ranks.findings[0].ranks == tuple(range(8, 16))
    true_us = true_saving_us(simulated, "hot-node")
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.01 * simulated.step_us)
    assert made(replace(job, faults=()))[1].findings == ()
