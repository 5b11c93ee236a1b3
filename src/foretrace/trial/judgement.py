"""What measured steps of variants are worth: each change against the program as it is, over several processes.

Blocks of one process agree far better than two processes of the same program, so a range rests on how far the processes of one
variant lie apart: Student's, with as few runs as there are. All processes have one seed and time the same steps; where these are
not alike (layers that are dropped at random, batches of different lengths), all do the same work in the same block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, sqrt
from statistics import fmean, median
from typing import Any

import numpy as np

from foretrace import measured
from foretrace.measured import Interval, Verdict
from foretrace.sourced import JUDGEMENT, Share
from foretrace.statistics import student_quantile

TOO_NOISY = Share(
    0.10, "the step, by which runs of the program as it is differ: smaller gains cannot be ranked", JUDGEMENT
)
TOGETHER = Share(
    0.9,
    "the correlation of two runs' blocks, from which steps differ by their work and not by chance",
    JUDGEMENT,
)
_CONFIDENCE = 0.95  # of a range that rests on how far the processes of a variant lie apart


@dataclass(frozen=True)
class Base:
    """The program as it is, from all of its runs."""

    step_ns: float
    floor: float  # how far its runs lie apart, as a share of the step
    runs: int

    @property
    def noisy(self) -> bool:
        """Whether changes cannot be ranked by what they bring."""
        return self.floor > TOO_NOISY


@dataclass(frozen=True)
class Measured:
    """A change against the program as it is."""

    verdict: Verdict
    step_ns: float
    speedup: Interval


def uneven(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether steps differ for a reason: then the mean of the same steps counts, not the usual block."""
    return any(run.get("batches_ahead") for run in runs) or same_work(runs)


def same_work(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether blocks differ by their work: those of all runs go up and down together."""
    blocks = [run["blocks_ns"] for run in runs]
    if (
        len(blocks) < 2
        or len({len(each) for each in blocks}) > 1
        or any(np.ptp(each) == 0 for each in blocks)
    ):
        return False
    return all(np.corrcoef(one, other)[0, 1] > TOGETHER for one, other in combinations(blocks, 2))


def step_of(run: Mapping[str, Any], *, mean: bool) -> float:
    """What a step took in one process."""
    return fmean(run["blocks_ns"]) if mean else median(run["blocks_ns"])


def base_of(runs: Sequence[Mapping[str, Any]]) -> Base:
    """The program as it is, from its runs."""
    mean = uneven(runs)
    steps = [step_of(run, mean=mean) for run in runs]
    middle = median(steps)
    return Base(middle, (max(steps) - min(steps)) / middle, len(steps))


def measure(base_runs: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> Measured:
    """What a variant brings, from all of its runs."""
    mean = uneven(base_runs) or uneven(runs)
    before, after = ([step_of(run, mean=mean) for run in each] for each in (base_runs, runs))
    step_ns = median(after)
    point = median(before) / step_ns
    told = measured.compare(*_blocks(base_runs, runs))
    apart = _apart(before, after)
    low = point * min(told.speedup.low / told.speedup.point, 1 / apart)
    high = point * max(told.speedup.high / told.speedup.point, apart)
    speedup = Interval(point, low, high)
    return Measured(measured.verdict(speedup, told.chance), step_ns, speedup)


def _blocks(
    base_runs: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]
) -> tuple[list[float], list[float]]:
    """The blocks of both; where all did the same work in the same block, without what that work makes of it."""
    before, after = ([run["blocks_ns"] for run in each] for each in (base_runs, runs))
    share: Any = 1.0
    if len({len(blocks) for blocks in (*before, *after)}) == 1 and same_work(base_runs):
        usual = np.mean(before, axis=0)
        share = usual / usual.mean()
    flat = (
        np.concatenate([np.asarray(blocks) / share for blocks in each]).tolist() for each in (before, after)
    )
    return next(flat), next(flat)


def _apart(before: Sequence[float], after: Sequence[float]) -> float:
    """By which factor the ratio of two variants may be off, as far as the scatter of their processes tells."""
    known = len(before) + len(after) - 2
    if known < 1:
        return 1.0
    squares = sum(float(np.square(np.log(each) - np.log(each).mean()).sum()) for each in (before, after))
    student = student_quantile((1 - _CONFIDENCE) / 2, known)
    return exp(student * sqrt(squares / known * (1 / len(before) + 1 / len(after))))


def pays_back_steps(extra_s: float, before_ns: float, after_ns: float) -> int | None:
    """After how many steps a longer start is made up for; None where steps are no shorter."""
    if after_ns >= before_ns:
        return None
    return max(round(extra_s * 1e9 / (before_ns - after_ns)), 0)
