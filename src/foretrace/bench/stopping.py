"""When enough samples were taken: the median is known well, more samples would not make it better known, or time is up.

After nvbench's rule (`stdrel`), with the interval of the median in place of the standard deviation: one slow sample in a thousand
says nothing about the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from foretrace.bench.timing import Timing
from foretrace.sourced import JUDGEMENT, Count, Share
from foretrace.statistics import median_interval

Reason = Literal["precise", "stable", "time", "cold"]

SAYS: dict[Reason, str] = {
    "precise": "the median is known well enough",
    "stable": "the noise stays the same, so that more samples tell little",
    "time": "time was up",
    "cold": "only the first calls were asked for",
}
CHECK_EVERY = Count(16, "samples between two looks at the noise", "nvbench")
STABLE_FROM = Count(64, "samples, before which noise is not called stable", "nvbench")
STABLE_LOOKS = Count(5, "looks in a row at the noise, which must agree", JUDGEMENT)
STABLE = Share(0.05, "the noise, within which those looks must agree (one standard deviation)", "nvbench")
_CONFIDENCE = 0.99


class Stopping:
    """The state of the rule while one function is sampled."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._noises: list[float] = []
        self._looked = 0

    def reason(self, samples: Sequence[float], elapsed_s: float) -> Reason | None:
        """Why to stop now, or None where to go on."""
        stable = self._is_stable(samples)
        if elapsed_s >= self._timing.most_s:
            return "time"
        if len(samples) < self._timing.least_samples or elapsed_s < self._timing.least_s:
            return None
        if half_width(samples) <= self._timing.precise:
            return "precise"
        return "stable" if stable else None

    def _is_stable(self, samples: Sequence[float]) -> bool:
        if len(samples) >= self._looked + CHECK_EVERY:
            self._looked = len(samples)
            self._noises.append(noise(samples))
        if len(samples) <= STABLE_FROM or len(self._noises) < STABLE_LOOKS:
            return False
        looks = np.asarray(self._noises[-STABLE_LOOKS:])
        return bool(looks.std() <= STABLE * looks.mean())


def noise(samples: Sequence[float]) -> float:
    """The distance between the quartiles, as a share of the median."""
    low, middle, high = np.quantile(np.asarray(samples), (0.25, 0.5, 0.75))
    return float((high - low) / middle) if middle else 0.0


def half_width(samples: Sequence[float]) -> float:
    """Half of the interval that holds the median in 99 of 100 cases, as a share of it; by ranks, which costs no draws."""
    if len(samples) < 2:
        return float("inf")
    low, high = median_interval(samples, confidence=_CONFIDENCE)
    middle = float(np.median(samples))
    return (high - low) / 2 / middle if middle else float("inf")
