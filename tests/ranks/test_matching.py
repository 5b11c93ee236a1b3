"""Communications find each other though recordings leave out who is in a group, or disagree about the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from foretrace.ranks.gathered import gather
from foretrace.ranks.matching import RECV, match, partners
from foretrace.ranks.summary import STEP, Summary
from tests.ranks.jobs import EXPERTS, PIPELINE, summaries


def _all_whole(ranks: list[Summary]) -> bool:
    job = gather(ranks)
    matches = match(job)
    return bool(matches.whole[matches.number[job.kind != STEP]].all())


def _unlisted(summary: Summary) -> Summary:
    """Groups are known by name and size, and the ends of messages by their place in the group."""
    groups = tuple(
        replace(group, name="-".join(map(str, group.members)), runs=()) for group in summary.groups
    )
    places = [
        summary.groups[group].members.index(peer) if peer >= 0 else -1
        for group, peer in summary.rows.select("group", "peer").iter_rows()
    ]
    rows = summary.rows.with_columns(peer=pl.Series(places, dtype=pl.Int32))
    return replace(summary, groups=groups, rows=rows)


@pytest.mark.slow
def test_ranks_that_use_a_group_of_one_name_are_its_members() -> None:
    told = summaries(PIPELINE)
    known = {group for group in gather(told).group_members if group}
    unlisted = [_unlisted(each) for each in told]
    assert set(gather(unlisted).group_members) == known
    assert _all_whole(unlisted)


@pytest.mark.slow
def test_a_collective_that_lacks_a_member_is_not_whole() -> None:
    """Rank 0 was not read: collectives of its groups are incomplete, and all others are whole."""
    complete = [summary for summary in summaries(EXPERTS) if summary.rank != 0]
    job = gather(complete)
    whole = match(job).whole[match(job).number]
    members = [
        job.group_members[job.group_key[group]] if peer < 0 <= group else ()
        for group, peer in zip(job.group, partners(job), strict=True)
    ]
    collectives = [row for row, ranks in enumerate(members) if len(ranks) > 1]
    assert {0 in members[row] for row in collectives} == {True, False}
    assert [bool(whole[row]) for row in collectives] == [0 not in members[row] for row in collectives]


@pytest.mark.slow
def test_messages_that_start_in_the_step_before_are_matched_by_their_order() -> None:
    """Stage 1 waits for the first message of each step before its own step begins."""
    shifted = []
    for summary in summaries(PIPELINE):
        steps = summary.rows["step"].to_numpy().copy()
        if PIPELINE.stage(summary.rank) == 1:
            receives = np.flatnonzero(summary.rows["kind"].to_numpy() == RECV)
            for step in np.unique(steps)[1:]:
                steps[receives[steps[receives] == step][0]] = step - 1
        shifted.append(
            replace(summary, rows=summary.rows.with_columns(step=pl.Series(steps, dtype=pl.Int32)))
        )
    assert _all_whole(shifted)
