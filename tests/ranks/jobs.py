"""Synthetic jobs for tests: simulated, recorded and summarised once for all tests that ask for the same job."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.ranks.layouts import data_parallel, experts, sharded, three_d
from benchmarks.ranks.recordings import Style, write
from benchmarks.ranks.simulate import Fault, Job, Simulated
from benchmarks.ranks.simulate import simulate as run
from foretrace.ranks.reduce import Ranks, reduce
from foretrace.ranks.summarise import summarise
from foretrace.ranks.summary import Summary

SMALL = {"steps": 4, "kernels": 2}
AS_TORCH = Style()

# Without a fault. Tests with a job of their own pay for its simulation and its recordings.
PIPELINE = three_d(tensor=2, pipeline=4, data=2, per_node=4, **SMALL)
TENSOR_AND_DATA = three_d(tensor=2, pipeline=1, data=4, per_node=4, **SMALL)
DATA = data_parallel(world=8, **SMALL)
SHARDED = sharded(world=8, **SMALL)
EXPERTS = experts(world=8, expert=4, **SMALL)
# More ranks than torch lists of a group, and than a page shows at once.
MANY = data_parallel(world=36, steps=2, buckets=2, kernels=1, faults=(Fault("slow-rank", 33, 1.5),))


@cache
def simulate(job: Job) -> Simulated:
    """The job as it was."""
    return run(job)


@cache
def summaries(job: Job, style: Style = AS_TORCH) -> tuple[Summary, ...]:
    """What is read of each rank's recording."""
    with TemporaryDirectory() as folder:
        write(simulate(job), Path(folder), style)
        return tuple(summarise(path) for path in sorted(Path(folder).iterdir()))


@cache
def made(job: Job, style: Style = AS_TORCH, *, missing: tuple[int, ...] = ()) -> tuple[Simulated, Ranks]:
    """The job as it was, and as the recordings of all but some ranks show it."""
    present = [summary for summary in summaries(job, style) if summary.rank not in missing]
    return simulate(job), reduce(present, ranks_per_node=job.per_node)


def named(ranks: Ranks) -> set[tuple[str, str]]:
    """What was found, and where."""
    return {(finding.what, finding.who) for finding in ranks.findings}


def true_saving_us(simulated: Simulated, what: str) -> float:
    """What a step of the same job takes less without its fault of this name."""
    (fault,) = (fault for fault in simulated.job.faults if fault.what == what)
    return simulated.step_us - simulate(simulated.job.without(fault)).step_us
