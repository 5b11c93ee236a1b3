"""torch's threads do not fit the processor."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.concepts.work.work_models import MATRIX_FAMILIES
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns.cpu_operators import (
    CpuOperators,
    cpu_operators,
    innermost,
    processor,
    replaced,
)
from foretrace.diagnose.rule import CPU, headline, on, rule
from foretrace.diagnose.seen import seen, too_little
from foretrace.ingest.core_use import SLIGHTLY
from foretrace.ingest.processor import Processor
from foretrace.predict.changes import Change
from foretrace.predict.costs.cpu_overheads import BY_CORES, CROWDED
from foretrace.sourced import JUDGEMENT, Factor, Nanoseconds, Share

LEAST_SHARE = Share(0.1, "the step", JUDGEMENT)
_LEAST = Factor(0.5, "the likely effect of other threads, at least", JUDGEMENT)
_MOST = Factor(1.25, "the likely effect of other threads, at most", JUDGEMENT)
LONG_NS = Nanoseconds(50_000, "an operator that is worth splitting between threads", JUDGEMENT)


@on(CPU)
@headline("torch uses {threads_count:.0f} threads on {cores_count:.3g} cores")
@rule("torch's threads do not fit the cores", "Threads", see="operators")
def crowded_threads(case: Case) -> Iterator[Finding]:
    """torch uses more threads than there are cores for them, or leaves cores idle.

    Finds a number of threads (torch.get_num_threads) above the cores that the process may use (its affinity, the
    container's quota, and its share where several ranks run on the machine) or above those that other programs leave it.
    Below them, it finds operators of at least {LONG_NS} that could use more, where they take at least {LEAST_SHARE} of the
    step. More threads than idle cores are never advised.

    Slow
        # a container with 2 of 64 cores: torch starts 64 threads

    Fast
        torch.set_num_threads(2)  # or OMP_NUM_THREADS=2

    Why
    An operator is done when its last thread is. With more threads than cores, some wait for a core while the others wait for
    them. With fewer, cores stand idle.

    How the worth is predicted
    For threads that are too many, each operator of at least {LONG_NS} is replayed as much shorter as such programs are
    slower: {CROWDED} of it for each thread that a core has beyond the first. For threads that are too few, another core
    takes over {BY_CORES} of its part of these operators. A Run counts how much of the cores other programs use while steps
    are timed; a core counts as idle where they use at most {SLIGHTLY} of it. Where they take cores that torch's threads
    need, nothing is replayed or promised: threads that wait for each other spin, and fewer can be many times faster.

    When not
    Other processes need the cores, such as the workers of a DataLoader or other servers.
    """
    cpu = processor(case)
    if cpu.threads is None or cpu.cores is None:
        return
    cores = max(int(cpu.cores), 1)
    left = max(_left(case, cpu), 1)
    long = _splittable(case)
    crowded_by_others = case.contended and cores >= cpu.threads > left
    if cpu.threads <= cores and not crowded_by_others and (case.contended or left <= cpu.threads):
        if left < cores:
            seen(case, f"torch uses {cpu.threads} of {cores} cores, and other programs use some of them")
        return
    if too_little(case, "operators that could use more threads", long.share, LEAST_SHARE):
        return
    if crowded_by_others:
        yield _beside_others(case, cpu, left, long)
        return
    many = cpu.threads > cores
    likely = _factor(cpu.threads, left, 1.0)
    worst, best = (_factor(cpu.threads, left, times) for times in (_LEAST, _MOST))
    yield Finding(
        says=f"torch uses {cpu.threads} thread{'s' * (cpu.threads > 1)}, and the process may use {cores} core{'s' * (cores > 1)}"
        + (": they wait for each other." if many else f": {100 * long.share:.0f} % of the step could use more."),
        why="An operator is done when its last thread is." if many else "Cores stand idle.",
        fix=_fix("Use as many threads as cores." if left == cores else "Use as many threads as idle cores.", left),
        evidence=_evidence(cpu, left, long),
        where=case.places(long.ids),
        change=Change(
            f"{left} threads in place of {cpu.threads}",
            replaced(case, long, (long.table["dur_ns"] * likely).to_list()),
            others=tuple(replaced(case, long, (long.table["dur_ns"] * factor).to_list()) for factor in (worst, best)),
        ),
        unless="other processes need the cores.",
    )  # fmt: skip


def _left(case: Case, cpu: Processor) -> int:
    """Whole cores that other programs leave; of a Run that did not count, by the load of the machine when it began."""
    cores = cpu.cores or 0.0
    if case.core_use is not None:
        return case.core_use.left_of(cores)
    return int(max(cores - max((cpu.load_average or 0.0) - (cpu.threads or 0), 0.0), 0.0) + SLIGHTLY)


def _beside_others(case: Case, cpu: Processor, left: int, long: CpuOperators) -> Finding:
    """As many threads as cores, of which other programs took some."""
    assert case.core_use is not None  # else nobody knows that cores are contended
    return Finding(
        says=f"torch uses {cpu.threads} threads, and other programs leave it {left} of {int(cpu.cores or left)} cores: its "
        "threads wait for each other, and spin while they do.",
        why="An operator is done when its last thread is.",
        fix=_fix(
            "Stop the other programs, or use as many threads as they leave cores; then measure again.", left
        ),
        evidence=_evidence(cpu, left, long),
        where=case.places(long.ids),
        at_best=case.core_use.waited or 0.0,
        unless="the other programs end soon.",
    )


def _fix(says: str, threads: int) -> Fix:
    return Fix(says, f"torch.set_num_threads({threads})  # or OMP_NUM_THREADS={threads}")


def _evidence(cpu: Processor, left: int, long: CpuOperators) -> dict[str, float | int | None]:
    return {
        "threads_count": cpu.threads, "threads_wanted_count": left, "cores_count": cpu.cores,
        "splittable_pct": 100 * long.share, "load_average_count": cpu.load_average,
    }  # fmt: skip


def _splittable(case: Case) -> CpuOperators:
    """Long operators that torch splits between threads, without those that only call others of them."""
    families = (*MATRIX_FAMILIES, "elementwise", "norm", "softmax", "reduction", "copy", "pooling")
    found = cpu_operators(case).where(pl.col("family").is_in(families), pl.col("dur_ns") >= LONG_NS)
    return innermost(found)


def _factor(threads: int, cores: int, times: float) -> float:
    """What is left of an operator's time with a thread for each core; `times` as much of an effect as is likely."""
    if threads > cores:
        return 1 / (1 + times * CROWDED * (threads / cores - 1))
    ideal = threads / cores
    return ideal + (1 - ideal) * (1 - min(times * BY_CORES, 1.0))
