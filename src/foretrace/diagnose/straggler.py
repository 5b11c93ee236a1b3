"""One rank is slower than the others, and all wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, rule
from foretrace.errors import MissingDataError


@rule
def straggler(case: Case) -> Iterator[Finding]:
    """One rank arrives late at every collective.

    What it does
    Needs the recordings of all ranks, for in the recording of one rank waiting for another looks like
    communication. A program without collectives has no other rank to wait for.

    Why it matters
    A collective ends when the last rank has arrived: the slowest one sets the pace of all.

    Use instead
    Find out what the slow rank does more of: data, logging, a slower or hotter GPU, uneven work.
    """
    size = case.trace.meta.get("world_size")
    alone = case.trace.collectives.is_empty() and not (isinstance(size, int) and size > 1)
    if not alone:
        raise MissingDataError(
            f"{case.trace.path.name}: one rank's recording; which rank is late shows only in the recordings of all ranks"
        )
    yield from ()
