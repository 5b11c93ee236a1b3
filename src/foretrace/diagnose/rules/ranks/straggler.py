"""One rank is slower than the others, and all wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import collective_arrivals, work_before_collectives
from foretrace.diagnose.patterns.collective_arrivals import Late, Matches, lateness, match
from foretrace.diagnose.patterns.work_before_collectives import Activity
from foretrace.diagnose.rule import Healthy, rule
from foretrace.diagnose.rules.ranks.exposed_communication import ordered
from foretrace.errors import MissingDataError
from foretrace.intervals import Intervals
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit, merge
from foretrace.units import counted, format_value

_LEAST_SHARE = 0.03  # of the step
_MOST_STEPS = 0.75  # of the steps: two ranks that are late in turn are both last in half of them
_LEAST_STEPS = 2
_COUNTS = 0.02  # of a rank's lateness in a step: less is the scatter of many small collectives
_LEAST_RANKS = 0.5  # of the group's
_TOLD = 0.3  # of the lateness: a part that grew by less does not explain it
_SLOWER = 1.03  # the same kernels, this much longer: the GPU is slower
# The rank after a fix is as late as any other, and the recording does not tell how late that is: from half to all.
_FIXED, _FIXED_LEAST, _FIXED_MOST = 0.75, 0.5, 1.0
_WORDS = {
    "computation": "computing on its GPU",
    "input": "waiting for its DataLoader",
    "operators": "in operators and calls of the host",
    "other": "in neither operators nor calls of the host: Python, a sleep, input or output",
}


@rule(
    title="One rank keeps the others waiting",
    topic="Stragglers",
    see="communication",
    headline=lambda e: (
        f"Rank {e['late_rank']} keeps {counted(e['waiting_ranks_count'], 'other')} waiting, "
        f"{format_value('_ns', e['late_ns'])} a step"
    ),
    healthy=Healthy("communication", collective_arrivals.no_issue),
)
def straggler(case: Case) -> Iterator[Finding]:
    """One rank arrives late at the collectives, in most steps.

    What it does
    Needs the recordings of the ranks of one job: `foretrace diagnose` of their Run, of the folder that holds them, or of
    one of them with the others beside it. Collectives are matched by their number in the process group where that is
    recorded, else by their order in group and step. A collective ends when the last rank has arrived, so that rank's
    own is the shortest and what another's is longer is waiting; clocks are not compared. Of collectives that follow
    one another without a pause the longest wait counts. A finding if the same rank is the last in three quarters of the
    steps, and at least 3 % of the step would be saved if it came with the last of the others; waiting that computation
    hides does not count. What the late rank does more of is the time from the collective before to its arrival,
    compared with the median of the others.
    Replayed on the diagnosed rank: its waiting is taken away or, if it is the late one itself, what it does more of. The
    point is three quarters of that, the range half to all. Nothing is promised where ranks of the group were not
    recorded, for one of those may be later still; with less than half of them nothing is said. Nothing is replayed where
    the recording does not tell what waits for the collectives.

    Why it matters
    A collective ends when the last rank has arrived: the slowest one sets the pace of all.

    Use instead
    Give the late rank what the others have: the same share of data and of experts, logging and checkpoints in another
    process or spread over ranks, a GPU that is not throttled or shared.
    """
    size = case.trace.meta.get("world_size")
    if case.trace.collectives.is_empty() and not (isinstance(size, int) and size > 1):
        return
    cases = _by_rank(case)
    matches = match({rank: each.trace for rank, each in cases.items()})
    if matches.seen_count < _LEAST_RANKS * matches.expected_count:
        raise MissingDataError(
            f"{case.trace.path.name}: {matches.seen_count} of {matches.expected_count} ranks' recordings; which rank is late "
            "shows only in the recordings of all ranks"
        )
    if len(matches.steps) < _LEAST_STEPS:
        raise MissingDataError(
            f"{case.trace.path.name}: the ranks have one step in common; record a few more"
        )
    rank, lates = _latest(matches, sorted(cases))
    if rank is None:
        return
    known = {each: work_before_collectives.activity(other.trace) for each, other in cases.items()}
    excess_ns = _saved_ns(matches, known, lates)
    if excess_ns < _LEAST_SHARE * case.step_ns:
        return
    yield _finding(_Straggler(case, cases, matches, known, rank, lates), excess_ns)


@dataclass(frozen=True)
class _Straggler:
    """The late rank, and all that is known about it."""

    case: Case
    cases: Mapping[int, Case]
    matches: Matches
    known: Mapping[int, Activity]
    rank: int
    lates: Sequence[Late]

    @property
    def is_diagnosed(self) -> bool:
        """Whether the late rank is the one that is diagnosed."""
        return self.cases[self.rank] is self.case

    @property
    def own_rank(self) -> int:
        """The diagnosed rank."""
        return next(rank for rank, case in self.cases.items() if case is self.case)

    def windows(self) -> list[work_before_collectives.Window]:
        """The late rank's time before each late arrival."""
        found = (
            work_before_collectives.window(self.matches, self.cases[self.rank], self.rank, late)
            for late in self.lates
        )
        return [each for each in found if each is not None]


