"""What measured steps of variants are worth: the noise floor of the program as it is, and each change against it.

The program as it is runs several times. How far those runs lie apart is the noise floor: no difference that is smaller counts,
however alike the blocks of one process are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from foretrace import measured
from foretrace.measured import Interval, Verdict
from foretrace.sourced import JUDGEMENT, Share

TOO_NOISY = Share(
    0.10, "the step, by which runs of the program as it is differ: smaller gains cannot be ranked", JUDGEMENT
)


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


def waits_for_workers(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether batches come from workers, in bursts: then the mean of all steps counts, not the usual block."""
    return any(run.get("batches_ahead") for run in runs)


def step_of(run: Mapping[str, Any], *, bursts: bool) -> float:
    """What a step took in one process."""
    return fmean(run["blocks_ns"]) if bursts else median(run["blocks_ns"])


def base_of(runs: Sequence[Mapping[str, Any]], *, bursts: bool) -> Base:
    """The program as it is, from its runs."""
    steps = [step_of(run, bursts=bursts) for run in runs]
    middle = median(steps)
    return Base(middle, (max(steps) - min(steps)) / middle, len(steps))


def measure(base_runs: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> Measured:
    """What a variant brings: its interval is never narrower than the noise floor."""
    bursts = waits_for_workers([*base_runs, run])
    base, step_ns = base_of(base_runs, bursts=bursts), step_of(run, bursts=bursts)
    blocks = [block for one in base_runs for block in one["blocks_ns"]]
    told = measured.compare(blocks, run["blocks_ns"])
    point = base.step_ns / step_ns
    low = point * min(told.speedup.low / told.speedup.point, 1 / (1 + base.floor))
    high = point * max(told.speedup.high / told.speedup.point, 1 + base.floor)
    return Measured(_verdict(point, told, base.floor), step_ns, Interval(point, low, high))


def _verdict(point: float, told: measured.Difference, floor: float) -> Verdict:
    """The samples' verdict, where the difference is beyond the noise floor."""
    if told.verdict == "faster" and point > 1 + floor:
        return "faster"
    if told.verdict == "slower" and point < 1 / (1 + floor):
        return "slower"
    within = 1 / (1 + measured.SAME) <= point <= 1 + measured.SAME and floor <= measured.SAME
    return "same" if within else "inconclusive"


def pays_back_steps(extra_s: float, before_ns: float, after_ns: float) -> int | None:
    """After how many steps a longer start is made up for; None where steps are no shorter."""
    if after_ns >= before_ns:
        return None
    return max(round(extra_s * 1e9 / (before_ns - after_ns)), 0)
