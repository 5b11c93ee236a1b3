"""One rank is slower than the others, and all wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import SHOWN_SPANS, DeviceWork
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import (
    collective_arrivals,
    exposed_work,
    job_ranks,
    late_ranks,
    work_before_collectives,
)
from foretrace.diagnose.patterns.collective_arrivals import Late
from foretrace.diagnose.patterns.late_ranks import MOST_STEPS, LateRank  # noqa: F401  # named on the page
from foretrace.diagnose.rule import headline, healthy, rule
from foretrace.diagnose.seen import too_little
from foretrace.errors import MissingDataError
from foretrace.intervals import Intervals
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit, merge
from foretrace.predict.numbers import ProgramTime
from foretrace.sourced import JUDGEMENT, Count, Factor, Share
from foretrace.units import counted

if TYPE_CHECKING:
    from foretrace.ranks.findings import RankFinding

LEAST_SHARE = Share(0.03, "the step", JUDGEMENT)
LEAST_STEPS = Count(2, "steps that the ranks have in common", JUDGEMENT)
LEAST_RANKS = Share(0.5, "the group's ranks, recorded", JUDGEMENT)
EXPLAINS = Share(0.3, "the lateness, that a part of the rank's time must have grown by", JUDGEMENT)
SLOWER = Factor(1.03, "times as long for the same kernels: the GPU is slower", JUDGEMENT)
_SAME_PACE = Fix(
    "Make that rank as fast as the others: find out why it alone does this.",
    "if rank == 0: log(...)   # in another process, or after the step's collectives are under way\n"
    "sampler = DistributedSampler(dataset)   # the same share for every rank",
)
_WORDS = {
    "computation": "computing on its GPU",
    "input": "waiting for its DataLoader",
    "operators": "in operators and calls of the host",
    "other": "outside PyTorch: in Python, a sleep, input or output",
}


@headline("Rank {late_rank} keeps {waiting_ranks_count} waiting, {late_ns} a step")
@healthy("communication", collective_arrivals.no_issue)
@rule("One rank keeps the others waiting", "Stragglers", see="communication")
def straggler(case: Case) -> Iterator[Finding]:
    """One rank that arrives late at the collectives, in most steps.

    Needs the recordings of the ranks of one job: `foretrace diagnose` of their Run, of the folder that holds them, or of one
    of them with the others beside it. Collectives are matched by their number in the process group where that is recorded,
    else by their order in group and step. A collective ends when the last rank has arrived, so that rank's own is the
    shortest, and what another's is longer is waiting. Clocks are not compared. Of collectives that follow one another
    without a pause the longest wait counts.

    Speaks if the same rank is the last in {MOST_STEPS} of the steps, and at least {LEAST_SHARE} of the step would be saved
    if it came with the last of the others. Waiting that computation hides does not count. With less than {LEAST_RANKS} of
    the ranks recorded, nothing is said; with any of them missing, it is never said that no rank is late. The rank is the one that `foretrace ranks` names, by replay across all ranks; where
    that names none, or finds the collectives not to match, nothing is said.

    Slow
        if rank == 0:
            save_checkpoint(model)  # all others wait in the next collective

    Fast
        if rank == 0:
            saver.submit(snapshot)  # in another thread or process

    Why
    A collective ends when the last rank has arrived: the slowest one sets the pace of all. Give the late rank what the
    others have: the same share of data and of experts, logging and checkpoints in another process or spread over ranks, a
    GPU that is not throttled or shared.

    How the worth is predicted
    What the late rank does more of is its time from the collective before to its arrival, compared with the median of the
    others. On the diagnosed rank its waiting is taken away or, if it is the late one itself, what it does more of: {FIXED}
    of that, from {FIXED_LEAST} to {FIXED_MOST}.

    Nothing is promised where ranks of the group were not recorded, because one of those may be later still. Nothing is
    replayed where the recording does not tell what waits for the collectives.

    When not
    That rank is meant to do more, as the last stage of a pipeline is.
    """
    size = case.trace.meta.get("world_size")
    if case.trace.collectives.is_empty() and not (isinstance(size, int) and size > 1):
        return
    cases = late_ranks.by_rank(case)
    matches = collective_arrivals.match({rank: of_rank.trace for rank, of_rank in cases.items()})
    if matches.seen_count < LEAST_RANKS * matches.expected_count:
        raise MissingDataError(
            f"{case.trace.path.name}: {matches.seen_count} of {matches.expected_count} ranks' recordings; which rank is late "
            "shows only in the recordings of all ranks"
        )
    if len(matches.steps) < LEAST_STEPS:
        raise MissingDataError(
            f"{case.trace.path.name}: the ranks have one step in common; record a few more"
        )
    ranks = job_ranks.find(cases, case)
    worst = job_ranks.worthiest(ranks)
    if worst is None:
        if matches.seen_count < matches.expected_count:
            raise MissingDataError(
                f"{case.trace.path.name}: no rank is late among the {matches.seen_count} of {matches.expected_count} that were "
                "read; all of them may wait for one that was not"
            )
        return
    late = late_ranks.find(case, cases, matches)
    if late is None or not job_ranks.names(ranks, late.rank) or job_ranks.names_other(ranks, late.rank):
        if not too_little(case, worst.says, worst.worth_ns / case.step_ns, LEAST_SHARE):
            yield _of_job(worst, len(cases), matches)
        return
    if too_little(case, f"rank {late.rank} is late", late.saved_ns / case.step_ns, LEAST_SHARE):
        return
    yield _finding(late)


def _of_job(worst: RankFinding, ranks: int, matches: collective_arrivals.Matches) -> Finding:
    """As `foretrace ranks` found it: with tensor and pipeline parallelism only neighbours wait for the slow rank."""
    return Finding(
        says=f"{worst.says[:1].upper()}{worst.says[1:]}. Without that a step of the job takes {worst.worth_ns / 1e6:.3g} ms less, "
        "by replay across all ranks.",
        why="Its neighbours wait for it, theirs wait for them, and so does the whole job.",
        fix=_SAME_PACE,
        evidence={
            "late_rank": worst.ranks[0],
            "late_ns": round(worst.worth_ns),
            "waiting_ranks_count": ranks - 1,
            "recorded_ranks_count": matches.seen_count,
            "group_ranks_count": matches.expected_count,
        },
        unless="that rank is meant to do more.",
    )


def _finding(late: LateRank) -> Finding:
    matches, steps = late.matches, {arrival.step for arrival in late.arrivals}
    late_ns = float(
        np.median(
            [sum(arrival.late_ns for arrival in late.arrivals if arrival.step == step) for step in steps]
        )
    )
    part = max(late.more_ns, key=lambda name: late.more_ns[name])
    explained = late.more_ns[part] >= EXPLAINS * late_ns
    ratio = _same_kernels_ratio(late)
    rows = matches.table.filter(pl.col("key").is_in([arrival.key for arrival in late.arrivals]))
    waiting = rows.filter(pl.col("rank") != late.rank)["rank"].n_unique()
    change, why_not = _change(late)
    who = f"Rank {late.rank}" + (", the one diagnosed," if late.is_diagnosed else "")
    return Finding(
        says=f"{who} arrives {late_ns / 1e6:.3g} ms a step after the median rank, as the last in {len(steps)} of "
        f"{counted(len(matches.steps), 'step')}, and {counted(waiting, 'rank')} wait{'s' if waiting == 1 else ''} for it. "
        + (_cause(part, late.more_ns[part], ratio) if explained else "Its recording does not tell what it does meanwhile."),
        why="A collective ends when the last rank has arrived: the slowest sets the pace of all."
        + (f" Not replayed: {why_not}." if change is None else ""),
        fix=_SAME_PACE,
        evidence={
            "late_rank": late.rank,
            "late_ns": round(late_ns),
            "excess_ns": round(late.saved_ns),
            "excess_pct": 100 * late.saved_ns / late.case.step_ns,
            "late_steps_count": len(steps),
            "steps_count": len(matches.steps),
            "waiting_ranks_count": waiting,
            "recorded_ranks_count": matches.seen_count,
            "group_ranks_count": matches.expected_count,
            **{f"more_{name}_ns": round(late.more_ns[name]) for name in work_before_collectives.PARTS},
            **({"same_kernels_pct": 100 * ratio} if ratio is not None else {}),
            "spans": rows.filter(pl.col("rank") == late.diagnosed_rank)["id"].head(SHOWN_SPANS).to_list(),
        },
        where=work_before_collectives.places(
            late.cases[late.rank], late.activities[late.rank], part, late.before_arrivals
        ) if explained else (),
        change=change,
        unless="that rank is meant to do more, as a last pipeline stage is"
        + (f", or one of the {late.unrecorded_count} ranks that were not recorded is later still." if late.unrecorded_count
           else "."),
    )  # fmt: skip


def _same_kernels_ratio(late: LateRank) -> float | None:
    others = [case.trace for rank, case in late.cases.items() if rank != late.rank]
    return work_before_collectives.same_kernels_ratio(late.cases[late.rank].trace, others)


def _cause(part: str, more_ns: float, ratio: float | None) -> str:
    says = f"Before that it spends {more_ns / 1e6:.3g} ms more than the median rank {_WORDS[part]}"
    if part == "computation" and ratio is not None:
        says += (
            f"; the same kernels take {100 * (ratio - 1):.0f} % longer"
            if ratio >= SLOWER
            else "; the same kernels take as long, so it has more of them"
        )
    return says + "."


# After a fix the rank is as late as any other, and the recording does not tell how late that is.
FIXED = Share(0.75, "the lateness, gone after a fix", JUDGEMENT)
FIXED_LEAST = Share(0.5, "the lateness, gone after a fix, at least", JUDGEMENT)
FIXED_MOST = Share(1.0, "the lateness, gone after a fix, at most", JUDGEMENT)


def _change(late: LateRank) -> tuple[Change | None, str]:
    """The late rank as early as the last of the others, or why that cannot be replayed."""
    edit, why_not = _without_excess(late) if late.is_diagnosed else _without_waiting(late)
    if edit is None:
        return None, why_not
    lacking = late.unrecorded_count
    return Change(
        f"rank {late.rank} as early as the last of the others",
        edit(FIXED),
        others=(edit(FIXED_LEAST), edit(FIXED_MOST)),
        doubt=f"{lacking} of {late.matches.expected_count} ranks were not recorded" if lacking else "",
    ), ""


def _without_waiting(late: LateRank) -> tuple[Callable[[float], Edit] | None, str]:
    """The diagnosed rank's collectives without the waiting for the late one."""
    own = late.matches.table.filter(pl.col("rank") == late.diagnosed_rank)
    if own.filter(pl.col("key").is_in([arrival.key for arrival in late.arrivals])).is_empty():
        return None, f"rank {late.diagnosed_rank} does not wait for it itself"
    on_device = own.filter(pl.col("on") == "device").select("id", "key")
    tasks = late.case.tasks.join(on_device, on="id", maintain_order="left")
    if tasks.height and not exposed_work.order_is_known(DeviceWork(late.case, tasks)):
        return None, "the recording does not tell what waits for the collectives' streams"
    waits = {key: wait for arrival in late.arrivals for key, wait in arrival.waits_ns.items()}
    shorter = {
        int(task): waits[key] for task, key in tasks.select("task", "key").iter_rows() if waits.get(key)
    }
    idle = [_idle_for(late.case, own, arrival) for arrival in late.arrivals]
    waited = sum(arrival.excess_ns for arrival in late.arrivals)
    if not shorter and sum(end - start for start, end in idle) < waited / 2:
        return None, "the host does not stand still for the collectives of its threads"
    dur = late.case.program.task_dur_ns

    def edit(share: float) -> Edit:
        start = np.array([round(end - share * (end - start)) for start, end in idle], np.int64)
        return Edit(
            durations_ns={
                task: max(int(dur[task]) - round(share * wait), 0) for task, wait in shorter.items()
            },
            removed_host=ProgramTime(intervals.union(start, np.array([end for _, end in idle], np.int64))),
        )

    return edit, ""