def _by_rank(case: Case) -> dict[int, Case]:
    """The diagnosed rank and the others, by their numbers."""
    name = case.trace.path.name
    others = case.other_ranks()
    if not others:
        raise MissingDataError(
            f"{name}: one rank's recording; which rank is late shows only in the recordings of all ranks"
        )
    cases: dict[int, Case] = {}
    for each in (case, *others):
        rank = each.trace.meta.get("rank")
        if not isinstance(rank, int) or rank in cases:
            raise MissingDataError(f"{name}: the recordings beside it do not tell which ranks they are of")
        cases[rank] = each
    return cases


def _latest(matches: Matches, ranks: Sequence[int]) -> tuple[int | None, list[Late]]:
    """The rank that is the last in most steps, and where; None if there is no such."""
    found = {rank: lateness(matches, rank) for rank in ranks}
    totals: dict[int, Counter[int]] = {step: Counter() for step in matches.steps}
    for rank, lates in found.items():
        for late in lates:
            totals[late.step][rank] += late.excess_ns
    last = {step: total.most_common(1)[0][0] for step, total in totals.items() if total}
    if not last:
        return None, []
    rank, count = Counter(last.values()).most_common(1)[0]
    if count < _MOST_STEPS * len(matches.steps):
        return None, []
    mine = [late for late in found[rank] if last[late.step] == rank]
    return rank, [late for late in mine if late.excess_ns >= _COUNTS * totals[late.step][rank]]


def _saved_ns(matches: Matches, known: Mapping[int, Activity], lates: Sequence[Late]) -> float:
    """What a step of the median rank would save if the late one came with the last of the others: at the median step."""
    saved: dict[int, dict[int, int]] = {step: {} for step in matches.steps}
    for late in lates:
        rows = matches.table.filter(pl.col("key").is_in(list(late.waits_ns)) & (pl.col("rank") != late.rank))
        for (rank,), own in rows.group_by("rank"):
            start = own["start_ns"].to_numpy()
            waits = np.array([late.waits_ns[key] for key in own["key"]], np.int64)
            waiting = intervals.union(start, start + waits)
            exposed = intervals.subtract(waiting, known[int(rank)].computation).total_ns
            step = saved[late.step]
            step[int(rank)] = step.get(int(rank), 0) + min(exposed, late.excess_ns)
    return float(np.median([np.median(list(each.values())) if each else 0.0 for each in saved.values()]))


