"""A Measurement is what was sampled of one function: all samples, and what they say together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from foretrace import measured
from foretrace.bench.stopping import SAYS, Reason
from foretrace.measured import Interval


@dataclass(frozen=True)
class Measurement:
    """Samples in milliseconds a call; `calls` of them in a row make one sample."""

    samples_ms: tuple[float, ...]
    calls: int
    stopped: Reason
    clock: str

    @cached_property
    def median_ms(self) -> Interval:
        """The median and its bootstrap interval."""
        return measured.median(self.samples_ms)

    @property
    def mean_ms(self) -> float:
        """The mean of all samples."""
        return float(np.mean(self.samples_ms))

    @property
    def std_ms(self) -> float | None:
        """The standard deviation of a sample (n - 1); of one sample there is none."""
        return float(np.std(self.samples_ms, ddof=1)) if len(self.samples_ms) > 1 else None

    def percentile_ms(self, percent: float) -> float:
        """The time that so many per cent of the samples keep within."""
        return float(np.percentile(self.samples_ms, percent))

    def columns(self, prefix: str = "") -> dict[str, Any]:
        """The fields of a row: `median_ms` and the others, or `bwd_ms`, `bwd_low_ms` ... with a prefix."""
        median = self.median_ms
        return {
            f"{prefix}ms" if prefix else "median_ms": median.point,
            f"{prefix}low_ms": median.low,
            f"{prefix}high_ms": median.high,
            f"{prefix}avg_ms": self.mean_ms,
            f"{prefix}std_ms": self.std_ms,
            f"{prefix}samples_ms": [float(f"{sample:.6g}") for sample in self.samples_ms],
            f"{prefix}calls": self.calls,
            f"{prefix}stopped": self.stopped,
        }

    def __str__(self) -> str:
        """The median and its interval, from how many samples, and why no more were taken."""
        median = self.median_ms
        return (
            f"{median.point:.4g} ms ({median.low:.4g} to {median.high:.4g}), "
            f"{len(self.samples_ms)} samples of {self.calls}: {SAYS[self.stopped]}; {self.clock}"
        )
