"""The time of a step by how it is known: as recorded, measured without a profiler, or estimated.

Every view shows these, by these names: the terminal, JSON, the page and the report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from foretrace.analyze.concepts.work import throughput
from foretrace.analyze.steps import step_windows
from foretrace.diagnose.case import Case
from foretrace.diagnose.promises import damaged
from foretrace.errors import FaultError, MissingDataError, contained
from foretrace.predict.builder import build
from foretrace.predict.steady import step_ns as steady_step_ns
from foretrace.sourced import JUDGEMENT, Share
from foretrace.units import format_value

FAR = Share(0.02, "the recorded step, by which an estimate differs before a reason is given", JUDGEMENT)
_IN_A_LOOP = "in a loop the host prepares a step while the GPU works on the one before"
_ALL_COUNT = "it counts every recorded step, and they take unlike times"
_SLOWED = "recording slows the host down"


@dataclass(frozen=True)
class StepTimes:
    """What is known of a step's time."""

    recorded_ns: (
        float | None
    )  # the median of complete steps, on the GPU's clock where they launched work on one
    unprofiled_ns: float | None  # measured without a profiler
    estimated_ns: float | None  # what it would be without one, where that was not measured
    marked: bool  # whether steps are marked; else the recording is taken for one
    why: str = ""  # why the estimate is not what was recorded
    taken_in: Mapping[str, float] = field(
        default_factory=dict
    )  # items and tokens of a step, where shapes tell them

    @property
    def known_by(self) -> Literal["unprofiled", "estimated", "recorded"] | None:
        """Which of them predictions start from."""
        if self.unprofiled_ns is not None:
            return "unprofiled"
        if self.estimated_ns is not None:
            return "estimated"
        return None if self.recorded_ns is None else "recorded"

    @property
    def used_ns(self) -> float | None:
        """The time that predictions start from."""
        return self.unprofiled_ns or self.estimated_ns or self.recorded_ns

    @property
    def of(self) -> str:
        """What it is the time of, behind a time."""
        return "per step" if self.marked else "for the recording"

    def per_s(self, what: str) -> float | None:
        """Items or tokens per second, at the time that predictions start from; None where they are not known."""
        return 1e9 * self.taken_in[what] / self.used_ns if self.used_ns and what in self.taken_in else None

    def says(self) -> str:
        """How the time is known, as part of a sentence; with items and tokens per second at that time."""
        rates = throughput.in_words(self.taken_in, self.used_ns)
        return self.known() + (f"; at {format_value('_ns', self.used_ns)}: {rates}" if rates else "")

    def known(self) -> str:
        """How the time is known, as part of a sentence."""
        if self.marked and self.known_by is None:
            return "no step was recorded completely, so its time is not known"
        recorded = "" if self.recorded_ns is None else format_value("_ns", self.recorded_ns)
        if not self.marked:
            return "the whole recording: no steps are marked in it"
        if self.known_by == "unprofiled":
            return "measured without the profiler" + (f"; recorded: {recorded}" if recorded else "")
        if self.known_by == "estimated":
            because = f", because {self.why}" if self.why else ""
            return f"estimated without the profiler{because}" + (
                f"; recorded: {recorded}" if recorded else ""
            )
        return "as recorded"


_WORDS = (
    (re.compile(r"\b(in|of) (?:a|each|every|the) step\b"), r"\1 the recording"),
    (re.compile(r"\b(?:a|per|each|every) step\b"), "in the recording"),
    (re.compile(r"\bthe step\b"), "the recording"),
)


def worded(text: str, *, marked: bool) -> str:
    """A text about steps; where none are marked, about the recording."""
    for pattern, words in () if marked else _WORDS:
        text = pattern.sub(words, text)
    return text


def step_times(case: Case) -> StepTimes:
    """What is known of the time of a case's steps."""
    return case.keep("step times", lambda: _step_times(case))


def _step_times(case: Case) -> StepTimes:
    windows = step_windows(case.whole)
    recorded_ns, taken_in = case.recorded_ns, throughput.taken_in(case.whole, windows)
    unprofiled_ns = case.measured_step_ns
    try:
        case.require_replay()
    except MissingDataError:
        return StepTimes(recorded_ns, unprofiled_ns, None, bool(case.whole.steps), taken_in=taken_in)
    known = recorded_ns or not case.whole.steps
    estimated_ns = case.step_ns if not unprofiled_ns and known and _times_hold(case) else None
    why = _why(case, recorded_ns, estimated_ns)
    return StepTimes(recorded_ns, unprofiled_ns, estimated_ns, bool(case.whole.steps), why, taken_in)


def _times_hold(case: Case) -> bool:
    """Whether nothing is known to be wrong with the recorded times, from which a step could be estimated."""
    try:
        with contained("the trust report"):
            return not damaged(case)
    except FaultError:
        return True  # the trust report says itself that it could not be made


def _why(case: Case, recorded_ns: float | None, estimated_ns: float | None) -> str:
    """Why the estimate is not what was recorded: steps that follow each other, or the profiler."""
    if not recorded_ns or not estimated_ns or abs(estimated_ns / recorded_ns - 1) <= FAR:
        return ""
    followed_ns = steady_step_ns(case.keep("built", lambda: build(case.trace)))
    by_following = abs(recorded_ns - followed_ns)
    if by_following <= abs(followed_ns - estimated_ns):
        return _SLOWED
    return _ALL_COUNT if case.on_cpu else _IN_A_LOOP
