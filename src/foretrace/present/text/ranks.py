"""What is said of a job's ranks: the first line, the figures under it, and the notes."""

from __future__ import annotations

from collections import Counter

from foretrace.analyze.result import Value
from foretrace.ranks.excess import LEAST_OF_ALL
from foretrace.ranks.findings import LEAST_WORTH, MOST_UNMATCHED, RankFinding, unmatched_share
from foretrace.ranks.reduce import MOST_RESIDUAL, Ranks
from foretrace.ranks.unused import CUT_OFF, DUPLICATE, LOST, OTHER_CYCLE, UNREADABLE
from foretrace.units import counted, format_value, visible

_LISTED = 8
_NOT_USED = {
    UNREADABLE: "{} could not be read",
    LOST: "{} lost with a worker or node",
    CUT_OFF: "{} cut off before any common step",
    DUPLICATE: "{} skipped as duplicates",
    OTHER_CYCLE: "{} of other cycles skipped",
}


def headline(ranks: Ranks) -> str:
    """The first line: what was not read, then what costs most, or that nothing is found."""
    return f"{reading(ranks)}{_first_finding(ranks)}"


def reading(ranks: Ranks) -> str:
    """What of the job was read, where that is not all of it, as the beginning of a sentence; else nothing."""
    read, world = len(ranks.job.ranks), ranks.job.world
    parts = []
    if ranks.cycle:
        parts.append(ranks.cycle.says)
    if ranks.missing:
        parts.append(f"{read} of {counted(world, 'rank')} read, without {listed(ranks.missing)}")
    if ranks.cut_off:
        parts.append(f"{listed(ranks.cut_off)} cut off")
    counts = Counter(unused.why for unused in ranks.unused)
    parts += [
        says.format(counted(counts[why], "recording")) for why, says in _NOT_USED.items() if counts[why]
    ]
    part = "Read in part: " if ranks.missing or ranks.cut_off else ""
    text = part + "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}. " if text else ""


def _first_finding(ranks: Ranks) -> str:
    read = counted(len(ranks.job.ranks), "rank")
    step = format_value("_ns", ranks.step_ns)
    if not trusted(ranks):
        return (
            f"{read}, {step} a step: their collectives cannot be matched, so nothing is said of who is late"
        )
    if not ranks.findings:
        if ranks.missing:
            return (
                f"{read}, {step} a step: no straggler among these; all of them may wait for {_absent(ranks)}"
            )
        return f"{read}, {step} a step: no rank, node, stage or input holds the others up{_in_turn(ranks)}"
    first = ranks.findings[0]
    if first.worth_ns < LEAST_WORTH * ranks.step_ns:
        unknown = "; how much that costs cannot be told from these recordings" if first.at_least else ""
        return f"{read}, {step} a step: {first.says}{unknown}"
    at_least = "at least " if first.at_least else ""
    worth = format_value("_ns", first.worth_ns)
    share = 100 * first.worth_ns / ranks.step_ns if ranks.step_ns else 0.0
    return f"{read}, {step} a step: {first.says}; without that a step takes {at_least}{worth} less ({share:.1f} %)"


def _in_turn(ranks: Ranks) -> str:
    """What ranks lose in turn, where it is much: nobody is to blame, but the job is not healthy."""
    saved_ns = ranks.judged.pauses_ns or 0.0
    if saved_ns < LEAST_OF_ALL * ranks.step_ns:
        return ""
    saved, share = format_value("_ns", saved_ns), 100 * saved_ns / ranks.step_ns
    return f" all the time; ranks pause in turn: without pauses longer than usual a step takes {saved} less ({share:.1f} %)"


def _absent(ranks: Ranks) -> str:
    return "the rank that was not read" if len(ranks.missing) == 1 else "a rank that was not read"


def trusted(ranks: Ranks) -> bool:
    """Whether the moments at which members leave a collective agree well enough."""
    return ranks.aligned.residual_ns <= MOST_RESIDUAL * ranks.step_ns


def values(ranks: Ranks) -> dict[str, Value]:
    """The job in figures."""
    judged = ranks.judged
    savings = {
        "hiding_transfers_saves_ns": judged.hidden_ns, "without_input_saves_ns": judged.input_ns, "without_pauses_saves_ns": judged.pauses_ns,
    }  # fmt: skip
    together = {"together_ns": round(judged.combined_ns)} if len(ranks.findings) > 1 else {}
    return {
        "ranks_read": f"{len(ranks.job.ranks)} of {ranks.job.world}",
        "step_ns": round(ranks.step_ns),
        "stages_count": ranks.roles.stages_count,
        "clocks_agree_within_ns": round(ranks.aligned.residual_ns),
        **{name: round(saved_ns) for name, saved_ns in savings.items() if saved_ns is not None},
        **together,
    }


def notes(ranks: Ranks) -> tuple[str, ...]:
    """Each finding in words, and what the figures leave out."""
    told = [f"{finding.what}: {finding.says}{_hosts(ranks, finding)}" for finding in ranks.findings]
    bounds = "; savings are lower bounds" if ranks.findings else ""
    if ranks.missing:
        told.append(f"not read: {listed(ranks.missing)} of {ranks.job.world}{bounds}")
    if ranks.left_out_steps:
        told.append(
            f"{counted(len(ranks.left_out_steps), 'step')} left out, because {listed(ranks.lacking)} did not record "
            f"all: {_numbers(ranks.left_out_steps)}"
        )
    unmatched = unmatched_share(ranks.job, ranks.matches)
    if unmatched > MOST_UNMATCHED:
        told.append(
            f"{100 * unmatched:.0f} % of the communications that ranks stood still for could not be matched with "
            f"another rank's{bounds}"
        )
    if len(set(ranks.aligned.pieces.tolist())) > 1:
        told.append("not all ranks share a collective: clocks between such parts are taken as they are")
    return tuple(told)


def _hosts(ranks: Ranks, finding: RankFinding) -> str:
    hosts = ranks.hosts_of(finding)
    return f" (host{'s' if len(hosts) > 1 else ''} {', '.join(map(visible, hosts))})" if hosts else ""


def listed(ranks: tuple[int, ...]) -> str:
    """Ranks by number, the first few of many."""
    return f"rank{'s' if len(ranks) > 1 else ''} {_numbers(ranks)}"


def _numbers(numbers: tuple[int, ...]) -> str:
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return ", ".join(map(str, numbers[:_LISTED])) + more
