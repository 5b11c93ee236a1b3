"""What a rule finds: one thing that is wrong, with its evidence and the change that would put it right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from foretrace.analyze.concepts.names.line_text import line_text
from foretrace.diagnose.freed import Freed
from foretrace.predict.changes import Change
from foretrace.predict.numbers import NO_CALLS, Calls
from foretrace.predict.prediction import Prediction, Span

# caller: torch kept the line of the call. recorded: the profiler recorded the line that ran. source: the only line of the function
# that calls such a thing. range: it is one of `lines`. entry: the function is entered at the first of `lines`. function: no more than
# the function is known.
LineBy = Literal["caller", "recorded", "source", "range", "entry", "function"]


@dataclass(frozen=True)
class Place:
    """A line of the user's source, or a module or operator where no stack was recorded."""

    file: str | None
    line: int | None  # None where the recording does not prove one
    function: str
    lines: tuple[int, int | None] | None = (
        None  # where the line must be among them; from the first, if the last is not known
    )
    line_by: LineBy | None = field(default=None, compare=False)

    @property
    def first_line(self) -> int | None:
        """Its line, or the first of those that it may be."""
        return self.line if self.lines is None else self.lines[0]

    @property
    def text(self) -> str:
        """model.py:12 in forward; without a stack, the operator or module alone."""
        return line_text(self.file, self.function, line=self.line, lines=self.lines)


@dataclass(frozen=True)
class Fix:
    """What to do, in words and as a small change of code."""

    says: str
    code: str


@dataclass(frozen=True)
class Alternative:
    """Another fix of the same cause, with its prediction, which the diagnosis fills in."""

    label: str  # one word, as `predict --change 'fix RULE:LABEL'` takes it
    fix: Fix
    change: Change | None
    unless: str = ""  # what would make this wrong
    may_lead: bool = (
        True  # whether it may stand first where it promises most: not if its results need a check
    )
    predicted: Prediction | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. The rule that yields it fills in `rule`; the diagnosis, `predicted` and `severity`.

    A rule that knows several fixes gives the plainest as `fix`, with a `label`, and the others as `alternatives`. The
    diagnosis predicts each and puts first what promises most: `fix`, `change` and `predicted` are then of that one.
    """

    says: str
    why: str
    fix: Fix
    evidence: Mapping[str, Any]  # numbers with unit suffixes, names and span ids
    where: tuple[Place, ...] = ()
    change: Change | None = None
    unless: str = ""  # what would make this wrong
    # Calls that this explains: rules that run later do not explain them again.
    claims: Calls = field(default_factory=lambda: NO_CALLS)
    rule: str = ""
    predicted: Prediction | None = None
    severity: str = "low"
    at_best: float = 0.0  # where no replay can tell: the share of the step that it could save at best
    general: bool = False  # whether its fix cures many things at once: a specific one stands before it
    label: str = ""  # of the fix, among its alternatives
    alternatives: tuple[Alternative, ...] = ()
    freed: Freed | None = field(default=None, compare=False)  # what the fix frees of the device's memory

    @property
    def freed_bytes(self) -> Span | None:
        """How much lower the peak of the device's memory would be; None where the fix is not about memory."""
        return None if self.freed is None else self.freed.size_bytes

    def led_by(self, label: str) -> Finding:
        """The same finding with this alternative as its fix, and its fix among the alternatives; itself if there is none."""
        leads = next((other for other in self.alternatives if other.label == label), None)
        if leads is None:
            return self
        own = Alternative(self.label, self.fix, self.change, self.unless, predicted=self.predicted)
        return replace(
            self,
            label=leads.label,
            fix=leads.fix,
            change=leads.change,
            unless=leads.unless,
            predicted=leads.predicted,
            alternatives=(own, *(other for other in self.alternatives if other is not leads)),
        )
