"""The summaries of a job become Ranks: clocks, collectives, waits, roles and findings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from foretrace.ranks import clocks as clocks_of
from foretrace.ranks import (
    common_steps,
    findings,
    matching,
    membership,
    readiness,
    rebuild,
    roles,
    tables,
    waits,
)
from foretrace.ranks.clocks import Clocks
from foretrace.ranks.cycles import Cycle
from foretrace.ranks.findings import Judged, RankFinding
from foretrace.ranks.gathered import Array, Gathered, gather
from foretrace.ranks.matching import Matches
from foretrace.ranks.rebuild import Whole
from foretrace.ranks.replay import Replay
from foretrace.ranks.roles import Roles
from foretrace.ranks.summary import STEP, TRUNCATED, Summary
from foretrace.ranks.unused import CUT_OFF, LOST, UNREADABLE, Unused
from foretrace.ranks.waits import Waits
from foretrace.sourced import JUDGEMENT, Share

RANKS_SCHEMA = 1
_NUMBER = re.compile(r"[0-9]+")
MOST_RESIDUAL = Share(
    0.05,
    "the step, that moments of leaving may differ by: with more, collectives are not matched rightly",
    JUDGEMENT,
)


@dataclass(frozen=True)
class Ranks:
    """A job's ranks on one clock; the tables are made when first asked for."""

    job: Gathered
    matches: Matches
    aligned: Clocks
    measured: Waits
    roles: Roles
    replay: Replay = field(repr=False)
    judged: Judged
    step_ns: float  # the mean step: from the first begin to the last end
    unused: tuple[Unused, ...] = ()  # recordings that are not compared, and why
    cut_off: tuple[
        int, ...
    ] = ()  # ranks that were read in part: their recordings are truncated, or lack most steps
    cycle: Cycle | None = None  # which profiling cycle is compared; None where there is only one
    left_out_steps: tuple[int, ...] = ()  # steps that not all ranks recorded
    lacking: tuple[int, ...] = ()  # ranks that lack any of these

    @property
    def findings(self) -> tuple[RankFinding, ...]:
        """What holds the job up, the worthiest first."""
        return self.judged.findings

    @property
    def unread(self) -> dict[str, str]:
        """Why each recording that is not compared is not."""
        return {unused.path: unused.says for unused in self.unused}

    @property
    def read_share(self) -> float:
        """Of the job's ranks those whose recordings were read whole."""
        return (len(self.job.ranks) - len(self.cut_off)) / max(self.job.world, 1)

    def hosts_of(self, finding: RankFinding) -> tuple[str, ...]:
        """Names of the hosts of the ranks or nodes that a finding names, where recordings tell them."""
        kind, _, rest = finding.who.partition(" ")
        numbers = [int(number) for number in _NUMBER.findall(rest)]
        places = {"rank": self.job.ranks, "node": self.roles.node}.get(kind.removesuffix("s"))
        if places is None:
            return ()
        hosts = (self.job.hosts[place] for place in np.flatnonzero(np.isin(places, numbers)))
        return tuple(sorted({host for host in hosts if host}))

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job that were not read."""
        return self.job.missing

    @cached_property
    def clocks(self) -> pl.DataFrame:
        """Of each rank its clock's offset and drift, its node, stage and role."""
        return tables.clocks(self.job, self.aligned, self.roles)

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """Of each communication its members, skew, transfer, bandwidth and who arrived last."""
        return tables.collectives(self.job, self.matches, self.measured)

    @cached_property
    def waits(self) -> pl.DataFrame:
        """Of each rank and step: how long it waited for others, and what it did else."""
        return tables.waits(self.job, self.matches, self.measured)

    @cached_property
    def lateness_ns(self) -> Array:
        """Of each rank and step, by their places: how late it arrived; NaN where it arrived at nothing."""
        return waits.lateness(self.job, self.matches, self.measured)

    @cached_property
    def late(self) -> pl.DataFrame:
        """Of each rank and step: how late it arrived."""
        return tables.late(self.job, self.lateness_ns)

    @cached_property
    def links(self) -> pl.DataFrame:
        """Of each kind, size and reach of a transfer: how long it takes, and its bandwidth beside the link's."""
        return tables.links(self.job, self.matches, self.measured, self.roles)

    @cached_property
    def path(self) -> pl.DataFrame:
        """What the whole job's time consists of: the path from its end back to its begin, across ranks."""
        return tables.path(self.job, self.matches, self.measured)

    @cached_property
    def held(self) -> pl.DataFrame:
        """Of each step: the rank that held it up longest, and for how long."""
        return tables.held(self.job, self.matches, self.measured)

    @cached_property
    def what_if(self) -> pl.DataFrame:
        """The findings as a table."""
        return tables.what_if(self.findings, self.step_ns)

    def to_dict(self) -> dict[str, Any]:
        """As `foretrace ranks --format json` prints it."""
        return {
            "schema": RANKS_SCHEMA,
            "world": self.job.world,
            "ranks_read": len(self.job.ranks),
            "missing": list(self.missing),
            "cut_off": list(self.cut_off),
            "read_pct": round(100 * self.read_share, 3),
            "unused": [unused.to_dict() for unused in self.unused],
            "cycle": self.cycle.to_dict() if self.cycle else None,
            "steps": self.job.steps.tolist(),
            "steps_left_out": list(self.left_out_steps),
            "clock_residual_us": round(self.aligned.residual_ns / 1e3, 3),
            "step_ms": round(self.step_ns / 1e6, 6),
            "findings": [
                {
                    "what": finding.what,
                    "who": finding.who,
                    "worth_ms": round(finding.worth_ns / 1e6, 6),
                    "at_least": finding.at_least,
                    "hosts": list(self.hosts_of(finding)),
                }
                for finding in self.findings
            ],
            "combined_ms": round(self.judged.combined_ns / 1e6, 6),
            "exposed_transfer_pct": _rounded(self.judged.exposed_share, 100, 3),
            "exposed_transfer_ms": _rounded(self.judged.hidden_ns, 1e-6, 6),
            "input_ms": _rounded(self.judged.input_ns, 1e-6, 6),
            "pauses_ms": _rounded(self.judged.pauses_ns, 1e-6, 6),
        }


