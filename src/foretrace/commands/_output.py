"""What the commands that print or write have in common: --format, --sort, --limit, -o, --force, and doing so."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace._version import __version__
from foretrace.commands._call import documents
from foretrace.errors import ForetraceError, UsageError, unknown
from foretrace.units import heading, visible
from foretrace.urls import here
from foretrace.whole_files import replacing

if TYPE_CHECKING:
    import polars as pl

    from foretrace.analyze.result import Result
    from foretrace.trace import Trace

FORMATS = ("table", "json", "csv", "md")
ERROR_SCHEMA = "foretrace.error/1"
_WARNINGS = 5
TABLE_ROWS = 25  # shown in a terminal unless --limit says otherwise


@dataclass(frozen=True)
class Printing:
    """How to print a table: the format, and which rows in which order."""

    format: str
    sort: str | None = None
    limit: int | None = None
    columns: str | None = None  # names with commas between them; `None`: all

    @classmethod
    def chosen(cls, args: argparse.Namespace) -> Printing:
        """What `add_format`, `add_rows` and `add_columns` were given."""
        return cls(args.format, args.sort, args.limit, getattr(args, "columns", None))


def add_format(parser: argparse.ArgumentParser, *, formats: Sequence[str] = FORMATS) -> None:
    """Adds --format."""
    parser.add_argument("--format", choices=formats, default="table", help="default: table")


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Adds --sort and --limit."""
    parser.add_argument("--sort", metavar="COLUMN[:asc|desc]", help="order rows by a column")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=row_limit,
        help=f"print at most N rows; 0 for all (default: {TABLE_ROWS} in a table, else all)",
    )


def add_columns(parser: argparse._ActionsContainer) -> None:
    """Adds --columns."""
    says = "print these columns, in this order (default: all; in a table, those that fit)"
    parser.add_argument("--columns", metavar="NAME,...", help=says)


def add_file(parser: argparse.ArgumentParser, *, says: str, required: bool = True) -> None:
    """Adds -o and --force."""
    parser.add_argument("-o", "--output", metavar="FILE", type=here, required=required, help=says)
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def check_file(output: Path, *, force: bool, endings: tuple[str, ...], such_as: str) -> None:
    """Raises UsageError where the name does not end as it should, or the file exists and --force was not given.

    A device or a pipe, such as /dev/stdout, may have any name where there is one format to choose from.
    """
    try:
        # A link that leads nowhere counts: writing would create a file elsewhere.
        exists = output.exists() or output.is_symlink()
        is_device = exists and output.exists() and not output.is_file() and not output.is_dir()
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise UsageError(f"{output}: cannot be written: {error.strerror or error}") from error
    if is_device and " or " not in such_as:
        return
    if not output.name.lower().endswith(endings):
        raise UsageError(f"{output}: end the name in {such_as}")
    if exists and not force:
        raise UsageError(f"will not overwrite without --force: {output}")


@contextmanager
def writing(output: Path) -> Iterator[Path]:
    """A file to write to, which becomes `output` when all is written: that appears whole or not at all.

    What goes wrong inside with writing is told as a wrong use of -o.
    """
    try:
        target = output.resolve()  # what a link leads to is replaced, not the link
        if target.exists() and not target.is_file():  # a device or a pipe: there is nothing to replace
            yield target
            return
        with replacing(target) as partial:
            yield partial
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror or error}") from error


def warn(problems: Iterable[str]) -> None:
    """Prints a line for each of the first problems on standard error, and how many more there are."""
    listed = list(problems)
    for problem in listed[:_WARNINGS]:
        print(f"foretrace: {visible(' '.join(problem.split()))}", file=sys.stderr)
    if len(listed) > _WARNINGS:
        print(f"foretrace: {len(listed) - _WARNINGS:,} more like these", file=sys.stderr)


