"""A stage of a pipeline with more layers than the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.ranks.layouts import three_d
from benchmarks.ranks.simulate import Compute, Fault, Job, Op, Send
from foretrace.ranks.summary import STEP
from tests.ranks.jobs import made, named, simulate, true_saving_us

EVEN = three_d(tensor=2, pipeline=4, data=2, per_node=1, steps=4, kernels=2, layers=3)


def _with_more_layers(job: Job, stage: int) -> Job:
    """Every third layer of a stage twice, with the collective of its tensor group."""

    def program(rank: int, step: int) -> Iterator[Op]:
        computed, layers = None, 0
        for op in job.program(rank, step):
            yield op
            layer = isinstance(op, Send) and op.description == "tp"
            layers += layer
            if layer and computed is not None and job.stage(rank) == stage and layers % 3 == 0:
                yield computed
                yield op
            computed = op if isinstance(op, Compute) else None

    return replace(job, program=program)


@pytest.mark.slow
def test_more_layers_are_worth_their_collectives_too() -> None:
    simulated, ranks = made(_with_more_layers(EVEN, 2))
    assert named(ranks) == {("slow-stage", "stage 2")}
    true_us = simulated.step_us - simulate(EVEN).step_us
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


@pytest.mark.slow
def test_a_step_that_ends_with_a_message_is_not_idle_for_it() -> None:
    """Gradients for a slow rank of the stage before queue up, and the last is sent long after the sender has computed."""
    job = three_d(
        tensor=1,
        pipeline=2,
        data=2,
        micro=8,
        steps=4,
        kernels=2,
        buckets=1,
        faults=(Fault("slow-rank", 0, 1.3),),
    )
    simulated, ranks = made(replace(job, sync=False))
    assert named(ranks) == {("slow-rank", "rank 0")}
    whole = ranks.job
    marks = whole.kind == STEP
    behind = marks & (whole.queued >= 0)
    assert behind.sum() >= 3
    idle_ns = (whole.lead_ns - whole.computation_ns - whole.input_ns)[behind]
    assert idle_ns.max() < 0.01 * ranks.step_ns
    true_us = true_saving_us(simulated, "slow-rank")
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


@pytest.mark.slow
def test_a_slow_node_that_holds_whole_stages_is_one_finding() -> None:
    """Of eight stages of two ranks the third and fourth are on one node: nobody of their roles is elsewhere."""
    job = three_d(
        tensor=1,
        pipeline=8,
        data=2,
        per_node=4,
        order="tdp",
        steps=4,
        kernels=2,
        faults=(Fault("hot-node", 1, 1.15),),
    )
    simulated, ranks = made(job)
    assert named(ranks) == {("slow-node", "node 1")}
    assert ranks.findings[0].ranks == (4, 5, 6, 7)
    true_us = true_saving_us(simulated, "hot-node")
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)
