"""The page of one recording: trust, overview, steps and the top kernels or operators, as lines of styled text.

A line is a list of (text, style); terminal.py knows how a style looks. Nothing here draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import polars as pl

from foretrace.analyze.result import Result
from foretrace.analyze.steps import ROLES
from foretrace.errors import FaultError, contained
from foretrace.present.facts import facts, recordings
from foretrace.present.text import tables
from foretrace.trace import Trace
from foretrace.units import ABSENT, cells, format_value, heading, shorten, visible

Line = list[tuple[str, str]]

BAR = 10
_EIGHTHS = " ▏▎▍▌▋▊▉█"
GUTTER = 10
WIDEST = 120  # a page is read, not searched: longer lines are harder to follow
_STEPS, _TOP, _NOTES = 8, 8, 3
_HEADLINE = {
    "step_gpu_ns": "GPU step time",
    "step_host_ns": "CPU step time",
    "items_per_s": "items, as recorded",
    "tokens_per_s": "tokens, as recorded",
    "gpu_busy_pct": "kernels running",
    "sm_efficiency_pct": "SM efficiency",
    "occupancy_pct": "occupancy",
    "gpu_idle_pct": "GPU idle",
    "gpu_exposed_copy_pct": "exposed copies",
    "kernels_per_step_count": "kernels per step",
    "gpu_exposed_communication_pct": "exposed communication",
}
_TOP_COLUMNS = {
    "kernels": ("total_pct", "total_ns", "calls_count", "mean_ns", "name"),
    "operators": ("host_self_pct", "host_self_ns", "calls_count", "host_mean_ns", "name"),
}
# In a bar without colour every role has its letter.
LETTERS = dict(zip(ROLES, "KCMNRDP.", strict=True))


def page_lines(
    trace: Trace, results: Sequence[Result], missing: Mapping[str, str], *, width: int, colour: bool
) -> Iterator[Line]:
    """The whole page, line by line, each at most `width` columns."""
    width = min(width, WIDEST)
    gutter = GUTTER if width >= 72 else 2
    room = width - gutter
    name = shorten(visible(trace.path.name), max(width - 11, 8))
    yield [(f"{'foretrace':<{max(gutter, 10)}}", "title"), (name, "accent")]
    yield from indented(_wrapped(_about(trace), room, "quiet"), "", gutter)
    for says in recordings(trace):
        yield from indented(_wrapped(visible(says), room, "quiet"), "", gutter)
    for result in results:
        yield []
        yield from indented(iter(_part(result, room, colour)), result.name, gutter)
    for name, why in missing.items():
        yield []
        yield from indented(_wrapped(visible(why), room, "quiet"), name, gutter)


def _part(result: Result, room: int, colour: bool) -> list[Line]:
    """One result's part of the page; where it cannot be drawn, a line that says so."""
    try:
        with contained(result.name):
            return list(_PARTS.get(result.name, _any_part)(result, room, colour))
    except FaultError as fault:
        return list(_wrapped(str(fault), room, "quiet"))


def _about(trace: Trace) -> str:
    recorded = (
        []
        if trace.spans.is_empty() and trace.profile
        else [f"{format_value('_ns', trace.duration_ns)} recorded"]
    )
    return visible(" · ".join((*facts(trace), *recorded)))


def indented(lines: Iterator[Line], name: str, gutter: int) -> Iterator[Line]:
    """The lines beside their section's name, or below it where the page is narrow."""
    beside = name
    if len(name) >= gutter:
        yield [(name, "title")]
        beside = ""
    for line in lines:
        yield [(f"{beside:<{gutter}}", "title"), *line] if line else []
        beside = ""


def _wrapped(text: str, width: int, style: str = "") -> Iterator[Line]:
    for line in tables.wrap(text, width):
        yield [(line, style)]


