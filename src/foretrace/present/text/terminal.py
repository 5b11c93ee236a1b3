"""Results on a terminal: calm, dense, in colour where there is colour, and plain aligned text elsewhere.

Everything from a recording goes through `units.visible` and rich's Text, which reads no markup.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from rich.console import Console
from rich.text import Text

from foretrace.ingest.formats import READ, Format
from foretrace.present.text import summary_page, tables
from foretrace.present.text.verdicts import verdict_word
from foretrace.units import cells, format_value, heading, shorten, suffix, visible

if TYPE_CHECKING:
    from foretrace.analyze.result import Result
    from foretrace.diagnose.diagnosis import Diagnosis
    from foretrace.diagnose.step_times import StepTimes
    from foretrace.predict.prediction import Prediction
    from foretrace.trace import Trace

PIPE_WIDTH = 160  # columns of plain text where there is no terminal to ask
MAX_WIDTH = 150  # a line much longer than this is hard to follow, however wide the terminal
LARGE_BYTES = 20 << 20
_BARS_FROM = 100  # columns: in a narrower terminal, columns are worth more than bars
_UNCUT = ("code", "command")  # what may be copied runs over the edge rather than being cut

STYLES = {
    "title": "bold",
    "strong": "bold",
    "quiet": "#8a8f98",
    "accent": "#7aa2f7",
    "code": "#7aa2f7",
    "command": "#8a8f98",
    "bar": "#5673b8",
    "verdict yes": "bold #73b97c",
    "verdict with care": "bold #e0af68",
    "verdict no": "bold #e06c75",
    "verdict ok": "#73b97c",
    "verdict missing": "#e0af68",
    "verdict broken": "#e06c75",
    "weight no": "#e06c75",
    "weight care": "#e0af68",
    "weight info": "#8a8f98",
    "role kernel": "#7aa2f7",
    "role memcpy": "#4fb3a9",
    "role memset": "#2f7f78",
    "role communication": "#bb9af7",
    "role runtime": "#e0af68",
    "role dataloader": "#e06c75",
    "role cpu_exec": "#c3a6a0",
    "role other": "#565b66",
}


def show_page(trace: Trace, results: Sequence[Result], missing: Mapping[str, str]) -> None:
    """Prints the page of one recording."""
    console = _console()
    lines = summary_page.page_lines(trace, results, missing, width=console.width, colour=_has_colour(console))
    _print(console, lines)


def show_diagnosis(
    trace: Trace,
    results: Sequence[Result],
    missing: Mapping[str, str],
    diagnosis: Diagnosis,
    times: StepTimes,
) -> None:
    """Prints trust, where the time goes, and the findings."""
    from foretrace.present.text import findings

    console = _console()
    width = min(console.width, summary_page.WIDEST)
    _print(
        console, summary_page.page_lines(trace, results, missing, width=width, colour=_has_colour(console))
    )
    _print(console, [[]])
    lines = findings.finding_lines(diagnosis, times, width - summary_page.GUTTER)
    _print(console, summary_page.indented(lines, "findings", summary_page.GUTTER))


def show_note(name: str, text: str) -> None:
    """Prints a part of the page that there is nothing for, and why."""
    console = _console()
    width = min(console.width, summary_page.WIDEST) - summary_page.GUTTER
    lines: Iterator[summary_page.Line] = ([(line, "quiet")] for line in tables.wrap(visible(text), width))
    _print(console, [[]])
    _print(console, summary_page.indented(lines, name, summary_page.GUTTER))


def show_result(result: Result, *, rows_left: int = 0, all_columns: bool = False) -> None:
    """Prints one result: what it says, its values, its table, its notes; columns without a value only where asked for."""
    console = _console()
    width = console.width
    _print(console, _hanging([(result.name, "title"), ("  ", "")], visible(result.says), width))
    _print(console, _values(result, width))
    if result.table.width and (result.table.height or not result.values):
        _print(console, [[]])
        _print(console, _table(result, console, rows_left, all_columns=all_columns))
    if result.notes:
        _print(console, [[]])
    for note in result.notes:
        _print(console, _hanging([("· ", "quiet")], visible(note), width, "quiet"))


def show_frame(frame: pl.DataFrame, *, rows_left: int = 0) -> None:
    """Prints a bare table, of which every column was asked for."""
    from foretrace.analyze.result import Result

    console = _console()
    _print(console, _table(Result(says="", table=frame), console, rows_left, all_columns=True))


def show_lines(make: Callable[[int], Iterable[summary_page.Line]]) -> None:
    """Prints the lines of a page, which are made for a width."""
    console = _console()
    _print(console, make(min(console.width, summary_page.WIDEST)))


def show_names(names: Sequence[tuple[str, str]]) -> None:
    """Prints names with one line on each."""
    show_grouped_names({"": names})


def show_grouped_names(groups: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Prints names with one line on each, below the heading of their group."""
    console = _console()
    room = max((len(name) for names in groups.values() for name, _ in names), default=0)
    for number, (question, names) in enumerate(groups.items()):
        _print(console, ([[]] if number else []) + ([[(question, "title")]] if question else []))
        _print_names(console, names, room)


