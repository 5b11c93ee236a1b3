"""The summaries of a job side by side: every communication of every rank in one table of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.errors import MissingDataError
from foretrace.ranks.summary import NOBODY, Group, Summary

Array = NDArray[Any]
_SAME_CLOCK_NS = (
    3_600 * 10**9
)  # epochs further apart are of clocks that nobody set: begins are compared instead


@dataclass(frozen=True)
class Gathered:
    """Rows of all ranks, rank after rank; `before` and `queued` are rows of this table. Times are float nanoseconds."""

    ranks: Array  # numbers of the ranks that were read, ascending
    world: int
    member: Array  # place in `ranks`, of each row
    step: Array
    kind: Array
    group: Array  # of `groups`
    seq: Array
    peer: Array
    size_bytes: Array
    start_ns: Array  # on the rank's own clock, from one zero
    end_ns: Array
    before: Array
    queued: Array
    queue_ns: Array
    still: Array
    previous: Array  # the communication that the rank stood still for before it stood still for this one
    work_ns: Array
    work_computation_ns: Array
    work_input_ns: Array
    lead_ns: Array
    computation_ns: Array
    input_ns: Array
    begin_ns: Array  # of each rank
    groups: tuple[Group, ...]
    group_key: Array  # for each of `groups` which group of the job it is
    group_size: Array  # of each group of the job
    group_members: tuple[tuple[int, ...], ...]
    steps: Array  # numbers of the steps
    per_step: dict[str, Array]  # for each rank and step; NaN where the rank has no such step
    hosts: tuple[str | None, ...]
    devices: tuple[int | None, ...]
    device_name: str | None

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job that were not read."""
        seen = set(self.ranks.tolist())
        return tuple(rank for rank in range(self.world) if rank not in seen)


def gather(summaries: Sequence[Summary]) -> Gathered:
    """The summaries, one of each rank, as one table."""
    summaries = _same_steps(sorted(summaries, key=lambda each: each.rank))
    if not summaries:
        raise MissingDataError("no rank could be read")
    heights = np.array([each.rows.height for each in summaries])
    first = np.concatenate(([0], np.cumsum(heights)[:-1]))
    zero = _zeros(summaries)
    groups, keys, sizes, members = _groups(summaries)
    group_first = np.concatenate(([0], np.cumsum([len(each.groups) for each in summaries])[:-1]))
    member = np.repeat(np.arange(len(summaries), dtype=np.int32), heights)

    def column(name: str, dtype: Any = None) -> Array:
        values = np.concatenate([each.rows[name].to_numpy() for each in summaries])
        return values if dtype is None else values.astype(dtype)

    def link(name: str, shift: Array) -> Array:
        places = column(name, np.int32)
        return np.where(places >= 0, places + np.repeat(shift, heights).astype(np.int32), NOBODY)

    start = column("start_ns", np.float64) + np.repeat(zero, heights)
    end = start + column("dur_ns")
    still = column("still")
    steps, per_step = _steps(summaries)
    return Gathered(
        ranks=np.array([each.rank for each in summaries]),
        world=max([each.world or 0 for each in summaries] + [summaries[-1].rank + 1]),
        member=member,
        step=column("step"),
        kind=column("kind"),
        group=link("group", group_first),
        seq=column("seq"),
        peer=column("peer"),
        size_bytes=column("size_bytes"),
        start_ns=start,
        end_ns=end,
        before=link("before", first),
        queued=link("queued", first),
        queue_ns=column("queue_ns", np.float64),
        still=still,
        previous=_previous(member, end, still),
        **{
            name: column(name, np.float64)
            for name in (
                "work_ns",
                "work_computation_ns",
                "work_input_ns",
                "lead_ns",
                "computation_ns",
                "input_ns",
            )
        },
        begin_ns=np.array([each.begin_ns for each in summaries], np.float64) + zero,
        groups=groups,
        group_key=keys,
        group_size=sizes,
        group_members=members,
        steps=steps,
        per_step=per_step,
        hosts=tuple(each.host for each in summaries),
        devices=tuple(each.device for each in summaries),
        device_name=summaries[0].device_name,
    )


