"""What a rule is: a generator over a Case, with all that is said about it anywhere.

It yields Findings, each with the Change that would put it right, if one can be replayed. A rule whose input was not
recorded raises MissingDataError: that becomes "not checked", never "no issue".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from string import Formatter
from typing import TYPE_CHECKING, Any

from foretrace.analyze.concepts.trust.how_to_record import as_recorded
from foretrace.diagnose.finding import Finding
from foretrace.errors import MissingDataError
from foretrace.sourced import Sourced, declared
from foretrace.units import format_value

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case

GPU, CPU = "gpu", "cpu"
PROFILED = "profiled"  # with counters of its kernels
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
            raise MissingDataError(f"{case.trace.path.name}: {as_recorded(case.trace, self.says)}")


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
    words: str | Words
    none: str = ""  # said where the first value that the words name is zero
    options: Mapping[str, Any] = field(default_factory=dict)
    absent: str = ""  # said where the analysis has nothing to work on

    def says(self, values: Mapping[str, Any]) -> str | None:
        """The words for these values; None where they do not tell."""
        if not isinstance(self.words, str):
            return self.words(values)
        first = next(name for _, name, _, _ in Formatter().parse(self.words) if name)
        return self.none if self.none and values.get(first) == 0 else filled(self.words, values)


def filled(template: str, values: Mapping[str, Any]) -> str | None:
    """`{busy_pct:.0f} % busy` with the values; one without a format in its own unit. None where one is missing."""
    text = ""
    for literal, name, form, _ in Formatter().parse(template):
        text += literal
        if name is None:
            continue
        if values.get(name) is None:
            return None
        text += format(values[name], form) if form else format_value(name, values[name])
    return text


@dataclass(frozen=True)
class Rule:
    """A named check; its docstring is its manual page."""

    name: str
    function: Callable[[Case], Iterator[Finding]] = field(repr=False)
    title: str  # the problem as a short sentence
    topic: str  # what it is about, in a word or two
    see: str  # the analysis that shows the evidence, with options
    needs: tuple[Need, ...] = ()
    headline: str = ""  # the title with a number, from the evidence
    healthy: Healthy | None = field(default=None, repr=False)
    on: tuple[str, ...] = (GPU,)  # the programs that it is about

    def fits(self, case: Case) -> bool:
        """Whether the rule is about such a program at all: one with a GPU, one without, or one with counters of its kernels."""
        profiled = PROFILED in self.on and case.trace.profile is not None
        return profiled or (CPU if case.on_cpu else GPU) in self.on

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
        return filled(self.headline, evidence) or self.title


def rule(title: str, topic: str, *, see: str) -> Callable[[Callable[[Case], Iterator[Finding]]], Rule]:
    """Makes a Rule of a generator: the name is the function's, the manual page its docstring."""
    return lambda function: Rule(function.__name__.replace("_", "-"), function, title, topic, see)


def needs(*needed: Need) -> Callable[[Rule], Rule]:
    """The rule is checked only where all of these were recorded."""
    return lambda rule: replace(rule, needs=needed)


def headline(template: str) -> Callable[[Rule], Rule]:
    """The first line of the page where this rule's finding comes first, with values of its evidence."""
    return lambda rule: replace(rule, headline=template)


def healthy(analysis: str, words: str | Words, **more: Any) -> Callable[[Rule], Rule]:
    """What is said where the rule finds nothing, with values of an analysis."""
    return lambda rule: replace(rule, healthy=Healthy(analysis, words, **more))


def on(*programs: str) -> Callable[[Rule], Rule]:
    """The programs that a rule is about: with a GPU, which is what rules are about by default, without one, or both."""
    return lambda rule: replace(rule, on=programs)
