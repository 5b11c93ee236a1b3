"""Clocks, waits and last arrivers, against those of the simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.ranks.layouts import three_d
from benchmarks.ranks.recordings import Style
from benchmarks.ranks.truth import clock_errors_us, wait_errors
from tests.ranks.jobs import DATA, MANY, SMALL, made

JOBS = {
    "3d": three_d(tensor=2, pipeline=3, data=2, order="dtp", **SMALL),
    "ddp": replace(DATA, offset_us=2e6),
    # Clocks are minutes apart, and the recordings milliseconds long.
    "far": three_d(tensor=2, pipeline=4, data=2, steps=2, kernels=1, layers=1, micro=2, offset_us=6e7),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "numbered"), [("3d", True), ("3d", False), ("ddp", True), ("far", False)])
def test_clocks_and_waits_are_those_of_the_job(name: str, numbered: bool) -> None:
    simulated, ranks = made(JOBS[name], Style(numbered=numbered))
    assert np.abs(clock_errors_us(simulated, ranks)).max() < 5
    errors = wait_errors(simulated, ranks)
    assert np.percentile(np.abs(errors.wait_us), 99) < 5
    assert errors.last_right.mean() > 0.999
    assert len(errors.last_right) > 10


@pytest.mark.slow
def test_members_of_large_groups_come_from_the_header() -> None:
    """torch writes 30 of 36 members: the rest stands in pg_config only."""
    _, ranks = made(MANY)
    assert set(ranks.job.group_members) == {tuple(range(36))}
    assert ranks.matches.whole[ranks.matches.number][ranks.job.group >= 0].all()
