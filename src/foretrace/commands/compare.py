"""Compare recordings, Runs or benchmarks: which is faster, and what explains the difference."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.commands import _input, _output
from foretrace.errors import UsageError

if TYPE_CHECKING:
    from foretrace.compare.compared import Compared
    from foretrace.compare.subjects import Subject
    from foretrace.diagnose.case import Case

_TABLES = ("causes", "modules", "operators", "kernels", "nodes")


def configure(parser: argparse.ArgumentParser) -> None:
    """The paths and how to print."""
    says = "recordings, Runs (folders of `foretrace run`), benchmarks, or folders of them, the first of which is compared with"
    parser.add_argument("paths", metavar="PATH", type=Path, nargs="+", help=says)
    _input.add_no_cache(parser)
    _input.add_reading(parser)
    _output.add_format(parser)
    parser.add_argument(
        "--by",
        choices=_TABLES,
        default="causes",
        help="the table to print (default: causes, which sum to the difference)",
    )
    _output.add_rows(parser)
    parser.add_argument("--force", action="store_true", help="overwrite existing files")


def run(args: argparse.Namespace) -> int:
    """Prints the comparison; 1 where a gate failed."""
    subjects = _subjects(args)
    if len(subjects) < 2:
        raise UsageError("compare needs two paths")
    if len(subjects) > 2:
        _print_trend(subjects, args)
        return 0
    _print(_compared(subjects, args), args)
    return 0


def _open(args: argparse.Namespace, path: Path) -> Case:
    return _input.open_case(path, no_cache=args.no_cache, reading=_input.reading(args))


def _subjects(args: argparse.Namespace) -> list[Subject]:
    from foretrace.compare.subjects import open_subject, short_names

    names = short_names(args.paths)
    return [
        open_subject(path, name, partial(_open, args)) for path, name in zip(args.paths, names, strict=True)
    ]


def _compared(subjects: list[Subject], args: argparse.Namespace) -> Compared:
    from foretrace.compare.compared import compare_subjects

    return compare_subjects(subjects[0], subjects[1], partial(_open, args))


def _print(found: Compared, args: argparse.Namespace) -> None:
    from foretrace.compare.compared import to_dict
    from foretrace.compare.traces import Comparison
    from foretrace.present.text import comparison, tables, terminal

    printing = _output.Printing(args.format, args.sort, args.limit)
    if args.by != "causes":
        if not isinstance(found, Comparison):
            raise UsageError(f"--by {args.by} needs two recordings")
        _output.print_frame(comparison.drill(found, args.by), printing)
    elif args.format == "json":
        print(tables.document_to_json(to_dict(found)))
    elif args.format == "csv":
        _output.print_frame(comparison.frame(found), printing)
    elif args.format == "md":
        _output.print_text(comparison.markdown(found))
    elif isinstance(found, Comparison):
        terminal.show_lines(lambda width: comparison.lines(found, width))
    else:
        print(f"{found.verdict}: {found.says}\n")
        _output.print_frame(comparison.frame(found), printing)


def _print_trend(subjects: list[Subject], args: argparse.Namespace) -> None:
    from foretrace.compare.compared import trend, trend_to_dict
    from foretrace.compare.sides import side_of
    from foretrace.compare.subjects import Recording
    from foretrace.present.text import comparison, tables

    recordings = [subject for subject in subjects if isinstance(subject, Recording)]
    if len(recordings) < len(subjects):
        raise UsageError("more than two can be compared only if all are recordings or Runs")
    if args.by != "causes":
        raise UsageError(f"--by {args.by} needs exactly two recordings")
    rows = trend([side_of(recording.case, recording.name) for recording in recordings])
    if args.format == "json":
        print(tables.document_to_json(trend_to_dict(rows)))
    else:
        _output.print_frame(
            comparison.trend_frame(rows), _output.Printing(args.format, args.sort, args.limit)
        )
