"""What holds the ranks of a job up, each cause with what a step would save without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from foretrace import intervals
from foretrace.ranks import excess, links, slow_nodes, slow_stages
from foretrace.ranks.excess import Slow
from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.matching import Matches
from foretrace.ranks.relief import Relief, as_change, combined
from foretrace.ranks.replay import Replay
from foretrace.ranks.roles import Roles
from foretrace.ranks.summary import STEP
from foretrace.ranks.waits import Waits, lateness
from foretrace.sourced import JUDGEMENT, Share

# Much of it may be how a job is made, with nobody who holds the others up.
MOST_EXPOSED = Share(
    0.6, "the step, in which ranks stand still for transfers: longer than for all else", JUDGEMENT
)
LEAST_WORTH = Share(
    0.001, "the step, that a cause must save, alone or beside the others, to be named", JUDGEMENT
)
MOST_UNMATCHED = Share(
    0.1,
    "communications that ranks stood still for, that may be matched with none for worths to be whole",
    JUDGEMENT,
)
_MOST_TRIED = 32  # causes that save nothing alone, each of which is tried beside the others
_NOT_ALONE = "; alone that costs nothing, since others hold the job up as much"
_WORDS = {
    "computation": "computes {slower:.0f} % longer than other ranks of its {among}",
    "other": "arrives {late:.3g} ms late: its device is idle for {more:.3g} ms a step longer than those of its role",
    "input": "{verb} {more:.3g} ms a step longer for input than other ranks of its role",
}


@dataclass(frozen=True)
class RankFinding:
    """A cause: what it is, who has it, and what a mean step would save without it."""

    what: str  # slow-rank, slow-node, slow-link, slow-stage, late-input, imbalance, exposed-communication
    who: str
    ranks: tuple[int, ...]
    says: str
    worth_ns: float
    at_least: bool
    steady: bool = True  # in most steps, not in single ones only


@dataclass(frozen=True)
class _Cause:
    what: str
    who: str
    members: tuple[int, ...]
    says: str
    relief: Relief
    once: bool = False  # in single steps only
    if_costly: bool = (
        False  # named where it costs something: what scatters by nature hits somebody in every job
    )


@dataclass(frozen=True)
class Judged:
    """The findings, the worthiest first, what all of them together are worth, and how much communication nothing hides."""

    findings: tuple[RankFinding, ...]
    combined_ns: float
    exposed_share: float | None = (
        None  # of the step, in which ranks stand still for transfers; None: not known
    )
    hidden_ns: float | None = None  # what a step would take less if all of that were hidden
    input_ns: float | None = None  # what a step would take less if no rank waited for input
    pauses_ns: float | None = None  # what it would take less without pauses longer than each rank's usual one


def judge(
    job: Gathered,
    matches: Matches,
    waits: Waits,
    roles: Roles,
    replay: Replay,
    *,
    step_ns: float,
    at_least: bool = False,
) -> Judged:
    """What holds the job up; `at_least` where not all of it was read."""
    leads = excess.leads_per_step(job)
    causes = [
        *_slow_ranks(job, roles, leads["other"], lateness(job, matches, waits), step_ns),
        *_late_inputs(job, roles, leads["input"], step_ns),
        *_slow_stages(job, matches, roles, step_ns),
        *_slow_links(job, matches, waits, roles, step_ns),
    ]
    steps = max(len(job.steps), 1)
    experts = excess.expert_rows(job)
    as_it_is = replay.run().total_ns

    def saved_ns(relief: Relief) -> float:
        change = as_change(relief, job, waits.transfer_ns, experts)
        return max((as_it_is - replay.run(change).total_ns) / steps, 0.0)

    unmatched = unmatched_share(job, matches) > MOST_UNMATCHED
    # A replay that does not know who waits for whom cannot tell what costs nothing.
    costly = (
        [(each, saved_ns(each.relief)) for each in causes]
        if unmatched
        else _costly(causes, saved_ns, step_ns)
    )
    at_least = at_least or unmatched
    without = combined(cause.relief for cause, _ in costly)
    together = costly[0][1] if len(costly) == 1 else saved_ns(without) if costly else 0.0
    findings = [
        RankFinding(
            cause.what,
            cause.who,
            tuple(int(job.ranks[place]) for place in cause.members),
            cause.says if unmatched or worth >= LEAST_WORTH * step_ns else cause.says + _NOT_ALONE,
            worth,
            at_least or cause.once,  # shorter pauses of the same rank are not counted
            not cause.once,
        )
        for cause, worth in costly
    ]
    findings.sort(key=lambda finding: -finding.worth_ns)
    shared = {
        "input_ns": saved_ns(Relief({"input": 0 * _all_kept(job)})),
        "pauses_ns": saved_ns(Relief({"other": excess.without_pauses(leads["other"])})),
    }
    share = _exposed_share(job, matches, waits, step_ns, without.transfer)
    if share is None:
        return Judged(tuple(findings), together, **shared)
    hidden = saved_ns(Relief({}, transfer=np.zeros(len(matches.first)))) if share > 0 else 0.0
    if share >= MOST_EXPOSED:
        says = f"ranks stand still for transfers during {100 * share:.0f} % of the step"
        everyone = tuple(job.ranks.tolist())
        findings.append(RankFinding("exposed-communication", "all ranks", everyone, says, hidden, False))
    return Judged(tuple(findings), together, share, hidden, **shared)


def unmatched_share(job: Gathered, matches: Matches) -> float:
    """Of the communications that ranks stood still for, those that no other rank's was matched with."""
    waited = job.still & (job.kind != STEP)
    return float((matches.count == 1)[matches.number[waited]].mean()) if waited.any() else 0.0