def _same_steps(summaries: list[Summary]) -> list[Summary]:
    """The summaries, where a rank has no steps with the whole of each as one: what is not numbered alike cannot be compared.

    A stage in the middle of a pipeline loads no data, and so may be the only one that nothing tells the steps of.
    """
    if not any((each.steps["step"] == NOBODY).any() for each in summaries):
        return summaries
    whole = pl.lit(0, pl.Int32).alias("step")
    sums = pl.col("computation_ns", "input_ns", "other_ns", "kernels_count").sum()
    return [
        replace(
            each,
            rows=each.rows.with_columns(whole),
            steps=each.steps.select(whole, pl.col("start_ns").min(), pl.col("end_ns").max(), sums),
        )
        for each in summaries
    ]


def _zeros(summaries: Sequence[Summary]) -> Array:
    """What to add to each rank's times: its clock as it stands, or its begin at 0 where clocks have nothing in common.

    Ranks that all ran since one start of one host have that host's clock in common, which no date is set on.
    """
    hosts = [each.host_zero_ns for each in summaries]
    if len({each.boot for each in summaries}) == 1 and all(zero is not None for zero in hosts):
        first = min(
            zero + each.begin_ns for zero, each in zip(hosts, summaries, strict=True) if zero is not None
        )
        return np.array([zero - first for zero in hosts if zero is not None], np.float64)
    begins = [each.epoch_ns + each.begin_ns for each in summaries]
    if max(begins) - min(begins) > _SAME_CLOCK_NS:
        return np.array([-each.begin_ns for each in summaries], np.float64)
    zero = min(begins)
    return np.array([each.epoch_ns - zero for each in summaries], np.float64)


def _previous(member: Array, end: Array, still: Array) -> Array:
    places = np.flatnonzero(still)
    order = places[np.lexsort((end[places], member[places]))]
    previous = np.full(len(member), NOBODY, np.int32)
    same = member[order][1:] == member[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _groups(
    summaries: Sequence[Summary],
) -> tuple[tuple[Group, ...], Array, Array, tuple[tuple[int, ...], ...]]:
    """All groups as recorded, for each which group of the job it is, and the sizes and members of those.

    Groups are the same if they have the same members: names may differ between ranks. Several with the same members are told
    apart by their description, then by which was used first. Where no recording lists the members, they are the ranks that
    used a group of that name, if these are as many as it has.
    """
    known: dict[tuple[Any, ...], int] = {}
    keys: list[int] = []
    groups: list[Group] = []
    sizes: list[int] = []
    members: list[tuple[int, ...]] = []
    users: dict[int, list[int]] = {}
    for summary in summaries:
        turns: dict[tuple[Any, ...], int] = {}
        for group in summary.groups:
            ascending = all(stride > 0 for _, _, stride in group.runs) and len(group.runs) <= 1
            who: Any = group.runs if ascending else tuple(sorted(group.members))
            key = (who or ("named", group.name, group.size), group.description)
            turns[key] = turns.get(key, -1) + 1
            number = known.setdefault((*key, turns[key]), len(known))
            keys.append(number)
            groups.append(group)
            users.setdefault(number, []).append(summary.rank)
            if number == len(sizes):
                sizes.append(max(group.size, 1))
                members.append(group.members)
    for number, ranks in users.items():
        if not members[number] and len(ranks) == sizes[number] > 1:
            members[number] = tuple(ranks)
    return tuple(groups), np.array(keys, np.int32), np.array(sizes, np.int64), tuple(members)


def _steps(summaries: Sequence[Summary]) -> tuple[Array, dict[str, Array]]:
    """Numbers of all steps, and what each rank did in each."""
    numbers = np.unique(np.concatenate([each.steps["step"].to_numpy() for each in summaries]))
    names = ("computation_ns", "input_ns", "other_ns", "kernels_count")
    tables = {name: np.full((len(summaries), len(numbers)), np.nan) for name in names}
    for row, summary in enumerate(summaries):
        at = np.searchsorted(numbers, summary.steps["step"].to_numpy())
        for name, table in tables.items():
            table[row, at] = summary.steps[name].to_numpy()
    return numbers, tables
