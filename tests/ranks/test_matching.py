"""Communications find each other though recordings leave out who is in a group, or disagree about the step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.ranks.layouts import three_d
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import simulate
from foretrace.ranks.gathered import gather
from foretrace.ranks.matching import RECV, match
from foretrace.ranks.summarise import summarise
from foretrace.ranks.summary import STEP, Summary

JOB = three_d(tensor=2, pipeline=2, data=2, steps=3, kernels=1)


def _summaries(folder: Path) -> list[Summary]:
    write(simulate(JOB), folder)
    return [summarise(path) for path in sorted(folder.iterdir())]


def _all_whole(summaries: list[Summary]) -> bool:
    job = gather(summaries)
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


def test_ranks_that_use_a_group_of_one_name_are_its_members(tmp_path: Path) -> None:
    summaries = _summaries(tmp_path)
    known = {group for group in gather(summaries).group_members if group}
    unlisted = [_unlisted(each) for each in summaries]
    assert set(gather(unlisted).group_members) == known
    assert _all_whole(unlisted)


def test_messages_that_start_in_the_step_before_are_matched_by_their_order(tmp_path: Path) -> None:
    """Stage 1 waits for the first message of each step before its own step begins."""
    shifted = []
    for summary in _summaries(tmp_path):
        steps = summary.rows["step"].to_numpy().copy()
        if JOB.stage(summary.rank) == 1:
            receives = np.flatnonzero(summary.rows["kind"].to_numpy() == RECV)
            for step in np.unique(steps)[1:]:
                steps[receives[steps[receives] == step][0]] = step - 1
        shifted.append(
            replace(summary, rows=summary.rows.with_columns(step=pl.Series(steps, dtype=pl.Int32)))
        )
    assert _all_whole(shifted)