def row_limit(text: str) -> int:
    """A number of rows, as an option gives it."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows")
    return int(text)


def print_result(result: Result, trace: Trace, printing: Printing) -> None:
    """Prints one result in the chosen format."""
    from foretrace.present.text import tables, terminal

    rows, rest = pick_rows(result.table, printing)
    result = replace(result, table=rows)
    if printing.format == "table":
        terminal.show_result(result, rows_left=rest, all_columns=printing.columns is not None)
    elif printing.format == "json":
        print_document(tables.to_json(result, trace))
    elif printing.format == "csv":
        print_text(tables.to_csv(result.table))
    else:
        print_text(tables.result_to_markdown(result))


def print_frame(frame: pl.DataFrame, printing: Printing) -> None:
    """Prints a bare table in the chosen format."""
    from foretrace.present.text import tables, terminal

    frame, rest = pick_rows(frame, printing)
    if printing.format == "table":
        terminal.show_frame(frame, rows_left=rest)
    elif printing.format == "json":
        print_document(tables.frame_to_json(frame))
    elif printing.format == "csv":
        print_text(tables.to_csv(frame))
    else:
        print_text(tables.to_markdown(frame))


def print_document(text: str) -> None:
    """Prints the JSON document that a command answers with."""
    documents.append("answer")
    print(text.rstrip("\n"))


def print_error(code: int, kind: str, says: str, near: Sequence[str] = ()) -> None:
    """Prints an error as a JSON document."""
    import json

    documents.append("error")
    print(json.dumps(error_document(code, kind, says, near), indent=1))


def error_document(code: int, kind: str, says: str, near: Sequence[str] = ()) -> dict[str, Any]:
    """An error as JSON has it: the exit code, the kind of error, and the line that standard error has."""
    message = visible(" ".join(says.split()))
    error = {"code": code, "kind": kind, "message": message, "did_you_mean": list(near)}
    return {"schema": ERROR_SCHEMA, "foretrace": __version__, "error": error}


def print_text(text: str) -> None:
    """Prints data as it is into a file or pipe, and harmlessly onto a terminal."""
    if sys.stdout.isatty():
        text = "\n".join(visible(line) for line in text.split("\n"))
    print(text, end="")


def pick_rows(frame: pl.DataFrame, printing: Printing) -> tuple[pl.DataFrame, int]:
    """The rows to print, and how many are left out."""
    if printing.sort:
        frame = _sorted(frame, printing.sort)
    if printing.columns is not None:
        asked = [name.strip() for name in printing.columns.split(",")]
        frame = frame.select(*dict.fromkeys(_named(frame.columns, name, "") for name in asked))
    limit = printing.limit
    if limit is None:
        limit = TABLE_ROWS if printing.format == "table" else 0
    return (frame.head(limit), max(frame.height - limit, 0)) if limit else (frame, 0)


def _sorted(frame: pl.DataFrame, order: str) -> pl.DataFrame:
    """The frame by one column: numbers from the largest down, text from A to Z, absent last."""
    wanted, _, direction = order.partition(":")
    if direction not in ("", "asc", "desc"):
        raise UsageError(f"--sort {order}: the order is asc or desc")
    column = _named(frame.columns, wanted, " to sort by")
    dtype = frame.schema[column]
    key = frame[column].cast(str) if str(dtype) in ("Categorical", "Enum") else frame[column]
    down = direction == "desc" if direction else dtype.is_numeric()
    return frame[key.arg_sort(descending=down, nulls_last=True)]


def _named(columns: Sequence[str], wanted: str, purpose: str) -> str:
    """The one column of this name, or that shows under this heading."""
    if wanted in columns:
        return wanted
    text = wanted.replace("_", " ").casefold()
    fitting = [name for name in columns if heading(name).casefold() == text]
    if len(fitting) != 1:
        raise unknown(f"no column {wanted!r}{purpose}", wanted, columns)
    return fitting[0]


def give_up() -> None:
    """Standard output takes no more; without this the interpreter complains when it flushes at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # no file behind it, as in a test: then there is no flush at exit either
        return


@contextmanager
def told(say: Callable[[str], None]) -> Iterator[None]:
    """What cannot be read or written inside is told, and no more: the exit code is not ours to choose."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            give_up()
        say(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except ForetraceError as error:
        say(str(error))
