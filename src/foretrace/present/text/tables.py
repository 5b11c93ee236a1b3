"""A Result as JSON, CSV or Markdown, and any frame laid out as aligned columns of text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs

from foretrace._version import __version__
from foretrace.analyze.result import Result
from foretrace.present.text.markup import csv_text, escaped, paragraph
from foretrace.secret_formats import without_known_secrets
from foretrace.trace import Trace
from foretrace.units import ABSENT, cells, format_value, heading, headings, shorten, suffix

# Of `--format json`; documented in docs/guide/json.md. Raise it when a field changes its meaning or goes.
JSON_SCHEMA = 1
GAP = 2
_FIRST_TEXT, _OTHER_TEXT = 30, 12
_SHORT_HEADING = 8
_WORDS = re.compile(r"[^\s`]*`[^`\s][^`]*`[^\s`]*|\S+")
_LONGEST_CODE = 200  # columns: what is longer between two backticks is no command of ours
_ALIGNED_UNITS = ("_ns", "_bytes", "_flops", "_per_s")


def to_json(result: Result, trace: Trace) -> str:
    """The result as one JSON document."""
    return _dump({**envelope(trace), **_document(result)})


def many_to_json(results: Iterable[Result], missing: Mapping[str, str], trace: Trace) -> str:
    """Several results as one JSON document, by name; what was not recorded, with its reason."""
    found = {result.name: _document(result) for result in results}
    return _dump({**envelope(trace), "results": found, "missing": dict(missing)})


def _document(result: Result) -> dict[str, Any]:
    fields = _plain(result.to_dict())
    return {
        "name": fields["name"],
        "says": fields["says"],
        "values": fields["values"],
        "columns": result.table.columns,
        "rows": fields["rows"],
        "denominators": fields["denominators"],
        "notes": fields["notes"],
    }


def envelope(trace: Trace) -> dict[str, Any]:
    """The fields that every JSON document about a trace begins with."""
    about = {"path": without_known_secrets(str(trace.path)), "format": trace.format}
    return {"schema": JSON_SCHEMA, "foretrace": __version__, "trace": about}


def frame_to_json(frame: pl.DataFrame) -> str:
    """A bare table as one JSON document."""
    return _dump(
        {
            "schema": JSON_SCHEMA,
            "foretrace": __version__,
            "columns": frame.columns,
            "rows": _plain(frame.to_dicts()),
        }
    )


def document_to_json(document: object) -> str:
    """Any document as JSON that every reader takes: without NaN, which is none."""
    return _dump(_plain(document), indent=2)


def _dump(document: object, *, indent: int = 1) -> str:
    # ASCII only: no name in a recording can act on a terminal or break a pipe's encoding.
    return json.dumps(document, indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    """The value as JSON can hold it: not-a-number becomes null, dates and the like become text."""
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | pl.Series | np.ndarray):
        return [_plain(each) for each in value]
    return str(value)


def to_csv(frame: pl.DataFrame) -> str:
    """The table for another program or a spreadsheet, which takes no text in it for a formula; absent values are empty."""
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested() or dtype == pl.Object]
    flat = frame.with_columns(
        pl.Series(name, [None if v is None else json.dumps(_plain(v)) for v in frame[name]], pl.String)
        for name in nested
    )
    named = cs.string() | cs.categorical() | cs.enum()
    flat = flat.with_columns(_csv_texts(flat[name]) for name in cs.expand_selector(flat, named))
    finite = pl.when(cs.float().is_finite()).then(cs.float())
    flat = flat.with_columns(finite) if flat.select(cs.float()).width else flat
    header = pl.DataFrame([list(map(csv_text, flat.columns))], orient="row").write_csv(include_header=False)
    return (header if flat.width else "") + flat.write_csv(include_header=False)


def _csv_texts(texts: pl.Series) -> pl.Series:
    """Each distinct text made harmless once."""
    known = {text: csv_text(text) for text in texts.cast(pl.String).unique().drop_nulls()}
    return texts.cast(pl.String).replace_strict(known, default=None, return_dtype=pl.String)


def to_markdown(frame: pl.DataFrame) -> str:
    """The table in Markdown, values in their units."""
    if not frame.width:
        return ""
    marks = ["---:" if _is_number(dtype) else "---" for dtype in frame.dtypes]
    lines = [[escaped(title) for title in headings(frame.columns)], marks]
    lines += [
        [escaped(format_value(name, value)) for name, value in zip(frame.columns, row, strict=True)]
        for row in frame.iter_rows()
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def result_to_markdown(result: Result) -> str:
    """A result in Markdown: what it says, its values, its table, its notes."""
    parts = [f"**{escaped(result.name)}**: {escaped(result.says)}\n"]
    if result.values:
        parts.append("".join(f"- {paragraph(line)}\n" for line in value_lines(result)))
    if result.table.height:
        parts.append(to_markdown(result.table))
    if result.notes:
        parts.append("".join(f"- {paragraph(note)}\n" for note in result.notes))
    return "\n".join(parts)


def value_lines(result: Result) -> list[str]:
    """Each headline value as `name: value, of what`."""
    lines = []
    for name, value in result.values.items():
        of_what = result.denominators.get(name)
        shown = "not recorded" if value is None else format_value(name, value)
        lines.append(f"{heading(name)}: {shown}" + (f" {of_what}" if of_what and value is not None else ""))
    return lines


@dataclass(frozen=True)
class Column:
    """A column laid out: every cell already as wide as it will show."""

    name: str
    heading: tuple[str, ...]  # from the top line down, padded to equal height
    cells: tuple[str, ...]
    width: int
    number: bool

    @property
    def title(self) -> str:
        """The heading in one line."""
        return " ".join(" ".join(self.heading).split())


@dataclass(frozen=True)
class Layout:
    """Columns that fit the width; `hidden` ones did not, `empty` ones hold no value at all, `zero` ones nothing but 0."""

    columns: tuple[Column, ...]
    hidden: tuple[str, ...]
    empty: tuple[str, ...]
    zero: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Columns of the terminal that it takes."""
        return sum(column.width + GAP for column in self.columns)