def _costly(
    causes: Sequence[_Cause], saved_ns: Callable[[Relief], float], step_ns: float
) -> list[tuple[_Cause, float]]:
    """The causes that cost something, alone or beside the others, each with what it saves alone.

    What hides behind another cause saves nothing alone, but the job is not as it should be until both are gone.
    """
    kept = [(cause, saved_ns(cause.relief)) for cause in causes]

    def least_ns(cause: _Cause) -> float:
        return (excess.LEAST_EXCESS if cause.if_costly else LEAST_WORTH) * step_ns

    def beside_ns(others: Sequence[tuple[_Cause, float]]) -> float:
        whole, rest = (combined(cause.relief for cause, _ in each) for each in (kept, others))
        return saved_ns(whole) - saved_ns(rest)

    cheap = [each for each in kept if each[1] < least_ns(each[0])]
    others = [each for each in kept if each[1] >= least_ns(each[0])]
    if cheap and beside_ns(others) < LEAST_WORTH * step_ns:
        return others
    for each in cheap[:_MOST_TRIED]:
        others = [other for other in kept if other is not each]
        if beside_ns(others) < least_ns(each[0]):
            kept = others
    return kept


def _slow_ranks(job: Gathered, roles: Roles, other_ns: Array, late_ns: Array, step_ns: float) -> list[_Cause]:
    slow = excess.slow_computation(job, roles, step_ns)
    causes: list[_Cause] = []
    alone = []
    experts = excess.expert_rows(job)
    for each in slow:
        ratio = excess.of_experts(job, roles, each, experts)
        if ratio is None:
            alone.append(each)
        else:
            causes.append(_overloaded(job, each, ratio))
    overloaded = [member for cause in causes for member in cause.members]
    of_nodes, alone = _whole_nodes(job, roles, alone, overloaded, step_ns)
    causes += of_nodes
    alone += excess.slow_otherwise(other_ns, late_ns, roles, step_ns)
    by_member: dict[int, list[Slow]] = {}
    for each in alone:
        by_member.setdefault(each.member, []).append(each)
    for member, each_part in by_member.items():
        worst = max(each_part, key=lambda each: each.excess_ns)
        who = f"rank {job.ranks[member]}"
        late = late_ns[member][~np.isnan(late_ns[member])]
        says = f"{who} {_words(worst, float(np.median(late)) if len(late) else 0.0)}"
        once = all(each.once for each in each_part)
        causes.append(
            _Cause("slow-rank", who, (member,), says, _relief(job, each_part), once, if_costly=once)
        )
    return causes


