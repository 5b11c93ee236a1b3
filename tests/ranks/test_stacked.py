"""Ranks stacked on the common clock, against the simulation, whose times are true."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from benchmarks.ranks.layouts import data_parallel, three_d
from benchmarks.ranks.simulate import Fault, Job, Rank, Simulated
from foretrace.errors import UsageError
from foretrace.present.web.resources import rank_stack
from foretrace.ranks import stacked
from foretrace.ranks.reduce import Ranks
from tests.ranks.jobs import MANY, made

SLOW = Fault("slow-rank", 5, 1.3)
JOBS = {
    "3d": three_d(tensor=2, pipeline=3, data=2, order="dtp", steps=3, kernels=2, offset_us=2e6),
    "ddp": data_parallel(world=8, steps=3, kernels=2, offset_us=2e6, faults=(SLOW,)),
}


def true_us(rank: Rank) -> tuple[float, float, float]:
    """Of a whole job, by looking every microsecond: computing; else communicating; else waiting for the last to arrive."""
    ends = [row.end_us or 0.0 for row in rank.rows] + [kernel.end_us for kernel in rank.kernels]
    at = np.arange(rank.marks[0][1], max(ends), 1.0) + 0.5

    def under_way(between: list[tuple[float, float]]) -> np.ndarray:
        count = np.zeros(len(at) + 1)
        for start, end in between:
            count[np.searchsorted(at, start)] += 1
            count[np.searchsorted(at, end)] -= 1
        return np.cumsum(count)[:-1] > 0

    computing = under_way([(kernel.start_us, kernel.end_us) for kernel in rank.kernels])
    latest = [max(peer.start_us or 0.0 for peer in row.peers) for row in rank.rows]
    moving = under_way([(last, row.end_us or 0.0) for last, row in zip(latest, rank.rows, strict=True)])
    coming = under_way([(row.start_us or 0.0, last) for last, row in zip(latest, rank.rows, strict=True)])
    return computing.sum(), (moving & ~computing).sum(), (coming & ~moving & ~computing).sum()


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_stacked_ranks_are_those_of_the_job(job: Job) -> None:
    simulated, ranks = made(job)
    sums: dict[int, np.ndarray] = {rank: np.zeros(3) for rank in ranks.job.ranks.tolist()}
    raw_ns = ranks.job.end_ns
    for step in ranks.job.steps.tolist():
        found = stacked.stack(ranks, step, ranks.job.ranks.tolist())
        assert found.ranks == tuple(ranks.job.ranks)
        # All members leave together, though their own clocks are seconds apart.
        left = found.calls.group_by("communication").agg(
            pl.len(), spread_ns=pl.col("leave_ns").max() - pl.col("leave_ns").min()
        )
        assert max(left["len"]) > 1
        assert max(left["spread_ns"]) < 5_000
        for communication in left.filter(pl.col("len") > 1)["communication"]:
            assert np.ptp(raw_ns[ranks.matches.number == communication]) > 1e6
        table = ranks.waits.filter(pl.col("step") == step)
        for rank in found.ranks:
            own = found.spans.filter(pl.col("rank") == rank)
            # One after the other without a gap: they add up to the step.
            assert own["start_ns"][1:].equals(own["end_ns"][:-1])
            assert (own["end_ns"] > own["start_ns"]).all()
            for part in range(3):
                spans = own.filter(pl.col("part") == part)
                sums[rank][part] += sum(spans["end_ns"] - spans["start_ns"]) / 1e3
            # What is neither computation, communication nor input is the same in the table.
            paused = own.filter(pl.col("part") == stacked.OTHER)
            other_us = table.filter(pl.col("rank") == rank)["other_ns"][0] / 1e3
            assert sum(paused["end_ns"] - paused["start_ns"]) / 1e3 == pytest.approx(other_us, abs=10)
    for rank, parts in sums.items():
        assert parts == pytest.approx(true_us(simulated.ranks[rank]), rel=2e-3, abs=10)
    if SLOW in job.faults:
        _shown_as_chosen(simulated, ranks)


def _shown_as_chosen(simulated: Simulated, ranks: Ranks) -> None:
    """The page's rows: the slow rank is among few of many, and the others wait for it longest."""
    step = stacked.worst_step(ranks)
    assert 5 in stacked.choose(ranks, step, [0])
    found = rank_stack.of_query(ranks, {"ranks": "0,7", "step": str(step)})
    assert {0, 5, 7} <= set(found["ranks"])
    assert found["longest"]["last_rank"] == 5
    rows = [
        row for rank in simulated.ranks for row in rank.rows if row.step == step - simulated.job.first_step
    ]
    apart_us = max(peer.start_us - row.start_us for row in rows for peer in row.peers)  # type: ignore[operator]
    assert found["longest"]["wait_ns"] / 1e3 == pytest.approx(apart_us, abs=5)
    assert max(row[-1][2] for row in found["spans"]) == found["end_ns"]
    for query, says in (({"step": "99"}, "no step 99"), ({"ranks": "8"}, "rank 8 was not read"),
                        ({"step": "-1"}, "not a number"), ({"px": "1"}, "takes step and ranks")):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            rank_stack.of_query(ranks, query)


@pytest.mark.slow
def test_of_many_ranks_few_are_stacked() -> None:
    _, ranks = made(MANY)
    step = stacked.worst_step(ranks)
    chosen = stacked.choose(ranks, step, [3])
    assert len(chosen) == stacked.MOST_ROWS
    assert {2, 3, 4, 32, 33, 34} <= set(chosen)
