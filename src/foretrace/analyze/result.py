"""What an analysis is: a function from a Trace to a Result, listed by name in `analyze.ANALYSES`.

The suffix of a column or value is its unit, and presentation formats by it: `_ns`, `_bytes`, `_flops`,
`_pct`, `_count`, `_per_s`, `_flops_per_byte`. So a new Result shows everywhere with no view code.
"""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Concatenate, ParamSpec

import polars as pl

from foretrace.analyze.concepts.trust.how_to_record import as_recorded
from foretrace.errors import MissingDataError, contained
from foretrace.ingest import totals
from foretrace.pandas_frames import to_pandas
from foretrace.trace import Trace
from foretrace.units import format_value, heading, headings, shorten, visible

Value = int | float | str | bool | None
Options = ParamSpec("Options")

_NOTEBOOK_ROWS, _NOTEBOOK_NAME = 20, 80


@dataclass(frozen=True, kw_only=True)
class Result:
    """A table, the headline values beside it, and what every share in it is a share of."""

    name: str = ""  # that of the analysis, which fills it in
    says: str  # one sentence: what the table shows for this trace
    table: pl.DataFrame
    values: Mapping[str, Value] = field(default_factory=dict)
    denominators: Mapping[str, str] = field(default_factory=dict)  # column or value -> "of the step time"
    notes: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()  # columns that a narrow terminal shows longest, the most important first

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `--format json` prints it."""
        return {
            "name": self.name,
            "says": self.says,
            "values": dict(self.values),
            "rows": self.table.to_dicts(),
            "denominators": dict(self.denominators),
            "notes": list(self.notes),
        }

    def to_pandas(self) -> Any:
        """The table as a pandas.DataFrame; needs pandas, and no pyarrow."""
        return to_pandas(self.table)

    def _repr_html_(self) -> str:
        """The result in a notebook: values in their units, the first rows of the table."""
        shown = self.table.head(_NOTEBOOK_ROWS)
        head = "".join(f"<th>{_text(title)}</th>" for title in headings(shown.columns))
        body = "".join(f"<tr>{_cells(shown.columns, row)}</tr>" for row in shown.iter_rows())
        values = " · ".join(
            f"{_text(heading(name))} <b>{_text(format_value(name, value))}</b>"
            for name, value in self.values.items()
        )
        left = self.table.height - shown.height
        more = f"<p>{left:,} more rows in <code>.table</code></p>" if left else ""
        notes = "".join(f"<li>{_text(note)}</li>" for note in self.notes)
        return (
            f"<p><b>{_text(self.name)}</b>: {_text(self.says)}</p><p>{values}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}<ul>{notes}</ul>"
        )


def _text(text: str) -> str:
    return html.escape(visible(text))


def _cells(names: list[str], row: tuple[Any, ...]) -> str:
    cells = []
    for name, value in zip(names, row, strict=True):
        right = isinstance(value, int | float) and not isinstance(value, bool)
        style = " style='text-align:right'" if right else " style='text-align:left'"
        shown = format_value(name, value)
        short = shorten(shown, _NOTEBOOK_NAME)
        title = f" title='{_text(shown)}'" if short != shown else ""
        cells.append(f"<td{style}{title}>{_text(short)}</td>")
    return "".join(cells)


class Subject(Enum):
    """The question that an analysis answers; lists of analyses are in this order, and by name within one."""

    TRUST = "Can the recording be trusted?"
    STEP = "How long is a step, and where does its time go?"
    LIMIT = "What does the GPU wait for, and what determines the length of a step?"
    WORK = "Which operators and kernels take the time?"
    CODE = "Which modules, source lines and labelled sections take the time?"
    DEVICE = "How well is the GPU used, and how far is it from its limits?"
    COUNTERS = "What did hardware counters and Nsight Compute measure?"
    HOST = "What does the host cost: launches, waits, data loading?"
    RANKS = "What does communication cost?"
    MEMORY = "Who holds memory at its peak, and what would fit?"
    COMPILED = "What did torch.compile and CUDA graphs run, and what could be fused?"
    REST = "What else happened?"


@dataclass(frozen=True)
class Analysis:
    """A named function of a Trace; its keyword arguments are the command line's flags."""

    name: str
    subject: Subject
    help: str
    function: Callable[..., Result]
    options: Mapping[str, inspect.Parameter]
    denominators: Mapping[str, str]
    keep: tuple[str, ...] = ()
    of_totals: bool = False  # whether it can tell something of a recording that holds sums and no timeline

    def __call__(self, trace: Trace, **options: Any) -> Result:
        if not self.of_totals:
            require_timeline(trace, self.name)
        try:
            with contained(f"{trace.path.name}: {self.name}"):
                result = self.function(trace, **options)
        except MissingDataError as error:
            raise type(error)(as_recorded(trace, str(error))) from error
        result = replace(result, notes=tuple(as_recorded(trace, note) for note in result.notes))
        shown = {*result.table.columns, *result.values}
        declared = {name: whole for name, whole in self.denominators.items() if name in shown}
        denominators = {**declared, **result.denominators}
        return replace(result, name=self.name, denominators=denominators, keep=result.keep or self.keep)


def require_timeline(trace: Trace, what: str) -> None:
    """Raises MissingDataError where a recording holds sums by name and no timeline."""
    if trace.meta.get("totals"):
        shows = ("kernels", "durations", *(("sections",) if totals.has_sections(trace) else ()))
        commands = ", ".join(f"`foretrace show {name}`" for name in shows)
        raise MissingDataError(
            f"{trace.path.name}: {what} needs a timeline, and this file holds sums by name ({commands} show them); "
            f"{trace.meta.get('timeline_by') or '`foretrace formats` says what to record instead'}"
        )


def analysis(
    subject: Subject,
    *,
    denominators: Mapping[str, str] | None = None,
    keep: tuple[str, ...] = (),
    of_totals: bool = False,
) -> Callable[[Callable[Concatenate[Trace, Options], Result]], Analysis]:
    """Makes an Analysis of a function: name and help are its own.

    `denominators` says for each share or mean, a column or a value, what it is a share of. One that depends on the
    recording is left to the function's Result. `keep` names the columns that a narrow terminal shows longest, the most
    important first; the others go before these, from the right. `of_totals` marks one that can do with sums, without a timeline.
    """

    def decorated(function: Callable[Concatenate[Trace, Options], Result]) -> Analysis:
        parameters = inspect.signature(function).parameters
        return Analysis(
            name=function.__name__.replace("_", "-"),
            subject=subject,
            help=(function.__doc__ or "").strip().splitlines()[0],
            function=function,
            options={
                name: option for name, option in parameters.items() if option.kind is option.KEYWORD_ONLY
            },
            denominators=denominators or {},
            keep=keep,
            of_totals=of_totals,
        )

    return decorated