def _idle_for(case: Case, own: pl.DataFrame, arrival: Late) -> tuple[int, int]:
    """When the host waits for the last transfer of a chain on host threads, no longer than the lateness."""
    rows = own.filter(pl.col("key").is_in(list(arrival.waits_ns)) & (pl.col("on") == "host")).sort("end_ns")
    if rows.is_empty():
        return 0, 0
    program = case.program
    start, end = (int(rows[bound][-1]) - program.start_ns for bound in ("start_ns", "end_ns"))
    idle = intervals.gaps(intervals.union(program.call_start_ns, program.call_end_ns), start, end)
    if not len(idle.start):
        return 0, 0
    longest = int(np.argmax(idle.end - idle.start))
    until = int(idle.end[longest])
    return max(int(idle.start[longest]), until - arrival.excess_ns), until


def _without_excess(late: LateRank) -> tuple[Callable[[float], Edit] | None, str]:
    """The diagnosed rank is the late one: without what it does more of, as far as the last of the others."""
    case, more = late.case, late.more_ns
    late_ns = sum(arrival.excess_ns for arrival in late.arrivals)
    in_steps = len({arrival.step for arrival in late.arrivals})
    part = max(("other", "input"), key=lambda name: more[name])
    host_ns = min(max(more[part], 0.0) * in_steps, late_ns)
    device_ns = min(max(more["computation"], 0.0) * in_steps, late_ns - host_ns)
    if host_ns + device_ns < late_ns / 2:
        return None, "its recording does not tell what it does more of that could be left out"
    removed = late.activities[late.rank].longest(part, late.before_arrivals, host_ns)
    work = work_before_collectives.computing(case.trace)
    before = pl.any_horizontal(pl.col("start_ns").is_between(*stretch) for stretch in late.before_arrivals)
    tasks = case.tasks.join(work.filter(before).select("id"), on="id", maintain_order="left")
    factor = device_ns / max(int(tasks["dur_ns"].sum()), 1)

    def edit(share: float) -> Edit:
        start = removed.start - case.program.start_ns
        length = ((removed.end - removed.start) * share).astype(np.int64)
        durations = {
            int(task): round(dur * (1 - min(share * factor, 1.0)))
            for task, dur in tasks.select("task", "dur_ns").iter_rows()
            if factor
        }
        host = ProgramTime(Intervals(start, start + length))
        return merge((Edit(removed_host=host), Edit(durations_ns=durations)))

    return edit, ""
