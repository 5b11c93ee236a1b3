"""What a rule is, and what it finds.

A rule is a generator over a Case. It yields Findings, each with the Change that would put it right, if one
can be replayed. A rule whose input was not recorded raises MissingDataError: that becomes "unchecked",
never "healthy".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foretrace.predict.changes import Change
from foretrace.predict.prediction import Prediction

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case


@dataclass(frozen=True)
class Place:
    """A line of the user's source, or a module or operator where no stack was recorded."""

    file: str | None
    line: int | None
    function: str


@dataclass(frozen=True)
class Fix:
    """What to do, in words and as a small change of code."""

    says: str
    code: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, with its evidence."""

    rule: str
    says: str
    why: str
    fix: Fix
    evidence: Mapping[str, Any]  # numbers with unit suffixes, names and span ids
    where: tuple[Place, ...] = ()
    change: Change | None = None
    unless: str = ""  # what would make this wrong
    predicted: Prediction | None = None
    severity: str = "low"


@dataclass(frozen=True)
class Rule:
    """A named check; its docstring is its manual page."""

    name: str
    help: str
    function: Callable[[Case], Iterator[Finding]] = field(repr=False)

    def __call__(self, case: Case) -> Iterator[Finding]:
        return self.function(case)


def rule(function: Callable[[Case], Iterator[Finding]]) -> Rule:
    """Makes a Rule of a generator: name and help are its own."""
    help_text = (function.__doc__ or "").strip().splitlines()[0]
    return Rule(function.__name__.replace("_", "-"), help_text, function)
