"""What a rule is: a generator over a Case, with all that is said about it anywhere.

It yields Findings, each with the Change that would put it right, if one can be replayed. A rule whose input was not
recorded raises MissingDataError: that becomes "not checked", never "no issue".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from foretrace.diagnose.finding import Finding
from foretrace.errors import MissingDataError
from foretrace.sourced import Sourced, declared

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case

Words = Callable[[Mapping[str, Any]], str | None]
# The parts of a rule's docstring behind the paragraph on what it finds; "Slow" and "Fast" hold code.
SECTIONS = ("Slow", "Fast", "Why", "How the worth is predicted", "When not")


@dataclass(frozen=True)
class Need:
    """Something that a recording must hold, and what to record where it does not."""

    there: Callable[[Case], bool]
    says: str

    def check(self, case: Case) -> None:
        """Raises MissingDataError where it was not recorded."""
        if not self.there(case):
            raise MissingDataError(f"{case.trace.path.name}: {self.says}")


KERNELS = Need(
    lambda case: not case.trace.kernels.is_empty(), "no kernels recorded; record with ProfilerActivity.CUDA"
)
SHAPES = Need(
    lambda case: case.trace.ops["shapes"].null_count() < case.trace.ops.height,
    "no shapes recorded; record with record_shapes=True",
)
GEOMETRY = Need(
    lambda case: case.trace.kernels["blocks_per_sm"].null_count() < case.trace.kernels.height,
    "no launch geometry recorded (the kernels' grids and the number of multiprocessors)",
)
RUNTIME_CALLS = Need(
    lambda case: (case.trace.spans["kind"] == "runtime").any(),
    "no runtime calls recorded; record with ProfilerActivity.CUDA",
)


@dataclass(frozen=True)
class Healthy:
    """What to say where a rule found nothing: words made of the values of an analysis."""

    analysis: str
    words: Words
    options: Mapping[str, Any] = field(default_factory=dict)
    absent: str = ""  # said where the analysis has nothing to work on


@dataclass(frozen=True)
class Rule:
    """A named check; its docstring is its manual page."""

    name: str
    function: Callable[[Case], Iterator[Finding]] = field(repr=False)
    title: str  # the problem as a short sentence
    topic: str  # what it is about, in a word or two
    see: str  # the analysis that shows the evidence, with options
    needs: tuple[Need, ...] = ()
    headline: Words | None = field(default=None, repr=False)  # the title with a number, from the evidence
    healthy: Healthy | None = field(default=None, repr=False)

    def __call__(self, case: Case) -> Iterator[Finding]:
        for need in self.needs:
            need.check(case)
        for finding in self.function(case):
            yield replace(finding, rule=self.name)

    @property
    def help(self) -> str:
        """What it finds, in a sentence."""
        return self.manual.partition("\n")[0]

    @property
    def manual(self) -> str:
        """The manual page, with limits and costs as they are in force."""
        return (inspect.getdoc(self.function) or "").format_map(self.function.__globals__)

    @property
    def limits(self) -> dict[str, Sourced]:
        """The limits that the rule's file declares or imports, by name."""
        return declared(self.function.__globals__)

    def heading(self, evidence: Mapping[str, Any]) -> str:
        """The problem in one line, with its number where the rule has one."""
        try:
            return (self.headline(evidence) if self.headline else None) or self.title
        except (KeyError, TypeError, ValueError):  # the evidence lacks what the line needs
            return self.title


def rule(
    *,
    title: str,
    topic: str,
    see: str,
    needs: tuple[Need, ...] = (),
    headline: Words | None = None,
    healthy: Healthy | None = None,
) -> Callable[[Callable[[Case], Iterator[Finding]]], Rule]:
    """Makes a Rule of a generator: the name is the function's, the manual page its docstring."""

    def made(function: Callable[[Case], Iterator[Finding]]) -> Rule:
        name = function.__name__.replace("_", "-")
        return Rule(name, function, title, topic, see, needs, headline, healthy)

    return made
