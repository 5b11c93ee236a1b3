"""Late ranks: the rank that arrives last at the collectives of most steps, and what the others would save without that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns import work_before_collectives
from foretrace.diagnose.patterns.collective_arrivals import Late, Matches, lateness
from foretrace.diagnose.patterns.work_before_collectives import Activity, Stretch
from foretrace.errors import MissingDataError
from foretrace.sourced import JUDGEMENT, Share

MOST_STEPS = Share(
    0.75, "the steps: two ranks that are late in turn are both last in half of them", JUDGEMENT
)
COUNTS = Share(0.02, "a rank's lateness in a step: less is the scatter of many small collectives", JUDGEMENT)


@dataclass(frozen=True)
class LateRank:
    """The rank that is last in most steps, at which collectives, and the recordings of all ranks."""

    case: Case  # of the diagnosed rank
    cases: Mapping[int, Case]
    matches: Matches
    rank: int
    arrivals: Sequence[Late]

    @property
    def is_diagnosed(self) -> bool:
        """Whether the late rank is the one that is diagnosed."""
        return self.cases[self.rank] is self.case

    @property
    def diagnosed_rank(self) -> int:
        """The number of the diagnosed rank."""
        return next(rank for rank, case in self.cases.items() if case is self.case)

    @property
    def unrecorded_count(self) -> int:
        """How many ranks of the group were not recorded."""
        return self.matches.expected_count - self.matches.seen_count

    @cached_property
    def activities(self) -> dict[int, Activity]:
        """What each rank did when."""
        return {rank: work_before_collectives.activity(case.trace) for rank, case in self.cases.items()}

    @cached_property
    def before_arrivals(self) -> list[Stretch]:
        """The late rank's time before each late arrival."""
        stretches = (
            work_before_collectives.before_arrival(self.matches, self.cases[self.rank], self.rank, late)
            for late in self.arrivals
        )
        return [stretch for stretch in stretches if stretch is not None]

    @cached_property
    def more_ns(self) -> dict[str, float]:
        """What the late rank spends more on each part of its time than the others, in a step."""
        return work_before_collectives.more_ns(self.matches, self.cases, self.activities, self.arrivals)

    @cached_property
    def saved_ns(self) -> float:
        """What a step of the median rank would save if this one came with the last of the others; at the median step."""
        saved: dict[int, Counter[int]] = {step: Counter() for step in self.matches.steps}
        table = self.matches.table
        for late in self.arrivals:
            waiting = table.filter(pl.col("key").is_in(list(late.waits_ns)) & (pl.col("rank") != late.rank))
            for (rank,), rows in waiting.group_by("rank"):
                start = rows["start_ns"].to_numpy()
                waits_ns = np.array([late.waits_ns[key] for key in rows["key"]], np.int64)
                waited = intervals.union(start, start + waits_ns)
                exposed = intervals.subtract(waited, self.activities[int(rank)].computation).total_ns
                saved[late.step][int(rank)] += min(exposed, late.excess_ns)
        return float(
            np.median([np.median(list(ranks.values())) if ranks else 0.0 for ranks in saved.values()])
        )


def find(case: Case, cases: Mapping[int, Case], matches: Matches) -> LateRank | None:
    """The rank that is the last in most steps; None if there is no such."""
    lates = {rank: lateness(matches, rank) for rank in sorted(cases)}
    totals: dict[int, Counter[int]] = {step: Counter() for step in matches.steps}
    for rank, of_rank in lates.items():
        for late in of_rank:
            totals[late.step][rank] += late.excess_ns
    last = {step: total.most_common(1)[0][0] for step, total in totals.items() if total}
    if not last:
        return None
    rank, count = Counter(last.values()).most_common(1)[0]
    if count < MOST_STEPS * len(matches.steps):
        return None
    decisive = [
        late
        for late in lates[rank]
        if last[late.step] == rank and late.excess_ns >= COUNTS * totals[late.step][rank]
    ]
    return LateRank(case, cases, matches, rank, decisive)


def by_rank(case: Case) -> dict[int, Case]:
    """The diagnosed rank and the others, by their numbers."""
    name = case.trace.path.name
    others = case.other_ranks()
    if not others:
        raise MissingDataError(
            f"{name}: one rank's recording; which rank is late shows only in the recordings of all ranks"
        )
    cases: dict[int, Case] = {}
    for rank_case in (case, *others):
        rank = rank_case.trace.meta.get("rank")
        if not isinstance(rank, int) or rank in cases:
            raise MissingDataError(f"{name}: the recordings beside it do not tell which ranks they are of")
        cases[rank] = rank_case
    return cases
