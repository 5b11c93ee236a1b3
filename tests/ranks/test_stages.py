"""A stage of a pipeline with more layers than the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ranks.layouts import three_d
from benchmarks.ranks.simulate import Compute, Job, Op, Send, simulate
from tests.ranks.jobs import made, named

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


def test_more_layers_are_worth_their_collectives_too(tmp_path: Path) -> None:
    simulated, ranks = made(_with_more_layers(EVEN, 2), tmp_path)
    assert named(ranks) == {("slow-stage", "stage 2")}
    true_us = simulated.step_us - simulate(EVEN).step_us
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)