def _overloaded(job: Gathered, slow: Slow, ratio: float) -> _Cause:
    who = f"rank {job.ranks[slow.member]}"
    left = _all_kept(job)
    left[slow.member] = 1 / ratio
    says = f"the experts of {who} compute {100 * (ratio - 1):.0f} % longer than those of other ranks"
    return _Cause("imbalance", who, (slow.member,), says, Relief({"expert": left}))


def _whole_nodes(
    job: Gathered, roles: Roles, slow: Sequence[Slow], overloaded: Sequence[int], step_ns: float
) -> tuple[list[_Cause], list[Slow]]:
    """Nodes whose ranks are slow; and the slow ranks of other nodes, and those slower than their slow node."""
    causes, alone = [], list(slow)
    for node in slow_nodes.find(job, roles, step_ns):
        if np.isin(node.members, overloaded).any():
            continue
        mine = [each for each in alone if each.member in node.members]
        own, beyond = slow_nodes.parted(node, mine)
        alone = [each for each in alone if each.member not in node.members] + beyond
        slower = 100 * (node.ratio - 1)
        says = f"the {len(own)} ranks of node {node.node} compute {slower:.0f} % longer than others of their role"
        members = tuple(node.members.tolist())
        causes.append(_Cause("slow-node", f"node {node.node}", members, says, _relief(job, own)))
    return causes, alone


def _late_inputs(job: Gathered, roles: Roles, input_ns: Array, step_ns: float) -> list[_Cause]:
    causes = []
    # Ranks of one node that wait in the same steps wait for the same thing: one alone would save nothing.
    together: dict[tuple[int, bytes], list[Slow]] = {}
    for each in excess.late_input(input_ns, roles, step_ns):
        together.setdefault((int(roles.node[each.member]), (each.left < 1).tobytes()), []).append(each)
    for (node, _), late in together.items():
        members = tuple(each.member for each in late)
        numbers = tuple(int(job.ranks[member]) for member in members)
        whole = len(late) > 1 and len(late) == int((roles.node == node).sum())
        who = f"node {node}" if whole else named(numbers)
        longest = max(late, key=lambda each: each.excess_ns)
        says = f"{who} {_words(longest, verb='wait' if len(late) > 1 and not whole else 'waits')}"
        causes.append(_Cause("late-input", who, members, says, _relief(job, late), if_costly=True))
    shared = excess.late_for_all(input_ns, step_ns)
    if shared is not None:
        left = np.broadcast_to(shared.left, input_ns.shape)
        steps = "some steps" if shared.left.any() else "every step"
        says = f"in {steps} all ranks wait for input: {shared.excess_ns / 1e6:.3g} ms a step"
        everyone = tuple(range(len(job.ranks)))
        causes.append(_Cause("late-input", "all ranks", everyone, says, Relief({"input": left})))
    return causes


def _slow_stages(job: Gathered, matches: Matches, roles: Roles, step_ns: float) -> list[_Cause]:
    causes = []
    found = slow_stages.find(job, matches, roles, step_ns)
    for node, stages in slow_stages.on_one_node(found, roles).items():
        relief = combined(_as_median_stage(job, roles, each) for each in stages)
        members = tuple(np.flatnonzero(roles.node == node).tolist())
        slower = 100 * (float(np.median([each.ratio for each in stages])) - 1)
        says = f"the {len(stages)} stages on node {node} compute {slower:.0f} % longer than the median stage"
        causes.append(_Cause("slow-node", f"node {node}", members, says, relief))
        found = [each for each in found if each not in stages]
    for each in found:
        members = tuple(np.flatnonzero(roles.stage == each.stage).tolist())
        slower = 100 * (each.ratio - 1)
        says = (
            f"stage {each.stage} of {roles.stages_count} computes {slower:.0f} % longer than the median stage"
        )
        relief = _as_median_stage(job, roles, each)
        causes.append(_Cause("slow-stage", f"stage {each.stage}", members, says, relief))
    return causes


