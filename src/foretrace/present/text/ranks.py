"""What is said of a job's ranks: the first line, the figures under it, and the notes."""

from __future__ import annotations

from foretrace.analyze.result import Value
from foretrace.ranks.findings import MOST_UNMATCHED, unmatched_share
from foretrace.ranks.reduce import MOST_RESIDUAL, Ranks
from foretrace.units import counted, format_value

_LISTED = 8


def headline(ranks: Ranks) -> str:
    """The first line: what costs most, or that nothing is found."""
    read = counted(len(ranks.job.ranks), "rank")
    step = format_value("_ns", ranks.step_ns)
    if not trusted(ranks):
        return (
            f"{read}, {step} a step: their collectives cannot be matched, so nothing is said of who is late"
        )
    if not ranks.findings:
        return f"{read}, {step} a step: no rank, node, stage or input holds the others up"
    first = ranks.findings[0]
    at_least = "at least " if first.at_least else ""
    worth = format_value("_ns", first.worth_ns)
    share = 100 * first.worth_ns / ranks.step_ns if ranks.step_ns else 0.0
    return f"{read}, {step} a step: {first.says}; without that a step takes {at_least}{worth} less ({share:.1f} %)"


def trusted(ranks: Ranks) -> bool:
    """Whether the moments at which members leave a collective agree well enough."""
    return ranks.aligned.residual_ns <= MOST_RESIDUAL * ranks.step_ns


def values(ranks: Ranks) -> dict[str, Value]:
    """The job in figures."""
    exposed = ranks.judged.exposed_share
    together = {"together_ns": round(ranks.judged.combined_ns)} if len(ranks.findings) > 1 else {}
    return {
        "world_count": ranks.job.world,
        "read_count": len(ranks.job.ranks),
        "step_ns": round(ranks.step_ns),
        "stages_count": ranks.roles.stages_count,
        "clock_residual_ns": round(ranks.aligned.residual_ns),
        **({} if exposed is None else {"exposed_transfer_pct": 100 * exposed}),
        **together,
    }


def notes(ranks: Ranks) -> tuple[str, ...]:
    """Each finding in words, and what the figures leave out."""
    told = [f"{finding.what}: {finding.says}" for finding in ranks.findings]
    if ranks.missing:
        told.append(f"not read: {listed(ranks.missing)} of {ranks.job.world}; worths are lower bounds")
    unmatched = unmatched_share(ranks.job, ranks.matches)
    if unmatched > MOST_UNMATCHED:
        told.append(
            f"{100 * unmatched:.0f} % of the communications that ranks stood still for could not be matched with "
            "another rank's: worths are lower bounds"
        )
    if len(set(ranks.aligned.pieces.tolist())) > 1:
        told.append("not all ranks share a collective: clocks between such parts are taken as they are")
    return tuple(told)


def listed(ranks: tuple[int, ...]) -> str:
    """Ranks by number, the first few of many."""
    more = f" and {len(ranks) - _LISTED} more" if len(ranks) > _LISTED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} " + ", ".join(map(str, ranks[:_LISTED])) + more
