"""Collective arrivals: the collectives of several ranks, matched, and how much later than the others each rank arrived.

A collective ends everywhere when the last rank has arrived. So that rank's own is the shortest, and what another's is
longer is what that rank waited. Only durations are compared, for the clocks of two hosts need not agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import collective_calls
from foretrace.errors import MissingDataError
from foretrace.sourced import JUDGEMENT, Nanoseconds, Share
from foretrace.trace import Trace
from foretrace.units import format_value

# In these no rank is done before all have come. The root of a broadcast, or a sender, waits for nobody.
_FOR_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_OF_ONE_SIZE = ("all_reduce", "reduce_scatter")
LEAST_MATCHED = Share(0.5, "the collectives, that match in all ranks", JUDGEMENT)
NEXT_NS = Nanoseconds(20_000, "the time between collectives that were not waited for in between", JUDGEMENT)
FIRST_OF = Share(0.8, "a chain's longest wait: where the rank was late already", JUDGEMENT)


@dataclass(frozen=True)
class Matches:
    """Matched collectives: one row for each and each of its ranks, and how many of a group's ranks are there."""

    table: pl.DataFrame  # key, rank, step, on, id, start_ns, dur_ns, end_ns
    steps: tuple[int, ...]
    seen_count: int
    expected_count: int


@dataclass(frozen=True)
class Late:
    """A rank at collectives that follow one another without a pause: late once, at the first of them."""

    rank: int
    step: int
    key: int  # the collective at which it was late
    waits_ns: Mapping[int, int]  # for each collective, after the last of the others
    late_ns: int  # after the median of the others

    @property
    def excess_ns(self) -> int:
        """How long after the last of the others it arrived."""
        return max(self.waits_ns.values())


def match(traces: Mapping[int, Trace]) -> Matches:
    """The collectives that several ranks took part in, of the steps that all have.

    Two are the same if they have the same number in their group, where numbers are recorded; else if they are the same
    in the order of their group and step. Steps in which numbers, kinds or sizes then differ are left out.
    """
    steps = set.intersection(*({step.number for step in trace.steps} for trace in traces.values()))
    if not steps:
        raise MissingDataError(f"the recordings of ranks {_listed(traces)} have no step in common")
    calls = pl.concat(_calls(trace, rank, steps) for rank, trace in traces.items())
    if calls.is_empty():
        raise MissingDataError(
            f"no collective that all ranks wait in, with its duration, in the recordings of ranks {_listed(traces)}"
        )
    group = ("group", "ranks")
    numbered = pl.col("seq").is_not_null().all().over(group)
    by_seq = _keyed(calls.filter(numbered), (*group, "seq"))
    by_order = _keyed(calls.filter(~numbered), (*group, "step"))
    table = pl.concat((_agreeing(by_seq, "key"), _agreeing(by_order, "step")))
    if table.height < LEAST_MATCHED * calls.height:
        raise MissingDataError(
            f"{table.height} of {calls.height} collectives in the recordings of ranks {_listed(traces)} match: the rest "
            "differ in number, kind or size"
        )
    table = table.with_columns(pl.struct("group", "ranks", "part", "key").rank("dense").alias("key"))
    sizes = calls.group_by(group).agg(
        seen=pl.col("rank").n_unique(), recorded=pl.col("ranks_count").max()
    ).with_columns(wanted=pl.coalesce("recorded", pl.lit(_world(traces), pl.Int64), "seen"))  # fmt: skip
    short = sizes.sort(pl.col("seen") / pl.col("wanted")).row(0, named=True)
    return Matches(
        table.select("key", "rank", "step", "on", "id", "start_ns", "dur_ns", "end_ns"),
        tuple(sorted(table["step"].unique())),
        short["seen"],
        max(short["wanted"], short["seen"]),
    )


