"""What all ranks lose, alike or in turn, has its number, and the path across ranks does not call it computation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.ranks.layouts import data_parallel
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import Fault, simulate
from foretrace.present.text import ranks as words
from foretrace.ranks.reduce import reduce
from foretrace.ranks.summarise import summarise
from tests.ranks.jobs import made, named

OPTIONS = {"world": 4, "steps": 4, "buckets": 2, "kernels": 1}


@pytest.mark.slow
def test_input_of_all_ranks_has_its_number() -> None:
    """Every rank loads for 8 ms in each step before it computes for 10.5 ms: nobody is late, and 8 ms are lost."""
    simulated, ranks = made(data_parallel(input_us=8_000.0, **OPTIONS))
    quick = simulate(data_parallel(input_us=0.0, **OPTIONS))
    saved_us = simulated.step_us - quick.step_us
    assert saved_us > 0.3 * simulated.step_us
    assert ranks.judged.input_ns is not None
    assert ranks.judged.input_ns / 1e3 == pytest.approx(saved_us, rel=0.05)
    assert named(ranks) == {("late-input", "all ranks")}
    assert ranks.findings[0].worth_ns == ranks.judged.input_ns
    assert "in every step all ranks wait for input: " in words.headline(ranks)
    path = ranks.path.with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    sums = dict(path.group_by("what").agg(pl.col("ns").sum()).iter_rows())
    assert sums["input"] / 1e3 / simulated.job.steps == pytest.approx(
        8_000, rel=0.25
    )  # loads scatter by 20 %
    computed_us = np.mean(
        [sum(kernel.end_us - kernel.start_us for kernel in rank.kernels) for rank in simulated.ranks]
    )
    assert sums["computation"] / 1e3 == pytest.approx(computed_us, rel=0.05)


@pytest.mark.slow
def test_a_healthy_job_loses_nothing_by_turns() -> None:
    _, ranks = made(data_parallel(**OPTIONS))
    assert words.headline(ranks).endswith("holds the others up")
    assert ranks.judged.pauses_ns is not None
    assert ranks.judged.pauses_ns < 0.02 * ranks.step_ns


@pytest.mark.slow
def test_pauses_that_hit_one_rank_after_the_other_have_their_number(tmp_path: Path) -> None:
    """Each rank stands still for 6 ms in one step, each in another, and all others wait: a pause in each step, nobody late twice."""
    healthy = simulate(data_parallel(**OPTIONS))
    late = tuple(Fault("late-input", rank, late_us=6_000.0, steps=(rank,)) for rank in range(4))
    job = replace(data_parallel(**OPTIONS), faults=late)
    simulated = simulate(job)
    saved_us = simulated.step_us - healthy.step_us
    for rank in simulated.ranks:
        rank.loads.clear()  # not seen as input: the host does something that was not recorded
    write(simulated, tmp_path)
    ranks = reduce([summarise(path) for path in sorted(tmp_path.iterdir())], ranks_per_node=8)
    assert ranks.judged.pauses_ns is not None
    assert ranks.judged.pauses_ns / 1e3 == pytest.approx(saved_us, rel=0.1)
    assert "ranks pause in turn" in words.headline(ranks) or ranks.findings
    assert not any(finding.what == "slow-rank" and finding.steady for finding in ranks.findings)
