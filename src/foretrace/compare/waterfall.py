"""The waterfall: the difference of two step times by cause; the causes sum to it exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foretrace.compare.parts import RECORDED, RECORDING
from foretrace.compare.sides import Side


@dataclass(frozen=True)
class Cause:
    """One part of the step on both sides; a positive difference makes the second longer."""

    what: str
    kind: str  # GPU: it works; wait: it waits; host: the processor works; recording: what the profiler adds
    before_ns: float
    after_ns: float

    @property
    def delta_ns(self) -> float:
        """After less before."""
        return self.after_ns - self.before_ns


def waterfall(before: Side, after: Side, steps_ns: tuple[float, float], scale: float) -> tuple[Cause, ...]:
    """The causes, the largest difference first; `scale` makes the second's work as much as the first's.

    `steps_ns` are the times to explain, of which the second is not scaled yet. Where they were measured without the
    profiler, what recording added to the recorded step is a part of its own, below zero.
    """
    sums: dict[str, list[float]] = {}
    kinds: dict[str, tuple[float, str]] = {}
    for place, (side, step_ns, factor) in enumerate(
        zip((before, after), steps_ns, (1.0, scale), strict=True)
    ):
        for (kind, what), ns in _summing(side.parts, step_ns).items():
            sums.setdefault(what, [0.0, 0.0])[place] += ns * factor
            kinds[what] = max(kinds.get(what, (-1.0, "")), (abs(ns * factor), kind))
    causes = [Cause(what, kinds[what][1], *ns) for what, ns in sums.items()]
    return tuple(
        sorted(
            causes, key=lambda cause: (-abs(cause.delta_ns), -cause.before_ns - cause.after_ns, cause.what)
        )
    )


def _summing(parts: Mapping[tuple[str, str], float], step_ns: float) -> dict[tuple[str, str], float]:
    """The parts, and what is between their sum and the step."""
    rest = step_ns - sum(parts.values())
    # Times are whole nanoseconds, or the mean of two: what is less is rounding.
    return {**parts, **({(RECORDING, RECORDED): rest} if abs(rest) >= 0.01 else {})}
