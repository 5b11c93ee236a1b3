"""The Timings: what a step takes without a profiler, before the passes and after them, and which of the two is used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foretrace.capture import settled
from foretrace.capture.settled import Settling
from foretrace.capture.timing import StepTimes


class Timings:
    """Of one rank."""

    def __init__(self) -> None:
        self.used: StepTimes | None = None
        self.first: StepTimes | None = None
        self.settling: Settling | None = None
        self._later: StepTimes | None = None

    def begin(self, times: StepTimes | None) -> None:
        """Those before the passes."""
        self.used = self.first = times

    def judge(self, again: StepTimes | None, light_ns: float | None) -> str | None:
        """Steps were timed once more: what there is to say; `None` where it changes nothing."""
        if again is None or self.used is None:
            return None
        found = settled.compare(self.used, again, light_ns=light_ns)
        fell = found.verdict in (settled.FASTER, settled.CALMER)
        if self.settling is not None and not fell:
            return None  # what was found before the watch stands
        if fell:
            unsettled = light_ns is not None and light_ns > (1 + settled.CLEARLY) * again.median_ns
            self.used, found = again, replace(found, light_settled=not unsettled)
        self._later, self.settling = again, found
        return found.says

    def judge_once(self, light_ns: float | None) -> str:
        """The capture is over: what there is to say of steps that were never timed again."""
        if self.settling is not None or self.first is None:
            return ""
        self.settling = settled.compare(self.first, None, light_ns=light_ns)
        return self.settling.says

    def recorded_settled(self) -> None:
        """The light pass was recorded anew, and is now of the program as it is."""
        if self.settling is not None:
            self.settling = replace(self.settling, light_settled=True)

    @property
    def fell(self) -> bool:
        """Whether the later time is the one that is used."""
        return self._later is not None and self.used is self._later

    def to_dict(self) -> dict[str, Any]:
        """As rank.json holds it; `loader` has the waits of the steps that `unprofiled` is of."""
        return {
            "unprofiled": _figures(self.used),
            "timed_first": _figures(self.first or self.used),
            "timed_again": _figures(self._later),
            "settling": self.settling.to_dict() if self.settling else None,
            "loader": self.used.loader if self.used else None,
        }


def _figures(times: StepTimes | None) -> dict[str, Any] | None:
    return times.to_dict() if times else None