def _finding(found: _Straggler, excess_ns: float) -> Finding:
    case, matches = found.case, found.matches
    steps = {late.step for late in found.lates}
    late_ns = float(
        np.median([sum(each.late_ns for each in found.lates if each.step == step) for step in steps])
    )
    more = work_before_collectives.more_ns(matches, found.cases, found.known, found.lates)
    cause = max(more, key=lambda part: more[part])
    told = more[cause] >= _TOLD * late_ns
    ratio = work_before_collectives.same_kernels_ratio(
        found.cases[found.rank].trace,
        [each.trace for rank, each in found.cases.items() if rank != found.rank],
    )
    keys = [late.key for late in found.lates]
    at = matches.table.filter(pl.col("key").is_in(keys))
    waiting = at.filter(pl.col("rank") != found.rank)["rank"].n_unique()
    change, why_not = _change(found, more)
    lacking = matches.expected_count - matches.seen_count
    who = f"Rank {found.rank}" + (", the one diagnosed," if found.is_diagnosed else "")
    return Finding(
        says=f"{who} arrives {late_ns / 1e6:.3g} ms a step after the median rank, as the last in {len(steps)} of "
        f"{counted(len(matches.steps), 'step')}, and {counted(waiting, 'rank')} wait{'s' if waiting == 1 else ''} for it. "
        + (_cause(cause, more[cause], ratio) if told else "Its recording does not tell what it does meanwhile."),
        why="A collective ends when the last rank has arrived: the slowest sets the pace of all."
        + (f" Not replayed: {why_not}." if change is None else ""),
        fix=Fix(
            "Make that rank as fast as the others: find out why it alone does this.",
            "if rank == 0: log(...)   # in another process, or after the step's collectives are under way\n"
            "sampler = DistributedSampler(dataset)   # the same share for every rank",
        ),
        evidence={
            "late_rank": found.rank,
            "late_ns": round(late_ns),
            "excess_ns": round(excess_ns),
            "excess_pct": 100 * excess_ns / case.step_ns,
            "late_steps_count": len(steps),
            "steps_count": len(matches.steps),
            "waiting_ranks_count": waiting,
            "recorded_ranks_count": matches.seen_count,
            "group_ranks_count": matches.expected_count,
            **{f"more_{part}_ns": round(more[part]) for part in work_before_collectives.PARTS},
            **({"same_kernels_pct": 100 * ratio} if ratio is not None else {}),
            "spans": at.filter(pl.col("rank") == found.own_rank)["id"].head(5).to_list(),
        },
        where=work_before_collectives.places(
            found.cases[found.rank], found.known[found.rank], cause, found.windows()
        ) if told else (),
        change=change,
        unless="that rank is meant to do more, as a last pipeline stage is"
        + (f", or one of the {lacking} ranks that were not recorded is later still." if lacking else "."),
    )  # fmt: skip


def _cause(part: str, more_ns: float, ratio: float | None) -> str:
    says = f"Before that it spends {more_ns / 1e6:.3g} ms more than the median rank {_WORDS[part]}"
    if part == "computation" and ratio is not None:
        slower = ratio >= _SLOWER
        says += (
            f"; the same kernels take {100 * (ratio - 1):.0f} % longer"
            if slower
            else "; the same kernels take as long, so it has more of them"
        )
    return says + "."


def _change(found: _Straggler, more: Mapping[str, float]) -> tuple[Change | None, str]:
    """The late rank as early as the last of the others, or why that cannot be replayed."""
    edit, why_not = _own_excess(found, more) if found.is_diagnosed else _waiting(found)
    if edit is None:
        return None, why_not
    lacking = found.matches.expected_count - found.matches.seen_count
    return Change(
        f"rank {found.rank} as early as the last of the others",
        edit(_FIXED),
        others=(edit(_FIXED_LEAST), edit(_FIXED_MOST)),
        doubt=f"{lacking} of {found.matches.expected_count} ranks were not recorded" if lacking else "",
    ), ""


