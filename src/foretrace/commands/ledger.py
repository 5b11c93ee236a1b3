"""Show how far predictions came true in this project, by rule and device."""

from __future__ import annotations

import argparse

from foretrace.commands import _output
from foretrace.errors import InputError, MissingDataError
from foretrace.urls import here


def configure(parser: argparse.ArgumentParser) -> None:
    """The file and how to print."""
    says = "the ledger (default: .foretrace/ledger.jsonl of this folder)"
    parser.add_argument("--ledger", type=here, metavar="FILE", help=says)
    parser.add_argument(
        "--records", action="store_true", help="print every record, not one line for each rule and device"
    )
    _output.add_format(parser)
    _output.add_rows(parser)


def run(args: argparse.Namespace) -> None:
    """Prints the table."""
    import polars as pl
    from msgspec import to_builtins

    from foretrace.trial import ledger

    file = args.ledger or ledger.DEFAULT
    kept = ledger.read(file)
    _output.warn(f"{problem}; the line is skipped" for problem in kept.problems)
    records = kept.records
    if kept.problems and not records:
        raise InputError(f"{file}: no line could be read; restore the file, or remove it")
    if not records:
        raise MissingDataError(
            f"{file}: no record yet; foretrace try and foretrace verify write one for each change that was predicted and measured"
        )
    if args.records:
        rows = [to_builtins(record) for record in records]
    else:
        rows = [
            {
                "rule": kept.rule,
                "device": kept.device,
                "measured_count": kept.records,
                "inside_count": kept.inside,
                "inside_pct": 100 * kept.inside / kept.records,
                "off_pct": 100 * kept.off,
                "promised_count": kept.promised,
                "held_count": kept.held,
                "broken_count": kept.broken,
            }
            for kept in ledger.summary(records)
        ]
    _output.print_frame(pl.DataFrame(rows, infer_schema_length=None), _output.Printing.chosen(args))
