"""Compare the ranks of a job: who holds it up, and what a step would save without that."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from foretrace.commands import _output
from foretrace.commands._output import Printing
from foretrace.errors import MissingDataError
from foretrace.sourced import JUDGEMENT, Share
from foretrace.units import visible
from foretrace.urls import here

if TYPE_CHECKING:
    from foretrace.ranks.reduce import Ranks

TABLES = ("findings", "clocks", "collectives", "waits", "late", "links", "path", "held")
LEAST_READ = Share(0.9, "the job's ranks, read whole, for exit code 0", JUDGEMENT)
_MOST_LINES = 100


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
    says = "profiling cycle to compare, 1 is the oldest (default: the latest of those that most ranks recorded whole)"
    parser.add_argument("--cycle", metavar="N", type=_count, help=says)
    says = "share of the job's ranks that must be read whole; below it the exit code is 4 (default: %(default)g %%)"
    parser.add_argument("--min-read", metavar="PCT", type=_share_pct, default=100 * LEAST_READ, help=says)
    says = "the table to print: " + ", ".join(TABLES) + " (default: findings)"
    parser.add_argument("--table", metavar="NAME", choices=TABLES, default="findings", help=says)
    _output.add_format(parser)
    _output.add_rows(parser)


def run(args: argparse.Namespace) -> int:
    """Prints what holds the job up, or one of its tables; 4 where too little of the job was read."""
    from foretrace.present.text import tables, terminal
    from foretrace.ranks.job import read_job

    with terminal.counting("reading ranks") as progress:
        ranks = read_job(
            args.paths,
            on=args.on,
            ranks_per_node=args.ranks_per_node,
            out=args.out,
            cycle=args.cycle,
            progress=progress,
        )
    _tell_unused(ranks)
    printing = Printing.chosen(args)
    if args.table != "findings":
        _output.print_frame(getattr(ranks, args.table), printing)
    elif args.format == "json":
        _output.print_document(tables.document_to_json(ranks.to_dict()))
    elif args.format == "table":
        _show(ranks, printing)
    else:
        _output.print_frame(ranks.what_if, printing)
    if 100 * ranks.read_share >= args.min_read:
        return 0
    whole = len(ranks.job.ranks) - len(ranks.cut_off)
    _tell(f"{whole} of {ranks.job.world} ranks read whole, fewer than {args.min_read:g} % (--min-read)")
    return MissingDataError.exit_code


def _tell_unused(ranks: Ranks) -> None:
    """One line for each recording that is not compared or only in part; those that could not be read first."""
    from foretrace.ranks.unused import REASONS

    for unused in sorted(ranks.unused, key=lambda unused: REASONS.index(unused.why))[:_MOST_LINES]:
        _tell(unused.says)
    if len(ranks.unused) > _MOST_LINES:
        _tell(f"{len(ranks.unused) - _MOST_LINES} more recordings are not used: --format json lists them all")
    for rank in ranks.cut_off[:_MOST_LINES]:
        _tell(f"rank {rank}: its recording is cut off or lacks most steps; used as far as it goes")


def _tell(says: str) -> None:
    print(f"foretrace: {visible(' '.join(says.split()))}", file=sys.stderr)


def _share_pct(text: str) -> float:
    try:
        pct = float(text)
    except ValueError:
        pct = -1.0
    if not 0 <= pct <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return pct


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
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
