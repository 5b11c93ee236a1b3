"""A rank that starts recording a step later, or ends one earlier, does not shrink what a fix would save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.ranks.layouts import data_parallel, three_d
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import Fault, Job, simulate
from foretrace.ranks.reduce import reduce
from foretrace.ranks.summarise import summarise
from tests.ranks.jobs import named, true_saving_us

SLOW = Fault("slow-rank", 5, 1.3)
JOBS = {
    "ddp": data_parallel(world=8, steps=3, buckets=3, kernels=1, faults=(SLOW,)),
    "3d": three_d(tensor=2, pipeline=2, data=2, steps=4, kernels=1, faults=(SLOW,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("lacked", ["first", "last"])
def test_savings_are_those_of_the_steps_that_all_ranks_recorded(
    name: str, lacked: str, tmp_path: Path
) -> None:
    """Rank 2, a healthy one, lacks a step: the truth stays what a step of the simulated job saves."""
    job: Job = JOBS[name]
    simulated = simulate(job)
    rank = simulated.ranks[2]
    first, last = rank.marks[0][0], rank.marks[-1][0]
    without = first if lacked == "first" else last
    begin, end = next((begin, end) for step, begin, end in rank.marks if step == without)
    parts: tuple[list[Any], ...] = (rank.rows, rank.kernels, rank.loads, rank.marks)
    for work in parts:
        work[:] = [item for item in work if not begin <= _launched_us(item) < end]
    write(simulated, tmp_path)
    ranks = reduce([summarise(path) for path in sorted(tmp_path.iterdir())], ranks_per_node=job.per_node)
    assert without not in ranks.job.steps
    assert len(ranks.job.steps) == job.steps - 1
    assert ranks.left_out_steps == (without,)
    assert named(ranks) == {("slow-rank", "rank 5")}
    step_us, saved_us = simulated.step_us, true_saving_us(simulated, "slow-rank")
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(saved_us, abs=0.005 * step_us)
    assert not ranks.findings[0].at_least
    assert ranks.step_ns / 1e3 == pytest.approx(step_us, rel=0.02)
    assert ranks.missing == ()


def _launched_us(item: object) -> float:
    """When the host issued it; of a mark or a load, which are tuples, its begin."""
    if isinstance(item, tuple):
        return float(item[-2])
    return float(item.launch_us)  # type: ignore[attr-defined]
