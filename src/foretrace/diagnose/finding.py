"""What a rule finds: one thing that is wrong, with its evidence and the change that would put it right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretrace.predict.changes import Change
from foretrace.predict.numbers import NO_CALLS, Calls
from foretrace.predict.prediction import Prediction


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
    """One thing that is wrong. The rule that yields it fills in `rule`; the diagnosis, `predicted` and `severity`."""

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