def _trust(result: Result, width: int, _: bool) -> Iterator[Line]:
    verdict = str(result.values.get("verdict"))
    yield [("● ", f"verdict {verdict}"), (verdict, f"verdict {verdict}")]
    notes = result.table.filter(pl.col("weight") != "info").head(_NOTES)
    for weight, says in notes.select("weight", "says").iter_rows():
        for number, line in enumerate(tables.wrap(visible(says), width - 2)):
            yield [("· " if number == 0 else "  ", f"weight {weight}"), (line, "")]
    left = result.table.height - notes.height
    if left:
        more = f"{left}{' more' if notes.height else ''} {'note' if left == 1 else 'notes'}"
        yield [(f"{more}: foretrace show trust PATH", "quiet")]


def _overview(result: Result, width: int, _: bool) -> Iterator[Line]:
    yield from _wrapped(visible(result.says), width)
    tiles = [
        (format_value(name, value), label)
        for name, label in _HEADLINE.items()
        if (value := result.values.get(name)) is not None and not (value == 0 and "exposed" in name)
    ]
    for row in _rows_of_tiles(tiles, width):
        yield []
        yield [(f"{text:<{room}}   ", "strong") for text, _, room in row]
        yield [(f"{label:<{room}}   ", "quiet") for _, label, room in row]
    if result.notes:
        yield []
    yield from _notes(result, width)