def _as_median_stage(job: Gathered, roles: Roles, slow: slow_stages.SlowStage) -> Relief:
    left = _all_kept(job)
    left[roles.stage == slow.stage] = 1 / slow.ratio
    return Relief({"computation": left}, slow.transfer if (slow.transfer < 1).any() else None)


def _slow_links(job: Gathered, matches: Matches, waits: Waits, roles: Roles, step_ns: float) -> list[_Cause]:
    transfers = links.classify(job, matches, waits, roles)
    causes = []
    for each in links.slow_links(transfers, roles, job, len(matches.first)):
        touched = np.flatnonzero(each.left < 1)
        gone_ns = float((waits.transfer_ns * (1 - each.left))[touched].sum())
        members = np.unique(job.member[np.isin(matches.number, touched)])
        if gone_ns / max(len(members), 1) * 2 < excess.LEAST_EXCESS * step_ns * len(job.steps):
            continue
        says = f"transfers of {each.who} take {each.ratio:.2g} times as long as others of their kind and size"
        says += "; which of them is slow cannot be told" if each.alike > 2 else ""
        causes.append(
            _Cause(each.what, each.who, tuple(members.tolist()), says, Relief({}, transfer=each.left))
        )
    return causes


def _exposed_share(
    job: Gathered, matches: Matches, waits: Waits, step_ns: float, left: Array | None
) -> float | None:
    """The part of the step in which ranks stand still for transfers; waiting for others, and what slow links add, left out.

    What a rank stands still for may wait for others on its stream, whose transfers count as well. None where nothing is matched.
    """
    several = (matches.count > 1)[matches.number] & (job.kind != STEP)
    if not several.any() or step_ns <= 0:
        return None
    stalls = np.flatnonzero(job.still & several)
    if not len(stalls):
        return 0.0
    since = np.where(
        job.previous[stalls] >= 0, waits.leave_ns[job.previous[stalls]], waits.begin_ns[job.member[stalls]]
    )
    since = np.minimum(since + job.work_ns[stalls], waits.leave_ns[stalls])
    rows = np.flatnonzero(several)
    transfer_ns = np.clip(waits.transfer_ns if left is None else waits.transfer_ns * left, 0.0, None)
    taken_ns = transfer_ns[matches.number[rows]]
    # All ranks in one row of times, one after the other.
    first = min(float(waits.leave_ns[rows].min() - taken_ns.max()), float(since.min()))
    apart = float(waits.leave_ns[rows].max()) - first + 1

    def at(member: Array, times_ns: Array) -> Array:
        return (member * apart + times_ns - first).astype(np.int64)

    own = job.member[rows].astype(np.int64)
    transfers = intervals.union(at(own, waits.leave_ns[rows] - taken_ns), at(own, waits.leave_ns[rows]))
    own = job.member[stalls].astype(np.int64)
    stood = intervals.covered_ns(transfers, at(own, since), at(own, waits.leave_ns[stalls]))
    return float(stood.sum()) / (len(job.ranks) * len(job.steps) * step_ns)


def named(ranks: Sequence[int]) -> str:
    """rank 5; ranks 4 and 5; ranks 4, 5 and 6."""
    numbers = [str(rank) for rank in ranks]
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def _all_kept(job: Gathered) -> Array:
    return np.ones((len(job.ranks), len(job.steps)))


def _relief(job: Gathered, slow: Sequence[Slow]) -> Relief:
    parts: dict[str, Array] = {}
    for each in slow:
        left = parts.setdefault(each.part, _all_kept(job))
        left[each.member] *= each.left
    return Relief(parts)


def _words(slow: Slow, late_ns: float = 0.0, verb: str = "waits") -> str:
    return _WORDS[slow.part].format(
        slower=100 * (slow.ratio - 1),
        among=slow.among,
        more=slow.excess_ns / 1e6,
        late=late_ns / 1e6,
        verb=verb,
    )