def lay_out(
    frame: pl.DataFrame, width: int, *, keep: Sequence[str] = (), leave_out_empty: bool = True
) -> Layout:
    """The frame as aligned text within `width`.

    Columns with no value, or with 0 in every row and not in `keep`, are left out. Long text gives way a little, then whole columns go: from the right, those in `keep` after all others and the first of
    them last.
    """
    empty = tuple(name for name in frame.columns if leave_out_empty and _is_empty(frame[name]))
    zero = tuple(
        name for name in frame.columns if leave_out_empty and name not in keep and _is_zero(frame[name])
    )
    shown = [name for name in frame.columns if name not in (*empty, *zero)]
    columns = [_column(frame[name], title) for name, title in zip(shown, headings(shown), strict=True)]
    order = [*(name for name in keep if name in shown), *(name for name in shown if name not in keep)]
    while len(columns) > 1 and _least_width(columns, width) > width:
        gone = _expendable(columns, order)
        columns = [column for column in columns if column.name != gone]
    columns = _fitted(columns, width)
    height = max((len(column.heading) for column in columns), default=0)
    left = {column.name for column in columns}
    hidden = tuple(name for name in shown if name not in left)
    return Layout(tuple(_padded(column, height) for column in columns), hidden, empty, zero)


def _is_empty(series: pl.Series) -> bool:
    """Whether no row has a value; of no rows, nothing is said."""
    if series.dtype == pl.String:
        series = series.replace("", None)
    return bool(len(series)) and series.null_count() == len(series)


def _is_zero(series: pl.Series) -> bool:
    """Whether an amount is 0 in every row. Ids and ranks are no amounts: there 0 is one like the others."""
    if not (_is_number(series.dtype) and suffix(series.name)):
        return False
    known = series.drop_nulls()
    return bool(len(known)) and bool((known == 0).all())