def _waiting(found: _Straggler) -> tuple[Callable[[float], Edit] | None, str]:
    """The diagnosed rank's collectives without the waiting for the late one."""
    mine = found.matches.table.filter(pl.col("rank") == found.own_rank)
    if mine.filter(pl.col("key").is_in([late.key for late in found.lates])).is_empty():
        return None, f"rank {found.own_rank} does not wait for it itself"
    on_device = mine.filter(pl.col("on") == "device")
    tasks = found.case.tasks.join(on_device.select("id", "key"), on="id", maintain_order="left")
    if tasks.height and not ordered(found.case, tasks):
        return None, "the recording does not tell what waits for the collectives' streams"
    waits = {key: wait for late in found.lates for key, wait in late.waits_ns.items()}
    shorter = {
        int(task): waits[key] for task, key in tasks.select("task", "key").iter_rows() if waits.get(key)
    }
    stretches = [_standing(found.case, mine, late) for late in found.lates]
    waited = sum(late.excess_ns for late in found.lates)
    if not shorter and sum(each[1] - each[0] for each in stretches) < waited / 2:
        return None, "the host does not stand still for the collectives of its threads"
    dur = found.case.program.task_dur_ns

    def edit(share: float) -> Edit:
        start = np.array([round(end - share * (end - start)) for start, end in stretches], np.int64)
        return Edit(
            durations_ns={
                task: max(int(dur[task]) - round(share * wait), 0) for task, wait in shorter.items()
            },
            removed_host=intervals.union(start, np.array([end for _, end in stretches], np.int64)),
        )

    return edit, ""


def _standing(case: Case, mine: pl.DataFrame, late: Late) -> tuple[int, int]:
    """Of the host's line what it waits for the last transfer of a chain on host threads, as long as the lateness."""
    rows = mine.filter(pl.col("key").is_in(list(late.waits_ns)) & (pl.col("on") == "host")).sort("end_ns")
    if rows.is_empty():
        return 0, 0
    program = case.program
    span = (int(rows["start_ns"][-1]) - program.start_ns, int(rows["end_ns"][-1]) - program.start_ns)
    idle = intervals.gaps(intervals.union(program.call_start_ns, program.call_end_ns), *span)
    if not len(idle.start):
        return 0, 0
    longest = int(np.argmax(idle.end - idle.start))
    end = int(idle.end[longest])
    return max(int(idle.start[longest]), end - late.excess_ns), end


def _own_excess(found: _Straggler, more: Mapping[str, float]) -> tuple[Callable[[float], Edit] | None, str]:
    """The diagnosed rank is the late one: without what it does more of, as far as the last of the others."""
    known, case = found.known[found.rank], found.case
    late_ns = sum(late.excess_ns for late in found.lates)
    in_steps = len({late.step for late in found.lates})
    part = max(("other", "input"), key=lambda name: more[name])
    host_ns = min(max(more[part], 0.0) * in_steps, late_ns)
    device_ns = min(max(more["computation"], 0.0) * in_steps, late_ns - host_ns)
    if host_ns + device_ns < late_ns / 2:
        return None, "its recording does not tell what it does more of that could be left out"
    removed = _longest(known, part, found.windows(), host_ns)
    work = work_before_collectives.computing(case.trace)
    inside = pl.any_horizontal(pl.col("start_ns").is_between(*span) for span in found.windows())
    tasks = case.tasks.join(work.filter(inside).select("id"), on="id", maintain_order="left")
    factor = device_ns / max(int(tasks["dur_ns"].sum()), 1)

    def edit(share: float) -> Edit:
        start, end = removed
        first = start - case.program.start_ns
        gone = Intervals(first, first + ((end - start) * share).astype(np.int64))
        durations = {
            int(task): round(dur * (1 - min(share * factor, 1.0)))
            for task, dur in tasks.select("task", "dur_ns").iter_rows()
            if factor
        }
        return merge((Edit(removed_host=gone), Edit(durations_ns=durations)))

    return edit, ""


def _longest(
    known: Activity, part: str, windows: Sequence[work_before_collectives.Window], total_ns: float
) -> Intervals:
    """The longest stretches of a part, until they are this long together; an equal share of each window."""
    starts, ends = [], []
    for span in windows:
        left = round(total_ns / len(windows))
        for start, end in zip(*known.stretches(part, span), strict=True):
            if left <= 0:
                break
            starts.append(int(start))
            ends.append(min(int(end), int(start) + left))
            left -= ends[-1] - starts[-1]
    return intervals.union(np.array(starts, np.int64), np.array(ends, np.int64))
