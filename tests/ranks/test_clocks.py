"""Clocks, waits and last arrivers, against those of the simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.ranks.layouts import data_parallel, three_d
from benchmarks.ranks.recordings import Style
from benchmarks.ranks.truth import clock_errors_us, wait_errors
from tests.ranks.jobs import made

JOBS = {
    "3d": three_d(tensor=2, pipeline=3, data=2, order="dtp", steps=4, kernels=2),
    "ddp": data_parallel(world=8, steps=4, kernels=2, offset_us=2e6),
    # Clocks are minutes apart, and the recordings milliseconds long.
    "far": three_d(tensor=4, pipeline=4, data=2, steps=2, kernels=1, layers=1, micro=2, offset_us=6e7),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("numbered", [True, False])
def test_clocks_and_waits_are_those_of_the_job(name: str, numbered: bool, tmp_path: Path) -> None:
    simulated, ranks = made(JOBS[name], tmp_path, Style(numbered=numbered))
    assert np.abs(clock_errors_us(simulated, ranks)).max() < 5
    errors = wait_errors(simulated, ranks)
    assert np.percentile(np.abs(errors.wait_us), 99) < 5
    assert errors.last_right.mean() > 0.999
    assert len(errors.last_right) > 10


def test_members_of_large_groups_come_from_the_header(tmp_path: Path) -> None:
    """torch writes 30 of 40 members: the rest stands in pg_config only."""
    job = data_parallel(world=40, steps=2, buckets=2, kernels=1)
    _, ranks = made(job, tmp_path)
    assert set(ranks.job.group_members) == {tuple(range(40))}
    assert ranks.matches.whole[ranks.matches.number][ranks.job.group >= 0].all()