def _expendable(columns: list[Column], order: Sequence[str]) -> str:
    """The last in order, unless it is the only one with text."""
    left = {column.name: column for column in columns}
    *_, before, last = (name for name in order if name in left)
    only_text = not left[last].number and all(left[name].number for name in left if name != last)
    return before if only_text else last


def _column(series: pl.Series, title: str) -> Column:
    number = _is_number(series.dtype)
    texts = [format_value(series.name, value) for value in series.to_list()]
    if number and suffix(series.name) in _ALIGNED_UNITS:
        texts = align_units(texts)
    natural = max((cells(text) for text in texts), default=0)
    # A heading breaks between words rather than make a column of short numbers wide.
    lines = wrap(title, max(natural, _SHORT_HEADING, *(cells(word) for word in title.split())))
    width = max(natural, *(cells(line) for line in lines))
    return Column(series.name, tuple(lines), tuple(texts), width, number)


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns, broken between words, and inside a word if need be.

    What stands between backticks may be copied: it stays in one piece, on a line that may be longer.
    """
    width = max(width, 1)
    lines = [""]
    for piece in (piece for word in _WORDS.findall(text) for piece in _pieces(word, width)):
        if lines[-1] and cells(lines[-1]) + 1 + cells(piece) > width:
            lines.append(piece)
        else:
            lines[-1] = f"{lines[-1]} {piece}".strip()
    return lines


def _pieces(word: str, width: int) -> Iterator[str]:
    if cells(word) <= width or (word.count("`") == 2 and cells(word) <= _LONGEST_CODE):
        yield word
        return
    word = shorten(word, 8 * width)
    # Half as many characters fit where they are wide ones.
    step = width if word.isascii() else max(width // 2, 1)
    yield from (word[start : start + step] for start in range(0, len(word), step))


def align_units(texts: list[str]) -> list[str]:
    """Units one below the other, so that the numbers end in one line too."""
    pairs = [text.rpartition(" ") if " " in text else (text, "", "") for text in texts]
    room = max((len(unit) for _, _, unit in pairs), default=0)
    return [f"{number} {unit:<{room}}" if room else number for number, _, unit in pairs]


def _is_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric()


def _least_width(columns: list[Column], width: int) -> int:
    """The width below which a column has to go: numbers whole, and text not squeezed beyond reading."""
    floors = _floors(columns, width)
    return sum(floors) + GAP * (len(columns) - 1)


def _floors(columns: list[Column], width: int) -> list[int]:
    """The least width of each column: the first text is what a row is about and keeps more."""
    first = next((column for column in columns if not column.number), None)
    room = {True: max(_FIRST_TEXT, width * 2 // 5), False: max(_OTHER_TEXT, width // 6)}
    return [column.width if column.number else min(column.width, room[column is first]) for column in columns]


def _fitted(columns: list[Column], width: int) -> list[Column]:
    """The columns with the widest text narrowed until all fit."""
    widths = [column.width if column.number else min(column.width, width) for column in columns]
    texts = [index for index, column in enumerate(columns) if not column.number]
    # Where even the least does not fit, text is squeezed further.
    for floors in (_floors(columns, width), [4] * len(columns)):
        while sum(widths) + GAP * (len(columns) - 1) > width:
            wide = [index for index in texts if widths[index] > floors[index]]
            if not wide:
                break
            widths[max(wide, key=lambda index: widths[index])] -= 1
    return [replace(each, width=room) for each, room in zip(columns, widths, strict=True)]


def _padded(column: Column, height: int) -> Column:
    lines = [""] * (height - len(column.heading)) + [shorten(line, column.width) for line in column.heading]
    texts = column.cells if column.number else [shorten(text, column.width) for text in column.cells]
    return Column(
        column.name,
        tuple(_pad(line, column) for line in lines),
        tuple(_pad(text, column) for text in texts),
        column.width,
        column.number,
    )


def _pad(text: str, column: Column) -> str:
    blank = " " * max(column.width - cells(text), 0)
    if column.number:
        # A dash stands where the last digit would.
        return (blank + text) if text.strip() != ABSENT else f"{text.strip():>{column.width}}"
    return text + blank