def _print_names(console: Console, names: Sequence[tuple[str, str]], room: int) -> None:
    for name, says in names:
        _print(console, _hanging([(f"{name:<{room}}", "accent"), ("  ", "")], says, console.width))


def show_checks(checks: Sequence[tuple[str, str, str, str]]) -> None:
    """Prints what was checked, how it stands, and how to put it right."""
    console = _console()
    room = max(len(what) for what, _, _, _ in checks)
    for what, status, found, fix in checks:
        says = visible("; ".join(each for each in (found, fix) if each))
        first = [(f"{status:<7}", f"verdict {status}"), (f"  {what:<{room}}  ", "")]
        _print(console, _hanging(first, says, console.width, "quiet" if status != "ok" else ""))


def show_formats(formats: Sequence[Format]) -> None:
    """Prints each format with how well it is read, what makes it and what it cannot tell."""
    console = _console()
    for each in formats:
        style = "quiet" if each.read == "no" else "verdict ok"
        _print(
            console,
            [[(f"{each.read:<9}", style), (visible(each.name), "accent"), (f"  {each.files}", "quiet")]],
        )
        for title, says in (("made by", each.made_by), ("lacks", each.lacks)):
            if says:
                _print(console, _hanging([(f"{'':9}{title:<8} ", "quiet")], visible(says), console.width))
    for name, says in READ.items():
        _print(console, _hanging([(f"{name:<9}", "title")], says, console.width, "quiet"))


def show_prediction(prediction: Prediction) -> None:
    """Prints a step before and after, with its range and what that rests on."""
    console = _console()
    now, after = (format_value("_ns", each) for each in (prediction.step_ns, prediction.after_ns.point))
    ratio = prediction.speedup
    ranges = "", ""
    if ratio.high > ratio.low * 1.005:
        low, high = (
            format_value("_ns", each) for each in (prediction.after_ns.low, prediction.after_ns.high)
        )
        ranges = f"   {low} to {high}", f"   × {ratio.low:.2f} to {ratio.high:.2f}"
    style = {"gain": "verdict yes", "uncertain": "verdict with care"}.get(prediction.verdict, "quiet")
    rows: list[summary_page.Line] = [
        [("step        ", "title"), (f"{now} → {after}", "strong"), (ranges[0], "quiet")],
        [("speed-up    ", "title"), (f"× {ratio.point:.2f}", "strong"), (ranges[1], "quiet")],
        [("verdict     ", "title"), (verdict_word(prediction), style)],
    ]  # fmt: skip
    _print(console, rows)
    _print(console, _hanging([("basis       ", "title")], visible(prediction.basis), console.width, "quiet"))


def show_next(commands: Sequence[tuple[str, str]], *, sample: Path) -> None:
    """Prints commands to go on with."""
    console = _console()
    room = max(len(command) for command, _ in commands)
    _print(console, [[], [("where to go next", "title")]])
    for command, says in commands:
        first = [("  ", ""), (f"{command:<{room}}", "code"), ("  ", "")]
        _print(console, _hanging(first, says, console.width, "quiet"))
    _print(console, [[("  this recording: ", "quiet"), (shlex.quote(str(sample)), "command")]])