def _rounded(value: float | None, times: float, digits: int) -> float | None:
    return None if value is None else round(value * times, digits)


def reduce(
    summaries: Sequence[Summary],
    *,
    ranks_per_node: int | None = None,
    unused: Sequence[Unused] = (),
    cycle: Cycle | None = None,
) -> Ranks:
    """The ranks of a job from their summaries, one of each and all of one profiling cycle."""
    summaries, useless = _comparable(summaries)
    cut = [each.rank for each in summaries if TRUNCATED in dict(each.repairs)]
    common = common_steps.restrict(summaries, cut)
    useless += [_of_other_steps(summary) for summary in common.apart]
    summaries = common.summaries
    cut = [summary.rank for summary in summaries if summary.rank in {*cut, *common.short}]
    unused = (*unused, *useless)
    job = membership.inferred(gather(summaries))
    job = replace(job, world=max(job.world, _world(summaries, unused)))
    matches = matching.match(job)
    aligned = clocks_of.align(job, matches)
    measured = waits.measure(job, matches, aligned)
    found = roles.find(job, measured, ranks_per_node=ranks_per_node)
    step_ns = _step_ns(job, measured, common.resumed)
    judged = Judged((), 0.0)
    if cut and len(cut) < len(summaries):
        read = [each for each in summaries if each.rank not in cut]
        whole = membership.inferred(replace(gather(read), world=job.world))
        rebuilt = _rebuilt(whole, job, ranks_per_node)
    else:
        rebuilt = rebuild.whole(job, matches, measured, found)
    rebuilt = replace(rebuilt, job=readiness.of_peers(rebuilt.job, rebuilt.matches, rebuilt.roles))
    replay = Replay(rebuilt.job, rebuilt.matches, rebuilt.waits)
    if aligned.residual_ns <= MOST_RESIDUAL * step_ns:
        parts = (rebuilt.job, rebuilt.matches, rebuilt.waits, rebuilt.roles, replay)
        judged = findings.judge(*parts, step_ns=step_ns, at_least=bool(cut or job.missing))
    return Ranks(
        job, matches, aligned, measured, found, replay, judged, step_ns,
        unused, tuple(cut), cycle, common.dropped, common.lacking,
    )  # fmt: skip


def _step_ns(job: Gathered, measured: Waits, resumed: frozenset[int]) -> float:
    """The mean step: to the last end, from the first begin or from where the last of the `resumed` ranks ended the step before."""
    marks = job.kind == STEP
    if not marks.any():
        return 0.0
    after = np.isin(job.ranks, sorted(resumed))
    begin_ns = measured.begin_ns[after].max() if after.any() else measured.begin_ns.min()
    return float(measured.leave_ns[marks].max() - begin_ns) / max(len(job.steps), 1)


def _world(summaries: Sequence[Summary], unused: Sequence[Unused]) -> int:
    """The number of ranks as far as recordings that are not compared tell it; 0 where the others do."""
    if any(summary.world for summary in summaries):
        return 0
    unread = [unused.rank for unused in unused if unused.why in (UNREADABLE, LOST, CUT_OFF)]
    return max((rank + 1 for rank in unread if rank is not None), default=0)


def _comparable(summaries: Sequence[Summary]) -> tuple[list[Summary], list[Unused]]:
    """Without ranks whose recording is cut off before it tells the steps that the others have; and these.

    Such a recording's steps are told by other marks than those of the others, or by none: they are not numbered alike.
    """
    whole = [each for each in summaries if TRUNCATED not in dict(each.repairs)]
    told = {(each.marks, step) for each in whole for step in each.steps["step"].to_list()}
    if not told:
        return list(summaries), []
    kept, useless = [], []
    for each in summaries:
        if TRUNCATED in dict(each.repairs) and not told.issuperset(
            (each.marks, step) for step in each.steps["step"]
        ):
            says = f"{each.source}: rank {each.rank} is cut off before the marks of its steps"
            useless.append(Unused(each.source, CUT_OFF, says, each.rank))
        else:
            kept.append(each)
    return kept, useless


def _of_other_steps(summary: Summary) -> Unused:
    says = f"{summary.source}: rank {summary.rank} recorded none of the steps that the other ranks have in common"
    return Unused(summary.source, CUT_OFF, says, summary.rank)


def _rebuilt(job: Gathered, partly: Gathered, ranks_per_node: int | None) -> Whole:
    """The job without ranks whose recordings are cut off, and these rebuilt."""
    matches = matching.match(job)
    measured = waits.measure(job, matches, clocks_of.align(job, matches))
    found = roles.find(job, measured, ranks_per_node=ranks_per_node)
    return rebuild.whole(job, matches, measured, found, partly=partly)