def _rows_of_tiles(tiles: Sequence[tuple[str, str]], width: int) -> list[list[tuple[str, str, int]]]:
    """The tiles in as few rows as fit, evenly filled, each with the width of its column."""
    for count in range(1, len(tiles) + 1):
        each = -(-len(tiles) // count)
        rooms = [max(cells(text) for tile in tiles[index::each] for text in tile) for index in range(each)]
        if sum(rooms) + 3 * (each - 1) <= width or each == 1:
            starts = range(0, len(tiles), each)
            return [[(*tile, room) for tile, room in zip(tiles[at:], rooms, strict=False)] for at in starts]
    return []


def _steps(result: Result, width: int, colour: bool) -> Iterator[Line]:
    yield from _wrapped(visible(result.says), width)
    yield []
    rows = result.table.head(_STEPS).to_dicts()
    labels = [f"{row['step']} {row['kind']}" if row.get("kind") else f"{row['step']}" for row in rows]
    times = tables.align_units([format_value("wall_ns", row["wall_ns"]) for row in rows])
    room = max(map(cells, labels), default=0), max(map(cells, times), default=0)
    length = max(width - sum(room) - 6, 8)
    longest = max((row["wall_ns"] or 0 for row in rows), default=0)
    for row, label, time in zip(rows, labels, times, strict=True):
        mark = " " if row.get("whole", True) else "*"
        yield [
            (f"{label:>{room[0]}}{mark} ", "quiet"),
            (f"{time:>{room[1]}}  ", "strong"),
            *stacked_bar({role: row[f"{role}_ns"] for role in ROLES}, longest, length, colour=colour),
        ]
    yield from _legend(result, width, colour)
    left = result.table.height - len(rows)
    if left:
        yield [(f"{left} more {'step' if left == 1 else 'steps'}: foretrace show steps PATH", "quiet")]
    if not all(row.get("whole", True) for row in rows):
        yield [("* cut off by the end of the recording; excluded from the shares", "quiet")]
    yield from _notes(result, width)


def stacked_bar(parts: Mapping[str, int | None], longest: int, length: int, *, colour: bool) -> Line:
    """One bar of all roles, as long as the step is of the longest; slivers go to the largest role."""
    if longest <= 0:
        return []
    exact = {role: length * (part or 0) / longest for role, part in parts.items()}
    drawn = {role: round(columns) for role, columns in exact.items()}
    largest = max(exact, key=lambda role: exact[role])
    drawn[largest] += round(sum(exact.values())) - sum(drawn.values())
    return [
        (("▇" if colour else LETTERS[role]) * count, f"role {role}")
        for role, count in drawn.items()
        if count > 0
    ]


def _legend(result: Result, width: int, colour: bool) -> Iterator[Line]:
    line: Line = []
    used = 0
    for role in ROLES:
        share = result.values.get(f"{role}_pct")
        if not isinstance(share, int | float) or share <= 0:
            continue
        shown = "<0.1 %" if share < 0.05 else format_value("_pct", share)
        label = f" {heading(role)} {shown}   "
        if used + 1 + cells(label) > width + 3 and line:
            yield line
            line, used = [], 0
        line += [("■" if colour else LETTERS[role], f"role {role}"), (label, "quiet")]
        used += 1 + cells(label)
    if line:
        yield line


def _top(result: Result, width: int, colour: bool) -> Iterator[Line]:
    """The first rows, by the share that the first column holds."""
    yield from _wrapped(visible(result.says), width)
    yield []
    chosen = [name for name in _TOP_COLUMNS[result.name] if name in result.table.columns]
    top = result.table.sort(chosen[0], descending=True, nulls_last=True, maintain_order=True).head(_TOP)
    yield from table_lines(top.select(chosen), width, bar=chosen[0], colour=colour)
    left = result.table.height - _TOP
    if left > 0:
        yield [(f"{left} more: foretrace show {result.name} PATH", "quiet")]
    yield from _notes(result, width)


def _any_part(result: Result, width: int, colour: bool) -> Iterator[Line]:
    yield from _wrapped(visible(result.says), width)
    yield []
    yield from table_lines(result.table.head(_TOP), width, bar=None, colour=colour)


def _notes(result: Result, width: int) -> Iterator[Line]:
    for note in result.notes:
        for number, line in enumerate(tables.wrap(visible(note), width - 2)):
            yield [("· " if number == 0 else "  ", "quiet"), (line, "quiet")]


_PARTS: Mapping[str, Callable[[Result, int, bool], Iterator[Line]]] = {
    "trust": _trust,
    "overview": _overview,
    "steps": _steps,
    "kernels": _top,
    "operators": _top,
}


def table_lines(frame: pl.DataFrame, width: int, *, bar: str | None, colour: bool) -> Iterator[Line]:
    """Headings and rows of a table, with a small bar beside the column `bar`."""
    bar = bar if colour and bar in frame.columns else None
    layout = tables.lay_out(frame, width - (BAR + 1 if bar else 0), leave_out_empty=False)
    yield from layout_lines(layout, frame, bar=bar)


def layout_lines(layout: tables.Layout, frame: pl.DataFrame, *, bar: str | None) -> Iterator[Line]:
    """The lines of a layout."""
    gap = " " * tables.GAP
    for number in range(len(layout.columns[0].heading) if layout.columns else 0):
        texts = [
            each.heading[number] + (" " * (BAR + 1) if each.name == bar else "") for each in layout.columns
        ]
        yield [(gap.join(texts).rstrip(), "quiet")]
    largest = _largest(frame, bar)
    for row in range(frame.height):
        line: Line = []
        for column in layout.columns:
            text = column.cells[row]
            line += [(gap if line else "", ""), (text, _cell_style(column, text))]
            if column.name == bar:
                line += [(f" {share_bar(frame[bar][row], largest)}", "bar")]
        yield line


def _cell_style(column: tables.Column, text: str) -> str:
    if text.strip() == ABSENT:
        return "quiet"
    return f"weight {text.strip()}" if column.name == "weight" else ""


def _largest(frame: pl.DataFrame, bar: str | None) -> float:
    largest = frame[bar].max() if bar else None
    return float(largest) if isinstance(largest, int | float) and largest > 0 else 100.0


def share_bar(value: float | None, largest: float) -> str:
    """A bar as long as the value is of the largest, in eighths of a character."""
    eighths = round(max(min((value or 0) / largest, 1), 0) * BAR * 8)
    full, part = divmod(eighths, 8)
    return (_EIGHTHS[8] * full + (_EIGHTHS[part] if part else "")).ljust(BAR)