@contextmanager
def reading(path: Path) -> Iterator[Callable[[int, int], None] | None]:
    """A progress callback (bytes done, bytes in all) that draws a bar, where a person would wait for it."""
    try:
        large = path.stat().st_size >= LARGE_BYTES
    except OSError:
        large = False
    if not large or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True, highlight=False)
    name = TextColumn(shorten(visible(path.name), 40), style=STYLES["quiet"], markup=False)
    bar = BarColumn(bar_width=30, complete_style=STYLES["accent"], finished_style=STYLES["accent"])
    columns = (name, bar, DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress callback (things done, things in all) that draws a bar, where a person would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True, highlight=False)
    bar = BarColumn(bar_width=30, complete_style=STYLES["accent"], finished_style=STYLES["accent"])
    columns = (TextColumn(what, style=STYLES["quiet"], markup=False), bar, MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leaves the error to the command line, which knows the exit code; rich would exit with 1."""
        raise  # noqa: PLE0704  # called where the error is at hand


def _console() -> Console:
    if sys.stdout.isatty():
        console = Console(highlight=False)
        return _Console(highlight=False, width=min(console.width, MAX_WIDTH))
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else PIPE_WIDTH
    return _Console(highlight=False, width=max(width, 20))


def _has_colour(console: Console) -> bool:
    return console.is_terminal and console.color_system is not None and not console.no_color


def _print(console: Console, lines: Iterable[summary_page.Line]) -> None:
    for line in lines:
        text = Text.assemble(*((text, STYLES.get(style, "")) for text, style in line))
        text.rstrip()
        cut = not any(style in _UNCUT or "`" in part for part, style in line)
        console.print(text, no_wrap=True, overflow="ellipsis" if cut else "ignore", crop=cut)


def _hanging(first: summary_page.Line, text: str, width: int, style: str = "") -> Iterator[summary_page.Line]:
    """The text after its first words; where it is too long, it goes on below its own beginning."""
    indent = sum(cells(each) for each, _ in first)
    if width - indent < 24:
        yield first
        first, indent = [("  ", "")], 2
    for line in tables.wrap(text, width - indent):
        yield [*first, (line, style)]
        first = [(" " * indent, "")]


def _values(result: Result, width: int) -> Iterator[summary_page.Line]:
    """One line per headline value, its share beside it, and what that is a share of."""
    if not result.values:
        return
    yield []
    pairs = {name: name.removesuffix("_ns") + "_pct" for name in result.values if name.endswith("_ns")}
    beside = {share for share in pairs.values() if share in result.values}
    shown = {name: value for name, value in result.values.items() if name not in beside}
    labels = max(cells(heading(name)) for name in shown)
    digits = max((cells(format_value(n, v)) for n, v in shown.items() if _is_number(v)), default=0)
    last = ""
    for name, value in shown.items():
        text = "not recorded" if value is None else format_value(name, value)
        style = "quiet" if value is None else f"verdict {value}" if name == "verdict" else "strong"
        line: summary_page.Line = [(f"  {heading(name):<{labels}}  ", "quiet")]
        if not _is_number(value):
            yield from _hanging(line, text, width, style)
            continue
        line.append((f"{text:>{digits}}", style))
        share = pairs.get(name, "")
        if share in beside:
            line.append((f"  {format_value(share, result.values[share]):>7}", "strong"))
        of_what = visible(result.denominators.get(share if share in beside else name, ""))
        # Said once where lines in a row share it.
        shown_as = '"' if of_what and of_what == last else of_what
        yield from _hanging([*line, ("  ", "")], shown_as, width, "quiet")
        last = of_what


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _table(
    result: Result, console: Console, rows_left: int, *, all_columns: bool
) -> Iterator[summary_page.Line]:
    """Aligned columns; sentences (a column `says`) go below their row where they do not fit beside it."""
    frame = result.table
    sentences = frame["says"] if "says" in frame.columns and frame.width > 1 else None
    if sentences is not None and tables.lay_out(frame, 100_000).width <= console.width:
        sentences = None
    rest = frame.drop("says") if sentences is not None else frame
    has_bar = _has_colour(console) and console.width >= _BARS_FROM
    bar = _bar_column(rest, result.denominators) if has_bar else None
    room = console.width - (summary_page.BAR + 1 if bar else 0)
    layout = tables.lay_out(rest, room, keep=result.keep, leave_out_empty=not all_columns)
    lines = list(summary_page.layout_lines(layout, rest, bar=bar))
    headings = len(lines) - frame.height
    yield from lines[:headings]
    for number, line in enumerate(lines[headings:]):
        yield line
        if sentences is not None and sentences[number]:
            yield from _hanging([("  ", "")], visible(sentences[number]), console.width)
    for footnote in _footnotes(layout, result, rows_left, console.width):
        yield from _hanging([("", "")], footnote, console.width, "quiet")


def _footnotes(layout: tables.Layout, result: Result, rows_left: int, width: int) -> Iterator[str]:
    """What is not shown and how to see it, and what shares are shares of."""
    if rows_left:
        yield f"{rows_left:,} more {'row' if rows_left == 1 else 'rows'}; --limit 0 prints all"
    if layout.hidden:
        names = ", ".join(visible(name) for name in layout.hidden)
        # Only of an analysis can columns be chosen: a query names its own.
        ways = ["a wider terminal"] * (width < MAX_WIDTH) + ["--columns NAME,..."] * bool(result.name)
        yield f"not shown: {names} (to see them: {' or '.join([*ways, '--format json'])})"
    if layout.zero:
        names = ", ".join(visible(name) for name in layout.zero)
        yield f"not shown, 0 in every row above: {names} (to see them: --format json)"
    if layout.empty:
        yield f"not recorded: {', '.join(visible(name) for name in layout.empty)}"
    shares: dict[str, list[str]] = {}
    for column in layout.columns:
        if column.name in result.denominators:
            shares.setdefault(result.denominators[column.name], []).append(column.title)
    for of_what, headings in shares.items():
        yield f"{', '.join(headings)}: {visible(of_what)}"


def _bar_column(frame: pl.DataFrame, denominators: Mapping[str, str]) -> str | None:
    """The first share in the table: the one that a small bar makes visible."""
    shares = (name for name in frame.columns if suffix(name) == "_pct" and name in denominators)
    return next(shares, None) if frame.height > 1 else None
