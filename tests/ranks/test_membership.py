"""Groups and ends of messages that recordings do not tell, from the moments at which ranks leave together."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.ranks.layouts import experts, three_d
from benchmarks.ranks.recordings import Style, write
from benchmarks.ranks.simulate import Fault
from foretrace.present.text import ranks as words
from foretrace.ranks.gathered import gather
from foretrace.ranks.matching import RECV, SEND, SEND_RECV, match
from foretrace.ranks.membership import inferred
from foretrace.ranks.reduce import reduce
from foretrace.ranks.summarise import summarise
from foretrace.ranks.summary import KIND_CODE, STEP, Group, Summary
from tests.ranks.jobs import DATA, PIPELINE, SMALL, named, simulate, summaries, true_saving_us

JOBS = {
    "tensor and data": three_d(tensor=4, pipeline=1, data=4, per_node=4, **SMALL),
    "pipeline": PIPELINE,
    "data runs faster": three_d(tensor=2, pipeline=2, data=4, order="dtp", per_node=4, **SMALL),
    "1f1b": three_d(tensor=1, pipeline=4, data=4, schedule="1f1b", micro=5, per_node=4, **SMALL),
    "one group": DATA,
}
ALL_TO_ALL = experts(world=16, expert=8, **SMALL)


def _nameless(summary: Summary, *, sizes: bool) -> Summary:
    """All groups have one name, no list of members, no numbers and no ends of messages; `sizes` are told, or not either."""
    groups = tuple(Group("", "", group.size if sizes else 0, ()) for group in summary.groups)
    nobody = pl.lit(-1, pl.Int32)
    rows = summary.rows.with_columns(peer=nobody, seq=nobody.cast(pl.Int64))
    return replace(summary, groups=groups, rows=rows)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [True, False])
@pytest.mark.parametrize("name", JOBS)
def test_communications_are_matched_as_if_members_were_told(name: str, sizes: bool) -> None:
    recorded = summaries(JOBS[name])
    told = gather(recorded)
    true, found = match(told), match(inferred(gather([_nameless(each, sizes=sizes) for each in recorded])))
    rows = np.flatnonzero(told.kind != STEP)
    pairs = np.unique(np.stack((true.number[rows], found.number[rows])), axis=1)
    assert len(pairs[0]) == len(np.unique(pairs[0])) == len(np.unique(pairs[1]))
    assert found.whole[found.number[rows]].all()


@pytest.mark.slow
def test_messages_that_were_launched_together_are_paired(tmp_path: Path) -> None:
    """Their recordings say "coalesced", and neither the direction nor the other end; the pipeline is still one of four stages."""
    job = JOBS["1f1b"]
    told = gather(summaries(job))
    write(simulate(job), tmp_path, Style(ends="none"))
    for path in tmp_path.iterdir():
        path.write_text(re.sub(r'"(?:send|recv)"', '"coalesced"', path.read_text()))
    ranks = reduce([summarise(path) for path in sorted(tmp_path.iterdir())])
    rows = np.flatnonzero(told.kind != STEP)
    assert (ranks.job.kind[rows] == SEND_RECV).sum() == np.isin(told.kind, (SEND, RECV)).sum()
    pairs = np.unique(np.stack((match(told).number[rows], ranks.matches.number[rows])), axis=1)
    assert len(pairs[0]) == len(np.unique(pairs[0])) == len(np.unique(pairs[1]))
    assert ranks.roles.stage.tolist() == [job.stage(rank) for rank in range(job.world)]
    assert ranks.findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [True, False])
def test_all_to_alls_that_look_like_messages_are_of_their_group(sizes: bool) -> None:
    """Kernels of both are called SendRecv: of eight ranks that leave together none is the other end of another."""
    recorded = summaries(ALL_TO_ALL)
    told = gather(recorded)
    alike = (
        pl.when(pl.col("kind") == KIND_CODE["all_to_all"]).then(SEND_RECV).otherwise("kind").cast(pl.UInt8)
    )
    nameless = [_nameless(each, sizes=sizes) for each in recorded]
    found = match(
        inferred(gather([replace(each, rows=each.rows.with_columns(kind=alike)) for each in nameless]))
    )
    rows = np.flatnonzero(told.kind != STEP)
    pairs = np.unique(np.stack((match(told).number[rows], found.number[rows])), axis=1)
    assert len(pairs[0]) == len(np.unique(pairs[0])) == len(np.unique(pairs[1]))


def test_a_job_that_tells_its_groups_is_left_as_it_is() -> None:
    job = gather(summaries(PIPELINE))
    assert inferred(job) is job


@pytest.mark.slow
def test_faults_are_named_where_no_group_is_told() -> None:
    faults = (Fault("slow-rank", 9, 1.3), Fault("slow-stage", 3, 1.2))
    job = three_d(tensor=2, pipeline=4, data=2, per_node=4, faults=faults, **SMALL)
    ranks = reduce([_nameless(each, sizes=False) for each in summaries(job)], ranks_per_node=4)
    assert named(ranks) == {("slow-rank", "rank 9"), ("slow-stage", "stage 3")}
    simulated = simulate(job)
    for finding in ranks.findings:
        true_us = true_saving_us(simulated, finding.what)
        assert finding.worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


@pytest.mark.slow
def test_moments_that_fit_no_layout_are_left_unmatched() -> None:
    """Each rank leaves when it likes: these are no collectives of a group, whatever their name and size."""
    random = np.random.default_rng(3)
    scattered = []
    for summary in summaries(JOBS["tensor and data"]):
        rows = _nameless(summary, sizes=True).rows
        late = pl.Series(np.sort(random.integers(0, 30_000_000, rows.height)))
        rows = rows.with_columns(
            start_ns=pl.when(pl.col("kind") == STEP).then("start_ns").otherwise(pl.col("start_ns") + late)
        )
        scattered.append(replace(_nameless(summary, sizes=True), rows=rows))
    job = inferred(gather(scattered))
    matches = match(job)
    assert (matches.count == 1).all()


@pytest.mark.slow
def test_where_messages_cannot_be_matched_worths_are_lower_bounds() -> None:
    """Messages of a pipeline on one stream, without their ends: the slow rank is named all the same, and a note says what is missing."""
    job = three_d(tensor=1, pipeline=4, data=4, per_node=4, faults=(Fault("slow-rank", 9, 1.3),), **SMALL)
    unpaired = []
    for summary in summaries(job):
        nobody = pl.lit(-1, pl.Int32)
        message = pl.col("kind").is_in((SEND, RECV))
        alone = replace(
            summary,
            groups=tuple(
                Group("", "", 4, ()) if group.description == "pp" else group for group in summary.groups
            ),
            rows=summary.rows.with_columns(
                peer=nobody,
                seq=pl.when(message).then(-1).otherwise("seq"),
                kind=pl.when(message).then(SEND_RECV).otherwise("kind").cast(pl.UInt8),
                size_bytes=pl.when(message)
                .then(pl.int_range(pl.len()) + 100 * summary.rank)
                .otherwise("size_bytes"),
            ),
        )
        unpaired.append(alone)
    ranks = reduce(unpaired, ranks_per_node=4)
    assert ("slow-rank", "rank 9") in named(ranks)
    assert all(finding.at_least for finding in ranks.findings)
    assert any("could not be matched" in note for note in words.notes(ranks))
