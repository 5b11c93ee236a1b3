"""When communications that waited for their stream were ready."""

from __future__ import annotations

import pytest

from benchmarks.ranks.layouts import MIB, three_d
from benchmarks.ranks.simulate import Fault
from tests.ranks.jobs import made, named, true_saving_us


@pytest.mark.slow
def test_gradients_that_queue_are_ready_after_the_collective_of_their_layer() -> None:
    """Other ranks' gradients wait for the slow one's; they were ready once the tensor group's sum was, not before it."""
    job = three_d(
        tensor=2,
        pipeline=1,
        data=8,
        micro=1,
        layers=4,
        buckets=4,
        layer_us=400.0,
        gradient_bytes=20 * MIB,
        activation_bytes=40 * MIB,
        steps=4,
        kernels=2,
        per_node=4,
        faults=(Fault("slow-rank", 13, 1.4),),
    )
    simulated, ranks = made(job)
    assert named(ranks) == {("slow-rank", "rank 13")}
    true_us = true_saving_us(simulated, "slow-rank")
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.002 * simulated.step_us)