def lateness(matches: Matches, rank: int) -> list[Late]:
    """Where this rank was later than all others: one entry for each chain of collectives."""
    table = matches.table
    own = table.filter(pl.col("rank") == rank).select(
        "key", pl.col("dur_ns").alias("own_ns"), pl.col("start_ns").alias("own_start_ns")
    )
    waits = pl.col("dur_ns") - pl.col("own_ns")
    collectives = (
        table.filter(pl.col("rank") != rank)
        .join(own, on="key")
        .group_by("key", "own_start_ns")
        .agg(step=pl.col("step").first(), excess_ns=waits.min().clip(0), late_ns=waits.median())
        .sort("step", "own_start_ns")
    )
    excess_ns = dict(collectives.select("key", "excess_ns").iter_rows())
    late_ns = dict(collectives.select("key", "late_ns").iter_rows())
    lates = []
    for (step,), rows in collectives.group_by("step", maintain_order=True):
        for chain in _chains(table, rows["key"].to_list()):
            waits_ns = {key: int(excess_ns[key]) for key in chain}
            if longest := max(waits_ns.values()):
                first = next(key for key in chain if waits_ns[key] >= FIRST_OF * longest)
                lates.append(Late(rank, int(step), first, waits_ns, int(late_ns[first])))
    return lates


def _chains(table: pl.DataFrame, keys: list[int]) -> list[list[int]]:
    """Collectives in order, cut where every rank had a pause between two."""
    place = {key: at for at, key in enumerate(keys)}
    rows = table.filter(pl.col("key").is_in(keys))
    continued = np.zeros(len(keys), bool)
    for _, own in rows.group_by("rank"):
        order = own.with_columns(at=pl.col("key").replace_strict(place)).sort("at")
        reach = np.maximum.accumulate(order["end_ns"].to_numpy())
        at = order["at"].to_numpy()[1:]
        continued[at[order["start_ns"].to_numpy()[1:] - reach[:-1] <= NEXT_NS]] = True
    chains: list[list[int]] = []
    for key, more in zip(keys, continued, strict=True):
        if more and chains:
            chains[-1].append(key)
        else:
            chains.append([key])
    return chains


def _calls(trace: Trace, rank: int, steps: set[int]) -> pl.DataFrame:
    calls = collective_calls.find(trace).filter(
        pl.col("collective").is_in(_FOR_ALL) & (pl.col("dur_ns") > 0) & pl.col("step").is_in(list(steps))
    )
    return calls.with_columns(rank=pl.lit(rank, pl.Int64), end_ns=pl.col("start_ns") + pl.col("dur_ns"))


def _keyed(calls: pl.DataFrame, part: tuple[str, ...]) -> pl.DataFrame:
    """The calls with `key`, their number within a part, and whether every rank of the group has that part alike."""
    members = pl.col("rank").n_unique().over("group", "ranks")
    numbered = calls.with_columns(members=members, part=pl.col(part[-1]).cast(pl.Int64)).with_columns(
        key=pl.int_range(pl.len()).over("rank", *part)
    )
    same = (*part, "key")
    sized = pl.col("size_bytes").filter(pl.col("collective").is_in(_OF_ONE_SIZE)).drop_nulls()
    alike = (
        (pl.len().over(same) == pl.col("members"))
        & (pl.col("collective").n_unique().over(same) == 1)
        & (sized.n_unique().over(same) <= 1)
    )
    return numbered.with_columns(alike=alike & (pl.col("members") > 1))


def _agreeing(calls: pl.DataFrame, by: str) -> pl.DataFrame:
    """Calls that are alike; by order, only where the whole step is: one that is missing shifts all after it."""
    if by == "key":
        return calls.filter("alike").with_columns(
            step=pl.col("step").min().over("group", "ranks", "part", "key")
        )
    return calls.filter(pl.col("alike").all().over("group", "ranks", "step"))


def _world(traces: Mapping[int, Trace]) -> int | None:
    sizes = [size for trace in traces.values() if isinstance(size := trace.meta.get("world_size"), int)]
    return max(sizes, default=None)


def _listed(traces: Mapping[int, Trace]) -> str:
    names = [str(rank) for rank in sorted(traces)]
    return ", ".join(names if len(names) <= 8 else [*names[:7], f"... ({len(names)} in all)"])


def no_issue(values: Mapping[str, Any]) -> str | None:
    """What the analysis `communication` saw, in words."""
    count, exposed = values.get("collectives_count"), values.get("exposed_ns")
    if not count:
        return "no collective on this rank"
    return None if exposed is None else f"{format_value('_ns', exposed)} exposed of all"
