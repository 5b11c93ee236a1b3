"""Compare the ranks of a job: who holds it up, and what a step would save without that."""

from __future__ import annotations

import argparse
import warnings
from typing import TYPE_CHECKING

from foretrace.commands import _output
from foretrace.commands._output import Printing
from foretrace.urls import here

if TYPE_CHECKING:
    from foretrace.ranks.reduce import Ranks

TABLES = ("findings", "clocks", "collectives", "waits", "late", "links", "path", "held")


def configure(parser: argparse.ArgumentParser) -> None:
    """The recordings, where to read them, and how to print."""
    says = "recordings of the ranks, a folder or Run with them, a pattern, or summaries that --out kept; files or URLs"
    parser.add_argument("paths", metavar="PATH", nargs="+", help=says)
    says = "where recordings are read: local, ray or ray://HOST:10001 (default: local)"
    parser.add_argument("--on", metavar="ENGINE", default="local", help=says)
    says = "ranks of a node (default: from host names or device numbers, else 8)"
    parser.add_argument("--ranks-per-node", metavar="N", type=_count, help=says)
    says = "folder that keeps a summary of each rank, so that the next question reads no recording"
    parser.add_argument("--out", metavar="DIR", type=here, help=says)
    says = "the table to print: " + ", ".join(TABLES) + " (default: findings)"
    parser.add_argument("--table", metavar="NAME", choices=TABLES, default="findings", help=says)
    _output.add_format(parser)
    _output.add_rows(parser)


def run(args: argparse.Namespace) -> None:
    """Prints what holds the job up, or one of its tables."""
    from foretrace.present.text import tables, terminal
    from foretrace.ranks.job import read_job

    with terminal.counting("reading ranks") as progress:
        ranks = read_job(
            args.paths, on=args.on, ranks_per_node=args.ranks_per_node, out=args.out, progress=progress
        )
    for reason in ranks.unread.values():
        warnings.warn(reason, stacklevel=1)
    printing = Printing.chosen(args)
    if args.table != "findings":
        _output.print_frame(getattr(ranks, args.table), printing)
    elif args.format == "json":
        _output.print_document(tables.document_to_json(ranks.to_dict()))
    elif args.format == "table":
        _show(ranks, printing)
    else:
        _output.print_frame(ranks.what_if, printing)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks")
    return int(text)


def _show(ranks: Ranks, printing: Printing) -> None:
    from foretrace.analyze.result import Result
    from foretrace.present.text import ranks as words
    from foretrace.present.text import terminal

    table, rest = _output.pick_rows(ranks.what_if.drop("says"), printing)
    result = Result(
        says=words.headline(ranks),
        table=table,
        values=words.values(ranks),
        notes=words.notes(ranks),
        denominators={"worth_pct": "of the mean step"},
    )
    terminal.show_result(result, rows_left=rest)
