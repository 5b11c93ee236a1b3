"""What `foretrace ranks` says of the ranks that a rule is given: the same answer, from the recordings at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from foretrace.diagnose.case import Case
from foretrace.errors import MissingDataError
from foretrace.sourced import JUDGEMENT, Share

if TYPE_CHECKING:  # most recordings are of one rank: all of `ranks` is loaded where there are more
    from foretrace.ranks.findings import RankFinding
    from foretrace.ranks.reduce import Ranks
    from foretrace.ranks.unused import Unused

COSTS = Share(
    0.01, "the job's step, that a cause is worth to count against what one rank's waits say", JUDGEMENT
)
OF_ONE_RANK = ("slow-rank", "late-input", "imbalance")


def find(cases: Mapping[int, Case], own: Case | None = None, unused: Sequence[Unused] = ()) -> Ranks | None:
    """The ranks on one clock, those of the profiling cycle of `own`; None where their recordings hold too little.

    `unused` are recordings of these ranks that were left out before.
    """
    from foretrace.ranks.cycles import Recording, choose
    from foretrace.ranks.reduce import reduce
    from foretrace.ranks.summarise import of_trace

    try:
        recordings = [
            Recording(str(case.trace.path), of_trace(case.trace, rank=rank)) for rank, case in cases.items()
        ]
        chosen = choose(recordings, own=str(own.trace.path) if own else None)
        if len(chosen.recordings) < 2:
            return None
        summaries = [recording.summary for recording in chosen.recordings]
        return reduce(summaries, unused=(*unused, *chosen.unused), cycle=chosen.cycle)
    except MissingDataError:
        return None


def names_other(ranks: Ranks | None, rank: int) -> bool:
    """Whether something costs the job time in most steps, and it is nothing that this rank is part of."""
    if ranks is None:
        return False
    causes = [
        finding
        for finding in ranks.findings
        if finding.what != "exposed-communication"
        and finding.steady
        and finding.worth_ns >= COSTS * ranks.step_ns
    ]
    return bool(causes) and not any(rank in finding.ranks for finding in causes)


def names(ranks: Ranks | None, rank: int) -> bool:
    """Whether this rank is one of those that hold the job up."""
    return any(rank in finding.ranks for finding in _of_one_rank(ranks))


def worthiest(ranks: Ranks | None) -> RankFinding | None:
    """The rank that costs the job most, in most steps; None where it is no single rank."""
    return next(iter(_of_one_rank(ranks)), None)


def _of_one_rank(ranks: Ranks | None) -> list[RankFinding]:
    found = ranks.findings if ranks is not None else ()
    return [finding for finding in found if finding.what in OF_ONE_RANK and finding.steady]
