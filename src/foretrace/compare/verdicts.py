"""The verdict on two sets of step times: faster, slower, same or inconclusive, and how well the speed-up is known.

`foretrace.measured` decides, with two additions for steps of programs. Two runs of one program differ by more than the steps
of either do among themselves: its host's part of the step from process to process by up to half, the GPU's by a hundredth, and by as
much as the same kernels took longer on one side. The interval is widened by that. And of a few steps the rank test can never tell: there Welch's t-test stands in for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from foretrace import measured
from foretrace.compare.device_speed import slowed
from foretrace.compare.sides import Side
from foretrace.measured import CHANCE, MATTERS, Interval, Verdict
from foretrace.sourced import JUDGEMENT, Count, Share
from foretrace.statistics import welch
from foretrace.units import counted

_REPEATED = "two to four runs each of 50 programs on H200s, of which 40 stay within: docs/guide/compare.md"
HOST_REPEATS = Share(
    0.5, "the time that the GPU waits, by which two runs of one program may differ", _REPEATED
)
GPU_REPEATS = Share(
    0.01, "the time that the GPU works, by which two runs of one program may differ", _REPEATED
)
CPU_REPEATS = Share(0.1, "the step of a program without a GPU, by which two runs of it may differ", JUDGEMENT)
FEWEST = Count(3, "times on either side, below which nothing is concluded", JUDGEMENT)


@dataclass(frozen=True)
class Judged:
    """What two sets of step times say of each other."""

    verdict: Verdict
    speedup: (
        Interval  # the time before, divided by that after; widened by what two runs of one program differ by
    )
    chance: float  # how often equal sets would be as far apart
    effect: float  # Cliff's delta
    repeats: float  # by how much two runs of one program may differ, as a share of the step
    why: str = ""  # why nothing can be concluded


def repeats(sides: Sequence[Side], step_ns: Sequence[float]) -> float:
    """By how much the steps of two runs of one program may differ, as a share: the larger of the sides.

    Where the same kernels took longer on one side, the GPU itself was slower there, and that comes on top.
    """
    shares = []
    for side, length_ns in zip(sides, step_ns, strict=True):
        if side.clock == "host":
            shares.append(float(CPU_REPEATS))
            continue
        busy_ns = min(side.busy_ns, length_ns)
        waits_ns = length_ns - busy_ns
        shares.append((GPU_REPEATS * busy_ns + HOST_REPEATS * waits_ns) / length_ns if length_ns else 0.0)
    ratio = slowed(sides[0].kernels, sides[1].kernels)
    return max(shares) + max(ratio, 1 / ratio) - 1


def judge(
    before: Sequence[float],
    after: Sequence[float],
    *,
    repeats: float,
    point: float | None = None,
    noun: str = "time",
) -> Judged:
    """The verdict; `point` is the speed-up where something better than the medians tells it."""
    found = measured.compare(before, after)
    equal = sorted(before) == sorted(after)
    scale = (point or found.speedup.point) / found.speedup.point
    widened = 1.0 if equal else 1.0 + repeats
    speedup = Interval(
        found.speedup.point * scale, found.speedup.low * scale / widened, found.speedup.high * scale * widened
    )
    chance = found.chance if _can_tell(len(before), len(after)) else welch(before, after)
    if equal:
        return Judged("same", speedup, 1.0, found.effect, repeats)
    if min(len(before), len(after)) < FEWEST:
        why = f"{counted(len(before), noun)} and {counted(len(after), noun)} are too few to tell a difference from chance"
        return Judged("inconclusive", speedup, chance, found.effect, repeats, why)
    verdict = measured.verdict(speedup, chance)
    if verdict in ("same", "inconclusive"):  # the widened interval is too wide to tell what is the same
        verdict = "same" if found.verdict == "same" else "inconclusive"
    why = "" if verdict != "inconclusive" else _why(speedup, chance, repeats)
    return Judged(verdict, speedup, chance, found.effect, repeats, why)


def _can_tell(n: int, m: int) -> bool:
    """Whether the rank test could find sets of this size different at all."""
    return 2 / comb(n + m, n) < CHANCE


def _why(speedup: Interval, chance: float, repeats: float) -> str:
    if chance >= CHANCE:
        return "the times of the two scatter too much, or are too few, to tell a difference from chance"
    if abs(speedup.point - 1) < MATTERS:
        return f"the difference is below {MATTERS}, but the times scatter too much to call them the same"
    return f"two runs of one and the same program may differ by {100 * repeats:.0f} %"
