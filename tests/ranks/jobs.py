"""Synthetic jobs for tests: simulated, written and summarised."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.ranks.recordings import Style, write
from benchmarks.ranks.simulate import Job, Simulated, simulate
from foretrace.ranks.reduce import Ranks, reduce
from foretrace.ranks.summarise import summarise


def made(
    job: Job,
    folder: Path,
    style: Style = Style(),  # noqa: B008
    *,
    missing: Iterable[int] = (),
) -> tuple[Simulated, Ranks]:
    """The job as it was, and as its recordings tell."""
    simulated = simulate(job)
    write(simulated, folder, style, missing=missing)
    summaries = [summarise(path) for path in sorted(folder.iterdir())]
    return simulated, reduce(summaries, ranks_per_node=job.per_node)


def named(ranks: Ranks) -> set[tuple[str, str]]:
    """What was found, and where."""
    return {(finding.what, finding.who) for finding in ranks.findings}


def true_saving_us(simulated: Simulated, what: str) -> float:
    """What a step of the same job takes less without its fault of this name."""
    (fault,) = (each for each in simulated.job.faults if each.what == what)
    return simulated.step_us - simulate(simulated.job.without(fault)).step_us
